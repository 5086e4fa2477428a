"""Time to a capacity within ± 5 %: the search, against a grid of loads trained one model at a time."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest
import torch
from cases import PlainLoop

from capbench.documents.result import Result, TrialStatus
from capbench.engine.evaluation import Lane, stopping_status
from capbench.engine.train import CHECK_EVERY
from capbench.engine.trials import Setup, TrialSpec
from capbench.executors.backends import ThisProcess
from capbench.measure.estimate.summary import observations
from capbench.measure.estimate.threshold import Axis, fit_threshold
from capbench.measure.options import RunOptions
from capbench.measure.request import build_request
from capbench.measure.run import execute
from capbench.measure.session import Session
from capbench.registry.registry import load_registry
from capbench.store.store import Store

NEAR = 1.5
"""The grid's capacity is fitted to its loads within this factor of the search's: a logistic curve describes a
transition, and with hundreds of trials far from it the fit would be decided by the tails."""
SAMPLE = 15
"""Trials of the grid that are really trained in the loop; the rest is multiplied."""


class Quiet:
    def compiling(self) -> None: ...
    def plan(self, *_: object) -> None: ...
    def trained(self, *_: object) -> None: ...
    def step(self, *_: object) -> None: ...


@pytest.fixture(scope="module")
def registry():
    return load_registry()


@pytest.fixture(scope="module")
def found(registry, tmp_path_factory) -> dict[str, object]:
    """What the search found, for the grid to be as fine as it."""
    return {"home": tmp_path_factory.mktemp("store")}


def test_search(benchmark, registry, found) -> None:
    request = build_request(RunOptions(task="triples", arch="aot"), registry)
    store = Store(Path(found["home"]))
    benchmark.group = "end to end"
    result = benchmark.pedantic(execute, (request, registry, store, Quiet()), rounds=1)
    found.update(result=result, request=request, store=store)
    benchmark.extra_info.update(
        variant="search",
        trials=len(result.trials),
        compile_seconds=result.timing.compile_seconds,
        estimate=result.capacity.estimate,
        low=result.capacity.ci_low,
        high=result.capacity.ci_high,
    )


def test_grid_and_loop(benchmark, registry, found) -> None:
    result: Result = found["result"]
    run = Session(found["request"], registry, found["store"], Quiet(), ThisProcess(torch.device("cpu")))
    points = grid_points(result)
    seeds = range(max(Counter(t.load for t in result.trials if t.learning_rate == result.rates.best).values()))
    plan = [(load, seed, rate) for load in points for seed in seeds for rate in result.protocol.learning_rates]
    chosen = random.Random(0).sample(plan, SAMPLE)
    benchmark.group = "end to end"
    benchmark.pedantic(lambda: [train_alone(run.setup(trial[0]), TrialSpec(*trial)) for trial in chosen], rounds=1)
    # The grid's interval comes from the same trials, trained by the engine at the best rate: the loop would take hours.
    near = [load for load in points if 1 / NEAR <= load / result.capacity.estimate <= NEAR]
    run.measure([(load, seed) for load in near for seed in seeds], [result.rates.best])
    grid = fit_threshold(observations(run.trials, run.protocol.criterion), Axis(1, max(points)))
    benchmark.extra_info.update(
        variant="grid and loop", trials=len(plan), sampled=SAMPLE, near=NEAR,
        estimate=grid.estimate, low=grid.ci_low, high=grid.ci_high,
    )  # fmt: skip
    assert grid.ci_low <= result.capacity.ci_high
    assert result.capacity.ci_low <= grid.ci_high


def grid_points(result: Result) -> list[int]:
    """Loads from the smallest to the largest that the search tried, 5 % apart."""
    low, high = min(t.load for t in result.trials), max(t.load for t in result.trials)
    points, at = [], float(low)
    while at < high:
        points.append(round(at))
        at *= 1 + result.protocol.ci_width
    return sorted({*points, high})


def train_alone(setup: Setup, trial: TrialSpec) -> TrialStatus:
    """One model as a careful researcher trains it, with the same early ends."""
    loop, steps, lane = PlainLoop(setup, trial, as_textbook=True), setup.training.steps, Lane(trial, {})
    for step in range(1, steps + 1):
        loop.step()
        if step % CHECK_EVERY == 0 or step == steps:
            status = stopping_status(setup.training, loop.evaluate(), step, lane)
            if status is not None:
                return status
    raise AssertionError("the last step ends every trial")
