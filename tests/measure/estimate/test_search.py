"""The threshold search: intervals with the stated coverage, few trials, the same trials after an interruption."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from scipy.special import bdtr
from scipy.stats import binomtest

from capbench.measure.estimate.posterior import Observation
from capbench.measure.estimate.search import SearchPlan, next_trials, snap
from capbench.measure.estimate.threshold import Axis, Status, Threshold, fit_threshold, wilson

PLAN = SearchPlan(Axis(1, 4032), bracket=(10.0, 1600.0))


def draw(midpoint: float, scale: float, at: int, rising: bool, rng: np.random.Generator) -> bool:
    z = (math.log(midpoint) - math.log(at)) / scale
    return bool(rng.random() < 1 / (1 + math.exp(min(50.0, max(-50.0, z if rising else -z)))))


def search(midpoint: float, scale: float, plan: SearchPlan, rng: np.random.Generator) -> tuple[Threshold, int]:
    seen: list[Observation] = []
    while wanted := next_trials(seen, plan):
        seen += [Observation(at, seed, draw(midpoint, scale, at, plan.axis.rising, rng)) for at, seed in wanted]
    return fit_threshold(seen, plan.axis), len(seen)


def test_a_search_stops_at_the_width_asked_for_and_spends_more_for_less() -> None:
    rng = np.random.default_rng(3)
    narrow, n_narrow = search(200.0, 0.1, PLAN, rng)
    wide, n_wide = search(200.0, 0.1, replace(PLAN, ci_width=0.2), rng)
    assert narrow.relative_half_width <= 0.05
    assert wide.relative_half_width <= 0.2
    assert n_wide < n_narrow < PLAN.budget


def test_the_budget_is_never_exceeded() -> None:
    rng = np.random.default_rng(3)
    _, n_trials = search(200.0, 0.8, replace(PLAN, budget=50), rng)
    assert n_trials == 50


def test_an_interrupted_search_continues_with_the_same_trials() -> None:
    def observe(pairs: list[tuple[int, int]]) -> list[Observation]:
        return [Observation(at, seed, at * (1 + 0.01 * seed) < 222) for at, seed in pairs]

    seen: list[Observation] = []
    rounds = []
    while wanted := next_trials(seen, PLAN):
        rounds.append(wanted)
        seen += observe(wanted)
    again: list[Observation] = []
    for expected in rounds:
        assert next_trials(again, PLAN) == expected
        again += observe(expected)
    assert next_trials(again, PLAN) == []


def test_a_search_recovers_from_a_wrong_bracket() -> None:
    rng = np.random.default_rng(1)
    for midpoint in (3.0, 3000.0):
        found, _ = search(midpoint, 0.1, replace(PLAN, bracket=(100.0, 150.0)), rng)
        assert found.status is Status.ESTIMATED
        assert found.estimate == pytest.approx(midpoint, rel=0.25)


def test_it_says_at_least_where_even_the_largest_load_is_held() -> None:
    plan = replace(PLAN, axis=Axis(1, 64), bracket=(8.0, 64.0))
    found, n_trials = search(1e6, 0.1, plan, np.random.default_rng(0))
    assert (found.status, found.estimate, found.ci_high) == (Status.AT_LEAST, 64, None)
    assert found.ci_low is not None
    assert 32 < found.ci_low < 64
    assert n_trials > plan.first_points * plan.first_seeds - 4


def test_it_says_below_where_even_the_smallest_load_is_not_held() -> None:
    found, _ = search(0.01, 0.1, PLAN, np.random.default_rng(0))
    assert (found.status, found.estimate, found.ci_low) == (Status.BELOW, 1, None)


def test_success_rises_along_the_axis_of_a_minimised_parameter() -> None:
    plan = replace(PLAN, axis=Axis(1, 512, rising=True), bracket=(1.0, 32.0))
    found, _ = search(12.0, 0.1, plan, np.random.default_rng(0))
    assert found.estimate == pytest.approx(12.0, rel=0.15)
    never, _ = search(1e6, 0.1, plan, np.random.default_rng(0))
    assert (never.status, never.estimate) == (Status.AT_LEAST, 512)


def test_a_sharp_step_ends_between_two_whole_numbers() -> None:
    def observe(at: int, seed: int) -> Observation:
        return Observation(at, seed, at <= 12)

    seen: list[Observation] = []
    while wanted := next_trials(seen, PLAN):
        seen += [observe(at, seed) for at, seed in wanted]
    found = fit_threshold(seen, PLAN.axis)
    assert found.ci_low is not None
    assert found.ci_high is not None
    assert 12 <= found.ci_low < found.ci_high <= 13.2


def test_failed_trials_count_towards_the_budget_and_not_in_the_fit() -> None:
    ran = [Observation(at, 0, at < 100) for at in (25, 50, 100, 200)]
    broken = [Observation(50, seed, None) for seed in range(1, 5)]
    assert fit_threshold(ran + broken, PLAN.axis) == fit_threshold(ran, PLAN.axis)
    assert not {(50, seed) for seed in range(1, 5)} & set(next_trials(ran + broken, PLAN))
    assert next_trials([Observation(50, 0, None)], PLAN) == []


@pytest.mark.parametrize(("held", "trials"), [(0, 8), (8, 8), (3, 10), (50, 100)])
def test_wilson_intervals_are_those_of_scipy(held: int, trials: int) -> None:
    expected = binomtest(held, trials).proportion_ci(0.95, method="wilson")
    assert wilson(held, trials) == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_snapping_keeps_small_loads_whole_and_large_ones_on_a_shared_grid() -> None:
    axis = Axis(1, 4032)
    assert [snap(x, axis) for x in (0.2, 1, 2, 3, 5, 8)] == [1, 1, 2, 3, 5, 8]
    grid = {snap(x, axis) for x in np.linspace(100, 200, 400)}
    assert len(grid) == 17
    assert snap(1e9, axis) == 4032


def test_an_axis_of_fours_is_searched_in_fours() -> None:
    plan = replace(PLAN, axis=Axis(4, 512, rising=True, unit=4), bracket=(4.0, 128.0))
    seen: list[Observation] = []
    while wanted := next_trials(seen, plan):
        assert all(at % 4 == 0 for at, _ in wanted)
        seen += [Observation(at, seed, at >= 20) for at, seed in wanted]
    found = fit_threshold(seen, plan.axis)
    assert 16 <= found.estimate <= 20


def test_failures_far_from_the_transition_do_not_drag_the_midpoint() -> None:
    """Training that fails now and then at easy loads, on a curve whose midpoint is 200."""
    rng = np.random.default_rng(0)
    loads = [round(1.05**k) for k in range(120)]
    seen = [
        Observation(load, seed, draw(200, 0.1, load, False, rng) and rng.random() < 0.97)
        for load in loads
        for seed in range(24)
    ]
    found = fit_threshold(seen, Axis(1, 400))
    assert found.ci_low < 200 < found.ci_high
    assert found.estimate == pytest.approx(200, rel=0.04)


def exact_search(success: Callable[[int], float], high: int, seed: int, is_trained: bool) -> tuple[Threshold, int]:
    """A search as of `capbench calibrate` for trials drawn from a known curve, and its number of trials.

    A trial that fails by exact weights has nothing right; a trained one has a few facts wrong.
    """
    rng = np.random.default_rng(seed)
    plan = SearchPlan(Axis(1, high), (1.0, float(high)), ci_width=0.02, seeds=600, batch=32, budget=600)
    seen: list[Observation] = []
    while wanted := next_trials(seen, plan):
        for at, trial_seed in wanted:
            n_wrong = 1 + rng.binomial(max(0, at - high // 8 - 1), 0.5) if is_trained else at
            held = bool(rng.random() < success(at))
            seen.append(Observation(at, trial_seed, held, None if held else n_wrong / at))
    return fit_threshold(seen, plan.axis), len(seen)


@pytest.mark.parametrize("is_trained", [False, True], ids=["exact", "trained"])
@pytest.mark.parametrize("rows", [64, 100, 128])
def test_the_step_of_a_table_is_within_its_interval(rows: int, is_trained: bool) -> None:
    """Rows + 1 facts are held half of the time; 64 and 128 are loads of the unrefined grid, the next is 4 % above."""
    found, _ = exact_search(lambda load: 0.5 ** max(0, load - rows), 8 * rows, rows, is_trained)
    assert found.ci_low is not None
    assert found.ci_high is not None
    assert found.ci_low <= rows + 1 <= found.ci_high
    assert found.estimate == pytest.approx(rows + 1, rel=0.015)
    assert found.relative_half_width <= 0.02


@pytest.mark.parametrize("dimensions", [8, 16, 32])
def test_the_curve_of_a_perceptron_is_within_its_interval(dimensions: int) -> None:
    """Cover's theorem: half of the labellings of 2d points are separable."""
    found, n_trials = exact_search(
        lambda load: float(bdtr(min(dimensions, load) - 1, load - 1, 0.5)), 8 * dimensions, 1, is_trained=False
    )
    assert found.ci_low is not None
    assert found.ci_high is not None
    assert found.ci_low <= 2 * dimensions <= found.ci_high
    assert found.relative_half_width <= 0.06
    assert n_trials <= 600


def test_loads_are_refined_where_the_curve_is_sharp_and_shared_where_it_is_broad() -> None:
    def loads(scale: float) -> set[int]:
        rng, seen = np.random.default_rng(2), list[Observation]()
        while wanted := next_trials(seen, PLAN):
            seen += [Observation(at, seed, draw(300.0, scale, at, False, rng)) for at, seed in wanted]
        return {o.at for o in seen}

    shared = {snap(at, PLAN.axis) for at in range(1, 4033)}
    assert loads(0.2) <= shared
    assert not loads(0.004) <= shared


def test_a_small_budget_is_not_spent_on_the_first_round() -> None:
    assert len({at for at, _ in next_trials([], replace(PLAN, first_seeds=1, budget=8))}) == 4
    assert len({at for at, _ in next_trials([], replace(PLAN, first_seeds=1, budget=32))}) == 8
