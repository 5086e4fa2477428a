"""The committed board: every record is readable, and README and charts are what the records give."""

from __future__ import annotations

from pathlib import Path

import pytest

from capbench.documents.result import Result
from capbench.studies.verify.replay import check_summaries
from capbench_leaderboard.build import check_board
from capbench_leaderboard.process_pool import ProcessPool
from capbench_leaderboard.ranking.board import read_board

BOARD = Path(__file__).parents[2] / "leaderboard"


@pytest.mark.skipif(not (BOARD / "records").is_dir(), reason="no records in this checkout")
def test_the_committed_board_is_not_stale() -> None:
    check_board(BOARD / "records", BOARD)


@pytest.mark.skipif(not (BOARD / "records").is_dir(), reason="no records in this checkout")
def test_no_shipped_record_is_broken() -> None:
    assert read_board(BOARD / "records", ProcessPool()).broken == ()


@pytest.mark.skipif(not (BOARD / "records").is_dir(), reason="no records in this checkout")
def test_every_shipped_capacity_follows_from_its_trials() -> None:
    records = list((BOARD / "records").glob("*/*/*.json"))
    assert records
    for path in records:
        assert check_summaries(Result.model_validate_json(path.read_text("utf-8"))) == [], path
