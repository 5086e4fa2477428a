"""What was said of a record: `verify --mark` notes it for the bytes it checked, and the board keeps the two apart."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from capbench_leaderboard.board import Board, read_board
from capbench_leaderboard.build import build
from capbench_leaderboard.many import Workers

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
    return read_board(records, Workers())


def checks_of(records: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((records / "verified.json").read_text())["checks"]
    return found


def test_a_marked_record_is_verified_on_the_board(capbench, record: Path, records: Path) -> None:
    words = ("--mark", "--by", "a stranger", "--sample", "1", "--records", str(records))
    done = capbench("leaderboard", "verify", str(record), *words)
    assert (done.code, "noted in" in done.err) == (0, True)
    (note,) = checks_of(records)
    assert (note["record"], note["verdict"], note["n_sampled"], note["by"]) == (
        "submitted/rgr/mine.json",
        "verified",
        1,
        "a stranger",
    )
    board = build(records, records.parent)
    assert [board.is_verified(entry) for entry in board.entries] == [True]
    assert [table.group.is_self_reported for table in board.tables] == [False]
    assert "1 record, 1 of them verified" in (records.parent / "README.md").read_text()
    page = next((records.parent / "site" / "records").glob("*.html")).read_text()
    assert '<span class="badge verified">verified</span>' in page
    assert "by a stranger: verified; 1 of 2 trials run again" in page


def test_a_second_check_takes_the_place_of_the_first(capbench, record: Path, records: Path) -> None:
    for name in ("one", "two"):
        words = ("--mark", "--by", name, "--sample", "1", "--records", str(records))
        assert capbench("leaderboard", "verify", str(record), *words).code == 0
    assert [note["by"] for note in checks_of(records)] == ["two"]


def test_a_record_that_fails_its_check_says_so_and_stays_self_reported(capbench, record: Path, records: Path) -> None:
    document = json.loads(record.read_text())
    document["capacity"]["estimate"] += 0.5
    record.write_text(json.dumps(document))
    words = ("--mark", "--sample", "1", "--records", str(records))
    assert capbench("leaderboard", "verify", str(record), *words).code == 1
    assert [note["verdict"] for note in checks_of(records)] == ["summaries wrong"]
    board = build(records, records.parent)
    assert [table.group.is_self_reported for table in board.tables] == [True]
    page = next((records.parent / "site" / "records").glob("*.html")).read_text()
    assert "and found: summaries wrong" in page
    assert '<span class="badge verified">' not in page


def test_nothing_is_marked_without_trials_run_again(capbench, record: Path, records: Path) -> None:
    done = capbench("leaderboard", "verify", str(record), "--mark", "--sample", "0", "--records", str(records))
    assert done.code == 2
    assert "--sample 0" in done.err
    assert not (records / "verified.json").exists()


def test_a_file_that_is_no_record_of_the_board_cannot_be_marked(capbench, record: Path, records: Path) -> None:
    elsewhere = records.parent / "mine.json"
    elsewhere.write_text(record.read_text())
    done = capbench("leaderboard", "verify", str(elsewhere), "--mark", "--records", str(records))
    assert done.code == 2
    assert "a record lies in the folder --records" in done.err
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


def test_a_run_that_a_suite_asks_for_is_submitted_into_its_place(capbench, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(SUITE)
    suite = ("--suite", str(tmp_path / "mine.toml"))
    plan = capbench("suite", str(tmp_path / "mine.toml"), "--dry-run").out
    (command,) = [
        line[line.index("capbench run") :].split()[1:] for line in plan.splitlines() if "capbench run" in line
    ]
    run = json.loads(capbench(*command, "--compile", "off", "--json").out)
    path = tmp_path / "sent.json"
    done = capbench("leaderboard", "submit", run["run_id"], *suite, "--out", str(path))
    assert done.code == 0
    assert f"records/mine/triples/mlp-400-{run['run_id']}.json" in done.err
    assert json.loads(path.read_text())["suite"] == {"name": "mine", "version": 1, "tier": 400}
    assert capbench("leaderboard", "verify", str(path), *suite, "--sample", "1").code == 0


def test_a_run_that_no_suite_asks_for_is_not_submitted_into_one(capbench, tmp_path: Path) -> None:
    run = json.loads(capbench(*RUN, *QUICK).out)
    done = capbench("leaderboard", "submit", run["run_id"], "--suite", "smoke", "--out", str(tmp_path / "sent.json"))
    assert done.code == 2
    assert "is none that the suite smoke asks for" in done.err
    assert not (tmp_path / "sent.json").exists()
