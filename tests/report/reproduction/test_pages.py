"""The pages of reproductions follow from their data and from whether the code that made them is today's."""

from __future__ import annotations

import re
from pathlib import Path

from capbench.registry.registry import load_registry
from capbench.report.reproduction.page import claims_page, index_page, paper_page, render_pages
from capbench.report.reproduction.plot import _in_order
from capbench.studies.reproduce.data import read_reproduction

PUBLISHED = Path(__file__).parents[3] / "docs" / "reproductions"


def test_every_published_page_is_what_its_data_render_to() -> None:
    for name, text in render_pages(PUBLISHED, load_registry()).items():
        assert (PUBLISHED / name).read_text(encoding="utf-8") == text, f"{name}: run `capbench reproduce --pages`"


def test_the_page_of_data_made_with_other_code_says_so() -> None:
    data = read_reproduction(PUBLISHED / "data" / "dana2025-small.json")
    old, stale = (
        {"dana2025-small": ("the code of task bigrams was changed since",)},
        "**Stale**: the code of task bigrams",
    )
    assert stale in paper_page([data], old)
    assert stale not in paper_page([data], {})
    assert "the code of task bigrams was changed since: `dana2025-small`" in claims_page([data], old)
    assert claims_page([data], old).count("stale) |") == len(data.recipe.claims)
    assert "1 of them were made with code that is not today's" in index_page([data], old)
    assert "stale" not in claims_page([data], {}).lower()
    assert "today's" not in index_page([data], {})


def test_the_index_reads_in_a_minute() -> None:
    """Numbers and links are skipped in reading; 300 words a minute."""
    text = (PUBLISHED / "index.md").read_text(encoding="utf-8")
    assert text.count("![") <= 3
    prose = re.sub(r"^(\||!).*$|\(\[.*?\]\(.*?\)\)|\(.*?\)|\S*\d\S*", " ", text, flags=re.MULTILINE)
    assert len(re.findall(r"[^\W\d]{2,}", prose)) < 300


def test_axes_of_a_heat_map_are_in_order() -> None:
    assert _in_order([16, 32, 8, 32]) == ["8", "16", "32"]
    assert _in_order(["softmax", "max"]) == ["softmax", "max"]
