"""Text of shapes, learning rates, costs and bits per parameter."""

from __future__ import annotations

import pytest

from capbench.documents.result import RateWindow, ShapeTried
from capbench_leaderboard.ranking.entry import make_entry
from capbench_leaderboard.record_text import bits_text, capacity_and_interval_text, cost_text, rates_text, shape_text
from tests.leaderboard.synthetic import SyntheticRecord


@pytest.mark.parametrize(
    ("updates", "text"),
    [(None, "–"), (999, "999"), (1000, "1.0k"), (15_400, "15k"), (2.34e6, "2.3M"), (7e9, "7.0G"), (5e13, "50T")],
)
def test_costs_have_two_digits_and_a_unit(updates: float | None, text: str) -> None:
    assert cost_text(updates) == text


def test_a_shape_is_the_fields_in_which_candidates_differ() -> None:
    assert shape_text(SyntheticRecord(settled=True).result()) == "d_model=8, n_heads=1 (best of 2)"
    assert shape_text(SyntheticRecord().result()) == "–"


def test_candidates_with_different_fields_are_shown() -> None:
    result = SyntheticRecord(settled=True).result()
    shapes = tuple(ShapeTried(params={name: 1}, n_parameters=9, estimate=1.0, trials=1) for name in ("one", "other"))
    odd = result.model_copy(update={"architecture": result.architecture.model_copy(update={"shapes_tried": shapes})})
    assert shape_text(odd) == "one=1 (best of 2)"


def test_learning_rates_that_work_are_a_window() -> None:
    assert rates_text(RateWindow(best=0.1, tried=(0.1, 0.2, 0.4), working=(0.2, 0.1))) == "0.1 (0.1 to 0.2 work)"
    assert rates_text(RateWindow(best=0.1, tried=(0.1,), working=())) == "0.1"
    assert rates_text(None) == "–"


def test_an_open_end_of_an_interval_is_left_empty_and_has_no_error() -> None:
    entry = make_entry("x.json", SyntheticRecord(capacity=500).result())
    capacity = entry.result.capacity
    assert capacity.status == "at_least"
    assert capacity_and_interval_text(capacity).startswith("at least 256 (")
    assert capacity_and_interval_text(capacity).endswith("–)")
    assert "±" not in bits_text(entry)
