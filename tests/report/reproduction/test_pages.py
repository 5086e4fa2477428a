"""The pages of reproductions are a pure function of their data."""

from __future__ import annotations

from pathlib import Path

from capbench.report.reproduction.page import render_pages
from capbench.report.reproduction.plot import _in_order

PUBLISHED = Path(__file__).parents[3] / "docs" / "reproductions"


def test_every_published_page_is_what_its_data_render_to() -> None:
    for name, text in render_pages(PUBLISHED).items():
        assert (PUBLISHED / name).read_text(encoding="utf-8") == text, f"{name}: run `capbench reproduce` again"


def test_axes_of_a_heat_map_are_in_order() -> None:
    assert _in_order([16, 32, 8, 32]) == ["8", "16", "32"]
    assert _in_order(["softmax", "max"]) == ["softmax", "max"]
