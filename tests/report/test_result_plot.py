"""The plot of one run: a capacity of which only one side is known is drawn as such."""

from __future__ import annotations

from typing import Any

import pytest

from capbench.report.result_plot import success_chart
from tests.leaderboard.synthetic import SyntheticRecord


def drawn(capacity: float) -> tuple[str, list[Any]]:
    """The subtitle, and the marks of a chart."""
    chart = success_chart(SyntheticRecord(capacity=capacity).result(), "edge").to_dict()
    return chart["title"]["subtitle"], [layer["mark"] for layer in chart["layer"]]


@pytest.mark.parametrize(
    ("capacity", "words", "shape"),
    [
        (10_000, ("at least 256 edges", " to open;"), "triangle-right"),
        (1, ("below 8 edges", "open to "), "triangle-left"),
    ],
)
def test_a_limit_says_so_in_the_title_and_points_to_where_the_capacity_is(
    capacity: float, words: tuple[str, ...], shape: str
) -> None:
    title, marks = drawn(capacity)
    assert all(word in title for word in words)
    assert shape in [mark.get("shape") for mark in marks]
    assert [6, 4] in [mark.get("strokeDash") for mark in marks]
    assert "rect" in [mark["type"] for mark in marks], "the known side of the interval is drawn"


def test_an_estimate_is_a_line_within_its_band() -> None:
    title, marks = drawn(50)
    assert " edges, 95% interval " in title
    assert "least" not in title
    assert "open" not in title
    assert not any("strokeDash" in mark or mark.get("shape") for mark in marks)
