"""The board that this repository ships: every record readable, and README and charts as the records give them."""

from __future__ import annotations

from pathlib import Path

import pytest

from capbench_leaderboard.board import read_board
from capbench_leaderboard.build import check
from capbench_leaderboard.many import Workers

BOARD = Path(__file__).parents[2] / "leaderboard"


@pytest.mark.skipif(not (BOARD / "records").is_dir(), reason="no records in this checkout")
def test_the_committed_board_is_not_stale() -> None:
    check(BOARD / "records", BOARD)


@pytest.mark.skipif(not (BOARD / "records").is_dir(), reason="no records in this checkout")
def test_no_shipped_record_is_broken() -> None:
    assert read_board(BOARD / "records", Workers()).broken == ()
