"""Colours of architectures: always the same, different for those of the board, readable on light and dark pages."""

from __future__ import annotations

import tomllib
from importlib.resources import files

import pytest

from capbench.documents.colours import PALETTE, UNSETTLED_COLOUR, architecture_colour

PAGES = ("#ffffff", "#0d1117")
"""GitHub's light and dark pages."""


def test_an_architecture_has_the_same_colour_in_every_version() -> None:
    assert {name: architecture_colour(name) for name in ("mha", "gqa", "mlp", "deltanet")} == {
        "mha": "#a8398a",
        "gqa": "#0573aa",
        "mlp": "#949404",
        "deltanet": "#8b640f",
    }


def test_the_architectures_of_the_published_board_differ_in_colour() -> None:
    suite = tomllib.loads((files("capbench.studies") / "suites" / "standard.toml").read_text("utf-8"))
    colours = [architecture_colour(name) for name in suite["architectures"]]
    assert len(set(colours)) == len(colours)


@pytest.mark.parametrize("colour", [*PALETTE, UNSETTLED_COLOUR])
def test_every_colour_reads_on_a_light_and_on_a_dark_page(colour: str) -> None:
    assert all(contrast(colour, page) >= 3 for page in PAGES)


def test_a_name_of_any_characters_has_a_colour() -> None:
    assert architecture_colour("\ud800 田中 🧪") in PALETTE


def contrast(one: str, other: str) -> float:
    """The contrast ratio of WCAG 2."""
    lighter, darker = sorted((luminance(one), luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def luminance(colour: str) -> float:
    red, green, blue = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (red, green, blue)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
