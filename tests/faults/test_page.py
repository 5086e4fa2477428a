"""The page of the fault suite is written from a whole run only."""

from __future__ import annotations

from pathlib import Path

from tests.faults.conftest import FORGERIES, count_forgeries, is_whole

HERE = Path(__file__).parent
FORGERY_TESTS = HERE.parent / "studies" / "verify" / "test_forgery.py"


def test_a_run_of_one_file_or_with_tests_left_out_is_not_whole() -> None:
    assert is_whole([HERE, FORGERY_TESTS], has_deselected=False)
    assert not is_whole([HERE / "test_kills.py"], has_deselected=False)
    assert not is_whole([HERE], has_deselected=True)


def test_forgeries_are_counted_by_tests_that_exist() -> None:
    text = FORGERY_TESTS.read_text(encoding="utf-8")
    assert all(f"def {start}" in text for start in FORGERIES)
    assert count_forgeries([f"a.py::{FORGERIES[0]}[x]", f"a.py::{FORGERIES[0]}[y]", "a.py::test_other"]) == 2
