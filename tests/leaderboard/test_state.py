"""Records whose facts are in a context: tiers of state, bits per element, and no bits per parameter."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from capbench_leaderboard.build import build_board
from capbench_leaderboard.heat_map import HeatMap
from capbench_leaderboard.process_pool import ProcessPool
from capbench_leaderboard.ranking.board import Board, read_board
from tests.leaderboard.synthetic import SyntheticRecord, write_record, write_result

WEIGHTS = SyntheticRecord(architecture="mha", capacity=40)
STATE = SyntheticRecord(task="recall", suite="recall", tier=64)
"""In a state of 64 elements."""


@pytest.fixture
def records(tmp_path: Path) -> Path:
    folder = tmp_path / "board" / "records"
    write_record(folder, WEIGHTS)
    for architecture, tier, capacity in (("deltanet", 64, 45), ("gla", 64, 30), ("deltanet", 32, 20)):
        result = replace(STATE, architecture=architecture, tier=tier, capacity=capacity).result()
        assert result.suite is not None
        result = result.model_copy(
            update={
                "metrics": {"f1": 0.99, "context_bits": 96.0},
                "bits": 0.0,
                "bits_per_parameter": 0.0,
                "suite": result.suite.model_copy(update={"unit": "state"}),
                "architecture": result.architecture.model_copy(update={"state_size": tier}),
            }
        )
        write_result(folder / "recall" / "recall" / f"{architecture}-{tier}.json", result)
    return folder


def test_a_table_of_state_has_bits_per_element_and_no_column_of_bits_per_parameter(records: Path) -> None:
    build_board(records, records.parent)
    pages = {path.stem: path.read_text() for path in (records.parent / "site" / "tasks").glob("*.html")}
    recall, other = pages["recall"], pages["rgr"]
    assert "a state of 64 elements" in recall
    assert "1.5 (64 elements)" in recall, "96 bits in 64 elements"
    assert "3 (32 elements)" in recall
    assert "bits per parameter</" not in recall
    assert "Capacity against the state" in recall
    assert "bits per element of state" not in other
    assert "Capacity against the state" not in other
    readme = (records.parent / "README.md").read_text()
    assert "suite recall 1, a state of 64 elements" in readme


def test_the_overview_of_bits_per_parameter_leaves_facts_in_a_context_out(records: Path) -> None:
    heat = HeatMap(board_of(records))
    assert list(heat.tiers) == ["rgr"]
    assert {task for task, _, _ in heat.cells} == {"rgr"}


def test_states_of_one_size_are_ranked_together(records: Path) -> None:
    sizes = {
        table.group.tier: [row.entry.result.architecture.name for row in table.rows]
        for table in board_of(records).tables
        if table.group.unit == "state"
    }
    assert sizes == {64: ["deltanet", "gla"], 32: ["deltanet"]}


def test_a_record_in_parameters_is_the_text_that_it_was(records: Path) -> None:
    (path,) = (records / "standard" / "rgr").iterdir()
    assert "unit" not in json.loads(path.read_text())["suite"]


def board_of(records: Path) -> Board:
    with ProcessPool() as pool:
        return read_board(records, pool)
