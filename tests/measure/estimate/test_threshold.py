"""The threshold estimator: stated coverage and small bias where the board works, and fewer trials by near misses."""

from __future__ import annotations

import math
import time
from dataclasses import replace

import numpy as np
import pytest

from capbench.contract.task import Criterion
from capbench.documents.result import Protocol
from capbench.measure.estimate.posterior import Observation
from capbench.measure.estimate.threshold import Axis, Limit, Status, fit_threshold
from tests.measure.estimate.simulated_trials import EQUAL, UNEQUAL, Regime, report

AXIS = Axis(1, 4032)


def fixed_design(
    midpoint: float, scale: float, rng: np.random.Generator, shortfall: str = "near", points: int = 13, seeds: int = 4
) -> list[Observation]:
    """Seeds at loads from 100 to 400; the shortfall is 0.7 × (missed log load)^1.3, or unrelated to it."""
    seen = []
    for at in np.geomspace(100, 400, points).round().astype(int).tolist():
        for seed in range(seeds):
            margin = math.log(midpoint / at) + scale * rng.logistic()
            missed = 0.7 * max(0.0, -margin) ** 1.3 if shortfall == "near" else rng.uniform(0, 0.5)
            seen.append(Observation(at, seed, margin >= 0, None if margin >= 0 else min(0.9, missed)))
    return seen


def without_shortfalls(seen: list[Observation]) -> list[Observation]:
    return [replace(o, shortfall=None) for o in seen]


# Of n intervals that cover with probability .95, the share that do has a standard error of sqrt(.95 × .05 / n). Three
# of them are allowed below. Intervals of searches with few trials cover more often: the prior allows lapses and broad
# curves that these few trials cannot exclude. The bias may differ from the limit by three of its own standard errors.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("regime", "n_searches", "limit"),
    [
        (Regime(budget=8, offsets=EQUAL), 120, 0.08),
        (Regime(budget=8, offsets=UNEQUAL), 120, 0.08),
        (Regime(budget=16, offsets=EQUAL), 60, 0.04),
        (Regime(scale=0.03), 40, 0.03),
        (Regime(scale=0.3), 40, 0.04),
        (Regime(offsets=EQUAL), 40, 0.03),
        (Regime(lapse=0.25), 40, 0.03),
        (Regime(metric="unrelated"), 40, 0.03),
        (Regime(metric="jump"), 40, 0.03),
        (Regime(rising=True), 40, 0.03),
    ],
    ids=str,
)
def test_intervals_cover_the_truth_and_estimates_are_not_biased(regime: Regime, n_searches: int, limit: float) -> None:
    got = report(regime, n_searches, seed=20240611)
    assert got.coverage >= 0.95 - 3 * math.sqrt(0.95 * 0.05 / n_searches)
    assert abs(got.bias) <= limit + 3 * got.bias_error


@pytest.mark.parametrize(
    ("scale", "points", "seeds", "most"),
    # Where the curve is sharp and loads are few, verdicts leave the whole gap between two loads.
    [(0.12, 13, 4, 0.95), (0.03, 6, 2, 0.7)],
)
def test_near_misses_narrow_the_interval(scale: float, points: int, seeds: int, most: float) -> None:
    rng = np.random.default_rng(5)
    ratios = []
    for _ in range(12):
        seen = fixed_design(float(rng.uniform(170, 230)), scale, rng, points=points, seeds=seeds)
        with_metric, verdicts = fit_threshold(seen, AXIS), fit_threshold(without_shortfalls(seen), AXIS)
        ratios.append(with_metric.relative_half_width / verdicts.relative_half_width)
    assert np.median(ratios) < most


def test_a_shortfall_that_is_unrelated_to_the_load_changes_nothing() -> None:
    rng = np.random.default_rng(6)
    seen = fixed_design(200.0, 0.12, rng, "unrelated")
    with_metric, verdicts = fit_threshold(seen, AXIS), fit_threshold(without_shortfalls(seen), AXIS)
    assert with_metric.estimate == pytest.approx(verdicts.estimate, rel=0.03)
    assert with_metric.ci_low == pytest.approx(verdicts.ci_low, rel=0.05)
    assert with_metric.ci_high == pytest.approx(verdicts.ci_high, rel=0.05)


def test_the_best_of_equal_rates_is_drawn_towards_the_others() -> None:
    def at_rate(capacity: int) -> list[Observation]:
        return [Observation(at, 0, at <= capacity) for at in (25, 50, 100, 200, 400, 800)]

    lucky, others = at_rate(200), [at_rate(100), at_rate(100)]
    alone, compared = fit_threshold(lucky, AXIS), fit_threshold(lucky, AXIS, others)
    assert 200 < alone.estimate < 400
    assert compared.estimate < alone.estimate
    # A rate at which nothing trains says nothing about the others.
    useless = fit_threshold(lucky, AXIS, [at_rate(0)])
    assert useless.estimate == pytest.approx(alone.estimate, rel=0.05)


def test_the_order_of_the_trials_does_not_matter() -> None:
    rng = np.random.default_rng(9)
    seen = fixed_design(200.0, 0.12, rng)
    shuffled = [seen[i] for i in rng.permutation(len(seen))]
    assert fit_threshold(shuffled, AXIS) == fit_threshold(seen, AXIS)


