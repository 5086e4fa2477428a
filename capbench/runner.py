"""The runner: plan, skip what is stored, execute, store, summarise."""

from __future__ import annotations

import time

from capbench.capacity import SearchPlan, next_trials
from capbench.document import document
from capbench.engine.devices import resolve_device
from capbench.errors import RunFailed
from capbench.measurement import Measurement, Progress
from capbench.registry import Registry
from capbench.request import Request
from capbench.results import Result
from capbench.store import Store
from capbench.summary import axis_of, leading_rate, outcomes
from capbench.theory import bracket, refuse_broken


def execute(request: Request, registry: Registry, store: Store, progress: Progress) -> Result:
    """Carries out a request: searches, stores every trial as it ends, and returns the result document."""
    started = time.perf_counter()
    run = Measurement(request, request.check(), registry, store, progress, resolve_device(request.device))
    if run.protocol.mode == "at":
        assert run.protocol.at is not None
        run.measure([(run.protocol.at, seed) for seed in range(run.protocol.seeds)], run.protocol.learning_rates)
    else:
        _search(run, _plan(run))
    if len(run.failed()) == len(run.trials):
        raise RunFailed(
            f"all {len(run.trials)} trials failed; the first: {(run.trials[0].error or '').strip().splitlines()[-1]}"
        )
    result = document(run, time.perf_counter() - started)
    store.add_run(result)
    refuse_broken(result.bounds)
    return result


def _plan(run: Measurement) -> SearchPlan:
    """The search that a preset pays for, started where theory points."""
    request, preset = run.request, run.request.preset
    axis = axis_of(run.protocol)
    if run.protocol.parameter:
        present = getattr(request.architecture.plugin, run.protocol.parameter)
        around = (1.0, float(min(4 * present, axis.high)))
    else:
        bounds = [provided.cls for provided in run.registry.bounds.values()]
        around = bracket(bounds, request.task.plugin, request.architecture.plugin)
    return SearchPlan(
        axis=axis,
        bracket=around,
        ci_width=run.protocol.ci_width,
        seeds=run.protocol.seeds,
        first_points=preset.first_points,
        first_seeds=preset.first_seeds,
        batch=preset.batch,
        budget=preset.budget,
    )


def _search(run: Measurement, plan: SearchPlan) -> None:
    """Rounds of trials until the interval is narrow enough; after each, the worse half of the rates is dropped."""
    rates = list(run.protocol.learning_rates)
    while True:
        leader = leading_rate(run.trials, run.protocol)
        seen = outcomes([t for t in run.trials if t.learning_rate == leader])
        wanted = next_trials(seen, plan)
        if not wanted:
            return
        run.measure(wanted, rates)
        rates = _better_half(run, rates)


def _better_half(run: Measurement, rates: list[float]) -> list[float]:
    """The rates that go on: the leader first, then by how much they hold."""
    kept: list[float] = []
    while len(kept) < (len(rates) + 1) // 2:
        rest = [t for t in run.trials if t.learning_rate in rates and t.learning_rate not in kept]
        leader = leading_rate(rest, run.protocol)
        assert leader is not None
        kept.append(leader)
    return kept
