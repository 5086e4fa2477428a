"""Status of a record: `verify --mark` saves a verdict for the bytes it checked; verified records are ranked apart."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from capbench_leaderboard.build import build_board
from capbench_leaderboard.process_pool import ProcessPool
from capbench_leaderboard.ranking.board import Board, read_board

RUN = ("run", "--task", "rgr", "--arch", "bilinear", "--preset", "smoke", "--at", "20", "--seeds", "2")
QUICK = ("--lr", "0.4", "--steps", "30", "--compile", "off", "--json")


@pytest.fixture
def record(capbench, tmp_path: Path) -> Path:
    """A real run as a record of a results repository."""
    path = tmp_path / "records" / "submitted" / "rgr" / "mine.json"
    path.parent.mkdir(parents=True)
    path.write_text(capbench(*RUN, *QUICK).out)
    return path


@pytest.fixture
def records(record: Path) -> Path:
    return record.parents[2]


def board_of(records: Path) -> Board:
    return read_board(records, ProcessPool())


def checks_of(records: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((records / "verified.json").read_text())["checks"]
    return found


def test_a_marked_record_is_verified_on_the_board(capbench, record: Path, records: Path) -> None:
    arguments = ("--mark", "--by", "a reviewer", "--sample", "1", "--records", str(records))
    done = capbench("leaderboard", "verify", str(record), *arguments)
    assert (done.code, "saved in" in done.err) == (0, True)
    (check,) = checks_of(records)
    assert (check["record"], check["verdict"], check["n_sampled"], check["by"]) == (
        "submitted/rgr/mine.json",
        "verified",
        1,
        "a reviewer",
    )
    board = build_board(records, records.parent)
    assert [board.is_verified(entry) for entry in board.entries] == [True]
    assert [table.group.is_self_reported for table in board.tables] == [False]
    assert "1 record, 1 of them verified" in (records.parent / "README.md").read_text()
    page = next((records.parent / "site" / "records").glob("*.html")).read_text()
    assert '<span class="badge verified">verified</span>' in page
    assert "by a reviewer: verified; 1 of 2 trials run again" in page


def test_a_second_check_replaces_the_first(capbench, record: Path, records: Path) -> None:
    for name in ("one", "two"):
        arguments = ("--mark", "--by", name, "--sample", "1", "--records", str(records))
        assert capbench("leaderboard", "verify", str(record), *arguments).code == 0
    assert [check["by"] for check in checks_of(records)] == ["two"]


def test_a_record_that_fails_its_check_says_so_and_stays_self_reported(capbench, record: Path, records: Path) -> None:
    document = json.loads(record.read_text())
    document["capacity"]["estimate"] += 0.5
    record.write_text(json.dumps(document))
    arguments = ("--mark", "--sample", "1", "--records", str(records))
    assert capbench("leaderboard", "verify", str(record), *arguments).code == 1
    assert [check["verdict"] for check in checks_of(records)] == ["summaries wrong"]
    board = build_board(records, records.parent)
    assert [table.group.is_self_reported for table in board.tables] == [True]
    page = next((records.parent / "site" / "records").glob("*.html")).read_text()
    assert "; verdict: summaries wrong" in page
    assert '<span class="badge verified">' not in page


def test_nothing_is_marked_without_trials_run_again(capbench, record: Path, records: Path) -> None:
    done = capbench("leaderboard", "verify", str(record), "--mark", "--sample", "0", "--records", str(records))
    assert done.code == 2
    assert "--sample 0" in done.err
    assert not (records / "verified.json").exists()


def test_a_file_outside_the_records_cannot_be_marked(capbench, record: Path, records: Path) -> None:
    elsewhere = records.parent / "mine.json"
    elsewhere.write_text(record.read_text())
    done = capbench("leaderboard", "verify", str(elsewhere), "--mark", "--records", str(records))
    assert done.code == 2
    assert "a record must be in the folder --records" in done.err
    assert done.out == ""


def test_a_broken_verified_json_costs_the_marks_and_not_the_board(record: Path, records: Path) -> None:
    (records / "verified.json").write_text('{"checks": [{"record": 3}]}')
    board = board_of(records)
    assert len(board.entries) == 1
    assert board.checks == {}
    assert board.broken[0].startswith("verified.json: checks.0.record:")


SUITE = """
name = "mine"
version = 1
preset = "smoke"
tasks = ["triples"]
architectures = ["mlp"]
tiers = [400]
seeds = 2
budget = 4

[[rules]]
steps = 30
rates = [0.02]
"""


def test_a_run_of_a_suite_is_submitted_as_its_record(capbench, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(SUITE)
    suite = ("--suite", str(tmp_path / "mine.toml"))
    plan = capbench("suite", str(tmp_path / "mine.toml"), "--dry-run").out
    (command,) = [
        line[line.index("capbench run") :].split()[1:] for line in plan.splitlines() if "capbench run" in line
    ]
    run = json.loads(capbench(*command, "--compile", "off", "--json").out)
    path = tmp_path / "submitted.json"
    done = capbench("leaderboard", "submit", run["run_id"], *suite, "--out", str(path))
    assert done.code == 0
    assert f"records/mine/triples/mlp-{run['n_parameters']}-{run['run_id']}.json" in done.err
    assert json.loads(path.read_text())["suite"] == {"name": "mine", "version": 1, "tier": 400, "settle": None}
    assert capbench("leaderboard", "verify", str(path), *suite, "--sample", "1").code == 0


def test_a_run_that_is_not_in_the_suite_is_refused(capbench, tmp_path: Path) -> None:
    run = json.loads(capbench(*RUN, *QUICK).out)
    done = capbench(
        "leaderboard", "submit", run["run_id"], "--suite", "smoke", "--out", str(tmp_path / "submitted.json")
    )
    assert done.code == 2
    assert "is not a run of the suite smoke" in done.err
    assert not (tmp_path / "submitted.json").exists()