def test_a_quarter_of_lapses_does_not_drag_the_midpoint() -> None:
    rng = np.random.default_rng(0)
    loads = [round(1.1**k) for k in range(8, 66)]
    seen = [Observation(load, seed, load < 200 and rng.random() < 0.75) for load in loads for seed in range(4)]
    found = fit_threshold(seen, AXIS)
    assert found.estimate == pytest.approx(200, rel=0.06)
    assert found.lapse == pytest.approx(0.25, abs=0.08)


def test_at_least_rests_on_a_load_that_most_trials_held() -> None:
    axis = Axis(1, 64)
    held = [Observation(at, seed, True) for at in (8, 16, 32, 64) for seed in range(3)]
    found = fit_threshold(held, axis)
    assert (found.status, found.estimate, found.limited_by) == (Status.AT_LEAST, 64, Limit.AXIS)
    stopped = fit_threshold([o for o in held if o.at < 64], axis)
    assert (stopped.status, stopped.estimate, stopped.limited_by) == (Status.AT_LEAST, 32, Limit.SEARCH)
    failed_top = [replace(o, held=False) if o.at == 64 else o for o in held]
    found = fit_threshold(failed_top, axis)
    assert (found.status, found.limited_by) == (Status.ESTIMATED, None)
    assert found.ci_high is not None
    assert 32 < found.estimate < found.ci_high <= 64


def test_below_rests_on_a_load_that_most_trials_did_not_hold() -> None:
    failed = [Observation(at, seed, False) for at in (4, 8, 16) for seed in range(3)]
    found = fit_threshold(failed, Axis(4, 64))
    assert (found.status, found.estimate, found.limited_by) == (Status.BELOW, 4, Limit.AXIS)
    assert fit_threshold(failed, Axis(1, 64)).limited_by is Limit.SEARCH


def test_the_estimate_is_within_the_loads_tried_and_the_interval_within_the_axis() -> None:
    rng = np.random.default_rng(8)
    for _ in range(40):
        axis = Axis(1, int(rng.integers(100, 400)))
        loads = sorted({int(at) for at in rng.integers(20, axis.high + 1, size=4)})
        seen = [Observation(at, seed, bool(rng.random() < 0.5)) for at in loads for seed in range(2)]
        found = fit_threshold(seen, axis)
        assert loads[0] <= found.estimate <= loads[-1]
        assert found.ci_high is None or found.estimate <= found.ci_high <= axis.high
        assert found.ci_low is None or axis.low <= found.ci_low <= found.estimate
        if found.status is Status.AT_LEAST:
            top = [o.held for o in seen if o.at == loads[-1]]
            assert found.estimate == loads[-1]
            assert sum(top) > len(top) / 2


def test_a_fit_is_fast() -> None:
    seen = fixed_design(200.0, 0.12, np.random.default_rng(1))
    started = time.process_time()
    for _ in range(5):
        fit_threshold(seen, AXIS)
    assert (time.process_time() - started) / 5 < 0.1  # 0.01 to 0.02 s are usual


@pytest.mark.parametrize(
    ("criterion", "value", "shortfall"),
    [
        (Criterion("accuracy", 0.8), 0.6, 0.25),
        (Criterion("accuracy", 0.8), 0.8, 0.0),
        (Criterion("accuracy", 0.8), -3.0, 1.0),
        (Criterion("kl", 0.1, at_least=False), 0.4, 0.75),
        (Criterion("kl", 0.1, at_least=False), 0.05, 0.0),
    ],
)
def test_a_shortfall_is_a_share_of_the_criterion(criterion: Criterion, value: float, shortfall: float) -> None:
    assert criterion.shortfall(value) == pytest.approx(shortfall)


def test_a_protocol_of_the_first_estimator_is_written_as_before_the_field() -> None:
    first = Protocol(
        preset="quick",
        criterion=Criterion("f1", 0.99),
        seeds=2,
        learning_rates=(0.1,),
        steps=10,
        dtype="float32",
        ci_width=0.05,
        mode="capacity",
        limits=(1, 10),
    )
    assert "estimator" not in first.model_dump_json()
    assert Protocol.model_validate_json(first.model_dump_json()) == first
    second = first.model_copy(update={"estimator": 2})
    assert '"estimator":2' in second.model_dump_json()


@pytest.mark.parametrize("rising", [False, True])
def test_an_interval_has_the_gap_in_it_that_the_loads_do_not_resolve(rising: bool) -> None:
    """All held at 98 and failed at 103, whose shortfalls alone would place the capacity near 103."""
    axis = Axis(1, 800, rising=rising)
    seen = [
        Observation(at, seed, (at <= 98) != rising, None if (at <= 98) != rising else 0.01)
        for at in (80, 98, 103, 120)
        for seed in range(24)
    ]
    found = fit_threshold(seen, axis)
    assert found.ci_low is not None
    assert found.ci_high is not None
    assert found.ci_low <= 98
    assert found.ci_high >= 103
    third = fit_threshold(seen, axis, version=3)
    assert third.ci_low is not None
    assert third.ci_high is not None
    assert third.ci_low > 98 or third.ci_high < 103


def test_a_curve_that_the_loads_resolve_keeps_the_interval_of_its_posterior() -> None:
    seen = fixed_design(200.0, 0.2, np.random.default_rng(4), points=25, seeds=24)
    assert fit_threshold(seen, AXIS) == fit_threshold(seen, AXIS, version=3)
