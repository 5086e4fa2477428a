"""Equal-parameter comparison: a width within 5 % of the wanted count, or an error with the nearest count."""

from __future__ import annotations

import json

import pytest

from capbench.errors import BadSetting
from capbench.measure.matching import count_parameters, match_parameters, parse_count
from capbench.registry.registry import load_registry
from capbench.registry.settings import configure
from capbench.report.catalogue import build_catalogue


@pytest.mark.parametrize(("text", "count"), [("4096", 4096), ("10k", 10_000), ("1.5K", 1_500), ("2M", 2_000_000)])
def test_counts_are_read_as_people_write_them(text: str, count: int) -> None:
    assert parse_count(text) == count


@pytest.mark.parametrize("text", ["", "k", "-3", "0", "ten", "1e4", "10g"])
def test_other_counts_are_refused(text: str) -> None:
    with pytest.raises(BadSetting, match=r"--params takes a count such as 4096, 10k or 1\.5M"):
        parse_count(text)


@pytest.mark.parametrize("target", [4_000, 16_000])
def test_every_fitting_pair_with_a_free_width_comes_within_5_percent(target: int) -> None:
    registry = load_registry()
    matched = 0
    for setup in build_catalogue(registry).pairs:
        task = configure(registry.task(setup.task), "standard", {}).plugin
        architecture = configure(registry.architecture(setup.architecture), "standard", {})
        if not setup.fits or not architecture.plugin.widths(task.signature):
            continue
        chosen = match_parameters(task, architecture, target)
        assert abs(count_parameters(task, chosen.plugin) - target) <= 0.05 * target, (setup.task, setup.architecture)
        matched += 1
    assert matched > 20


def test_what_cannot_be_matched_is_refused_with_the_nearest(capbench) -> None:
    got = capbench("run", "--task", "rgr", "--arch", "mha", "--preset", "smoke", "--params", "40")
    assert got.code == 2
    assert "mha cannot come within 5% of 40 parameters on rgr" in got.err
    assert "n_heads=1 gives" in got.err
    floor = capbench("run", "--task", "rgr", "--arch", "bilinear", "--preset", "smoke", "--params", "4k")
    assert "bilinear has no shape within 5% of 4,000 parameters on rgr" in floor.err


def test_a_run_can_match_another_architecture_and_says_what_it_chose(capbench) -> None:
    words = ("run", "--task", "rgr", "--preset", "smoke", "--at", "10", "--seeds", "1", "--json")
    matched = capbench(*words, "--arch", "mlp", "--match", "mha")
    mlp = json.loads(matched.out)
    assert f"matched: mlp with d_mlp={mlp['architecture']['params']['d_mlp']}, n_layers=1 has" in matched.err
    mha = json.loads(capbench(*words, "--arch", "mha").out)
    assert abs(mlp["n_parameters"] - mha["n_parameters"]) <= 0.05 * mha["n_parameters"]
    assert "--set arch.d_mlp=" in mlp["command"]
    both = capbench(*words, "--arch", "mlp", "--match", "mha", "--params", "1k")
    assert "give one of them" in both.err
