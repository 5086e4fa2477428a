"""Other readings of the same trials: their order, what is known of trials that stopped, and the most bits."""

from __future__ import annotations

import pytest

from capbench.contract.task import Criterion
from capbench.documents.result import Protocol, Reading, Trial, TrialStatus
from capbench.measure.estimate.readings import read_trials

LOADS = (25, 50, 71, 84, 100, 119, 141, 168, 200, 400)


def protocol(criterion: Criterion, mode: str = "capacity") -> Protocol:
    return Protocol(
        preset="quick",
        criterion=criterion,
        seeds=4,
        learning_rates=(0.1,),
        steps=100,
        dtype="float32",
        ci_width=0.05,
        mode=mode,
        at=None if mode == "capacity" else 100,
        limits=(1, 400),
        estimator=2,
    )


def trial(load: int, seed: int, value: float, held: bool, metric: str = "accuracy") -> Trial:
    status = TrialStatus.HELD if held else TrialStatus.NOT_HELD
    metrics = {metric: value, "bits": 3.0 * min(load, 141) - 0.5 * max(0, load - 141) + seed}
    return Trial(
        key=f"{load} {seed}", load=load, seed=seed, learning_rate=0.1, status=status, steps=50, metrics=metrics
    )


def trials(held_value: float = 1.0) -> list[Trial]:
    """All seeds hold 100 facts; above, accuracy falls to 0.9 between 141 and 168."""
    values = {119: 0.97, 141: 0.93, 168: 0.87, 200: 0.7, 400: 0.3}
    return [trial(load, seed, values.get(load, held_value), load <= 100) for load in LOADS for seed in range(4)]


ACCURACY = Criterion("accuracy", 0.99)


def read(seen: list[Trial], criterion: Criterion = ACCURACY) -> dict[str, Reading]:
    return {reading.name: reading for reading in read_trials(seen, protocol(criterion))}


def test_a_laxer_criterion_and_the_best_seed_hold_more() -> None:
    got = read(trials())
    assert 100 < got["half"].estimate < 119
    assert 141 < got["lax"].estimate < 168
    assert got["half"].estimate < got["any_seed"].estimate < 168
    assert "any of 4 seeds" in got["any_seed"].note
    assert "accuracy ≥ 0.9" in got["lax"].note


def test_a_perfect_metric_is_read_where_it_was_recorded() -> None:
    got = read(trials())
    assert got["perfect"].status == "estimated"
    assert 100 < got["perfect"].estimate < 119


def test_trials_that_stopped_short_of_a_perfect_metric_give_a_limit() -> None:
    seen = [
        t.model_copy(update={"metrics": {**t.metrics, "accuracy": 0.995}}) if t.load in (84, 100) else t
        for t in trials()
    ]
    got = read(seen)
    assert got["perfect"].status == "at_least"
    assert 71 <= got["perfect"].estimate <= 84
    assert "8 held trials stopped short of it" in got["perfect"].note
    assert got["perfect"].ci_high == pytest.approx(got["half"].ci_high, rel=0.1)


def test_the_most_bits_are_the_best_mean_over_all_loads() -> None:
    got = read(trials())
    assert got["most_bits"].unit == "bits"
    assert got["most_bits"].estimate == pytest.approx(3.0 * 141 + 1.5)
    assert got["most_bits"].ci_low is not None
    assert got["most_bits"].ci_low < got["most_bits"].estimate
    assert "141 facts" in got["most_bits"].note


def test_bits_that_still_rise_at_the_last_load_are_a_lower_limit() -> None:
    got = read([t for t in trials() if t.load <= 141])
    assert got["most_bits"].status == "at_least"


def test_a_metric_that_must_come_down_has_no_lax_and_no_perfect_reading() -> None:
    seen = [trial(load, seed, 0.05 if load <= 100 else 0.5, load <= 100, "kl") for load in LOADS for seed in range(4)]
    assert set(read(seen, Criterion("kl", 0.1, at_least=False))) == {"half", "any_seed", "most_bits"}


def test_only_a_search_for_the_largest_load_has_readings() -> None:
    assert read_trials(trials(), protocol(Criterion("accuracy", 0.99), "at")) == ()
