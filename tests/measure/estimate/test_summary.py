"""What a run reports of its trials under --minimize: the least value that passes, and the metrics there."""

from __future__ import annotations

import pytest

from capbench.contract.task import Criterion
from capbench.documents.result import Protocol, Trial, TrialStatus
from capbench.measure.estimate.summary import least_passing, summarise


def protocol(unit: int) -> Protocol:
    return Protocol(
        preset="quick",
        criterion=Criterion("f1", 0.99),
        seeds=8,
        learning_rates=(0.1,),
        steps=100,
        dtype="float32",
        ci_width=0.05,
        mode="minimize",
        parameter="d_qk_total",
        at=32,
        limits=(unit, 64 * unit),
        unit=unit,
        estimator=2,
    )


def trial(budget: int, seed: int, held: bool) -> Trial:
    return Trial(
        key=f"{budget} {seed}",
        load=32,
        budget=budget,
        seed=seed,
        learning_rate=0.1,
        status=TrialStatus.HELD if held else TrialStatus.NOT_HELD,
        steps=50,
        metrics={"f1": 1.0 if held else 0.5, "bits": 100.0 if held else 40.0},
    )


@pytest.mark.parametrize("unit", [1, 4])
def test_the_least_budget_is_a_value_that_passes_and_not_the_midpoint_before_it(unit: int) -> None:
    # One half fails up to 2 units; all hold from 3.
    trials = [trial(n * unit, seed, held=n >= 3) for n in (1, 2, 3, 4, 6) for seed in range(8)]
    found = summarise(trials, protocol(unit))
    assert found.capacity.estimate == 3 * unit
    assert (found.capacity.ci_low, found.capacity.ci_high) == (3 * unit, 3 * unit)
    assert (found.metrics["bits"], found.metrics["f1"]) == (100.0, 1.0), "at the value that passes"


def test_where_the_least_passing_value_was_not_tried_the_metrics_are_those_of_the_next_one() -> None:
    trials = [trial(n, seed, held=n >= 12) for n in (4, 8, 12, 16) for seed in range(8)]
    found = summarise(trials, protocol(1))
    assert 9 <= found.capacity.estimate <= 12
    assert found.metrics["bits"] == 100.0


@pytest.mark.parametrize(("threshold", "multiple"), [(0.3, 4), (4.0, 4), (4.1, 8), (8.0 + 1e-12, 8), (999.0, 256)])
def test_the_least_passing_multiple_by_hand(threshold: float, multiple: int) -> None:
    assert least_passing(threshold, protocol(4)) == multiple
