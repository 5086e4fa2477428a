"""The plot of a sweep: an architecture has its own colour, and axes are in words."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from capbench.documents.colours import architecture_colour
from capbench.report.sweep_plot import axis_title, sweep_chart


def point(arch: str, n_heads: str, estimate: float) -> Any:
    capacity = SimpleNamespace(
        kind="largest_load", estimate=estimate, ci_low=estimate * 0.9, ci_high=estimate * 1.1, status="estimated",
        settled=None, parameter=None,
    )  # fmt: skip
    result = SimpleNamespace(
        capacity=capacity, task=SimpleNamespace(name="rgr"), architecture=SimpleNamespace(name=arch)
    )
    return SimpleNamespace(values=(("arch", arch), ("arch.n_heads", n_heads)), result=result)


def test_an_architecture_has_its_own_colour_whichever_are_drawn_beside_it() -> None:
    for archs in (("mha", "gqa"), ("gqa", "mlp", "mha"), ("mha",)):
        points = [point(arch, n_heads, 100) for arch in archs for n_heads in ("1", "2")]
        chart = sweep_chart(points, {"arch": archs, "arch.n_heads": ("1", "2")}, "edge").to_dict()
        for layer in chart["layer"]:
            scale = layer["encoding"]["color"]["scale"]
            assert dict(zip(scale["domain"], scale["range"], strict=True)) == {a: architecture_colour(a) for a in archs}


def test_the_intervals_of_two_architectures_do_not_cover_each_other() -> None:
    points = [point(arch, n_heads, 100) for arch in ("mha", "gqa") for n_heads in ("1", "2")]
    layers = sweep_chart(points, {"arch": ("mha", "gqa"), "arch.n_heads": ("1", "2")}, "edge").to_dict()["layer"]
    assert sorted(layer["mark"]["xOffset"] for layer in layers if layer["mark"]["type"] == "rule") == [-3, 3]
    alone = sweep_chart(points[:2], {"arch.n_heads": ("1", "2")}, "edge").to_dict()["layer"]
    assert {layer["mark"]["xOffset"] for layer in alone} == {0}


@pytest.mark.parametrize(
    ("name", "title"),
    [
        ("arch.n_heads", "heads (n_heads)"),
        ("arch.d_qk+arch.d_vo", "query/key width of a head and value/output width of a head (d_qk, d_vo)"),
        ("params", "parameters"),
        ("arch", "architecture"),
        ("task.log_odds", "log odds"),
    ],
)
def test_an_axis_is_in_words_followed_by_the_name_of_the_field(name: str, title: str) -> None:
    assert axis_title(name) == title
