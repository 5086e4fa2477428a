"""The board states how far a second run on other seeds agrees with the records."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from capbench_leaderboard.agreement import agreement, agreement_text
from capbench_leaderboard.build import build_board
from capbench_leaderboard.process_pool import ProcessPool
from capbench_leaderboard.ranking.board import read_board
from capbench_leaderboard.ranking.entry import BoardEntry, make_entry
from tests.leaderboard.synthetic import SyntheticRecord, write_record, write_result


def entry(architecture: str, estimate: float, half: float | None, first_seed: int = 0, version: int = 1) -> BoardEntry:
    """A record with an interval of a half-width in octaves of e, and seeds from a number on."""
    made = SyntheticRecord(architecture=architecture, suite_version=version).result()
    ends = (None, None) if half is None else (estimate * 2.718281828**-half, estimate * 2.718281828**half)
    capacity = made.capacity.model_copy(update={"estimate": estimate, "ci_low": ends[0], "ci_high": ends[1]})
    trials = tuple(trial.model_copy(update={"seed": trial.seed + first_seed}) for trial in made.trials)
    return make_entry(f"{architecture}.json", made.model_copy(update={"capacity": capacity, "trials": trials}))


def test_a_cell_agrees_where_the_second_interval_contains_the_first_estimate() -> None:
    records = [entry("mha", 100, 0.1), entry("mlp", 100, 0.1)]
    found = agreement(records, [entry("mha", 108, 0.1, 500), entry("mlp", 120, 0.1, 500)])
    assert found is not None
    assert [cell.agrees for cell in found.cells] == [True, False]
    assert [cell.ratio for cell in found.cells] == [1.08, 1.2]
    assert "contains the first estimate in 1 of 2; 1.7 are expected" in agreement_text(found)


def test_intervals_that_are_right_agree_as_often_as_is_expected() -> None:
    rng = random.Random(0)
    n_agreeing, expected = 0, 0.0
    for _ in range(400):
        first, second = (100 * 2.718281828 ** rng.gauss(0, deviation) for deviation in (0.1, 0.05))
        found = agreement([entry("mha", first, 0.196)], [entry("mha", second, 0.098, 500)])
        assert found is not None
        n_agreeing, expected = n_agreeing + found.n_agreeing, expected + found.expected
    assert expected / 400 == pytest.approx(0.619, abs=0.001)
    assert n_agreeing == pytest.approx(expected, abs=30)


def test_only_independent_runs_of_one_version_with_closed_intervals_are_compared() -> None:
    record = entry("mha", 100, 0.1)
    assert agreement([record], [entry("mha", 100, 0.1, first_seed=2)]) is None, "it shares seeds"
    assert agreement([record], [entry("mha", 100, 0.1, 500, version=2)]) is None
    assert agreement([record], [entry("mha", 100, None, 500)]) is None
    assert agreement([record], [entry("mlp", 100, 0.1, 500)]) is None


def test_the_readme_states_the_agreement_of_the_checks_beside_the_records(tmp_path: Path) -> None:
    write_record(tmp_path / "records", SyntheticRecord(noise=0.4))
    again = SyntheticRecord(noise=0.4, draw=1).result()
    trials = tuple(trial.model_copy(update={"seed": trial.seed + 500}) for trial in again.trials)
    write_result(tmp_path / "checks" / "standard" / "rgr" / "mha.json", again.model_copy(update={"trials": trials}))
    board = read_board(tmp_path / "records", ProcessPool())
    assert board.agreement is not None
    assert len(board.entries) == 1, "a check is no record"
    build_board(tmp_path / "records", tmp_path)
    assert agreement_text(board.agreement) in (tmp_path / "README.md").read_text()
