"""The runner: plan, skip what is stored, execute, store, summarise."""

from __future__ import annotations

import time
from contextlib import nullcontext
from dataclasses import replace

from capbench.capacity import SearchPlan, next_trials
from capbench.document import command, document
from capbench.engine.precision import check_precision
from capbench.errors import CannotConstruct, RunFailed, RunInterrupted
from capbench.executors import Workplace
from capbench.executors.workplace import open_workplace
from capbench.interrupts import Interrupt, deferred
from capbench.measurement import Measurement, Progress, Share
from capbench.presets import CONSTRUCTION
from capbench.registry import Registry
from capbench.request import Request
from capbench.results import Result
from capbench.settings import configure
from capbench.solver import ConstructiveSolver
from capbench.store import Store
from capbench.summary import axis_of, leading_rate, outcomes
from capbench.theory import bracket, refuse_broken


def execute(
    request: Request,
    registry: Registry,
    store: Store,
    progress: Progress,
    workplace: Workplace | None = None,
    asked_to_end: Interrupt | None = None,
    share: Share | None = None,
) -> Result:
    """Carries out a request: searches, stores every trial as it ends, and returns the result document.

    A series opens one workplace for all its runs, listens for interrupts itself, and may have trained for the run.
    """
    share = share or Share()
    started, protocol = time.perf_counter() - share.seconds, request.check()
    workplace = workplace or open_workplace(request.where)
    check_precision(protocol.dtype, workplace.device)
    workplace.prepare(request.plugins)
    with nullcontext(asked_to_end) if asked_to_end else deferred() as interrupt:
        run = Measurement(request, protocol, registry, store, progress, workplace, interrupt, share=share)
        try:
            return _carry_out(run, started)
        except KeyboardInterrupt:
            raise RunInterrupted(
                f"interrupted: {run.n_trained} newly trained trials are stored; "
                f"the same command goes on from there: {command(request)}"
            ) from None


def _carry_out(run: Measurement, started: float) -> Result:
    measure(run)
    if len(run.failed()) == len(run.trials):
        raise RunFailed(f"all {len(run.trials)} trials failed; the first: {run.trials[0].reason}")
    constructed = _constructed(run)
    result = document(run, constructed, time.perf_counter() - started)
    run.store.add_run(result)
    refuse_broken(result.bounds)
    return result


def measure(run: Measurement) -> None:
    """Trains what the protocol asks for: seeds at one load, or a search."""
    if run.protocol.mode in ("at", "overload"):
        assert run.protocol.at is not None
        points = [(run.protocol.at, seed) for seed in range(run.protocol.seeds)]
        run.measure(points, run.protocol.learning_rates or (None,))
    else:
        _search(run, _plan(run))


def _constructed(run: Measurement) -> Measurement | None:
    """The same pair by explicit weights, measured."""
    side = construction(run)
    if side is not None:
        measure(side)
    return side


def construction(run: Measurement) -> Measurement | None:
    """The same pair by explicit weights, where a trained capacity was asked for and a solver knows the pair."""
    if run.protocol.mode != "capacity" or isinstance(run.request.solver.plugin, ConstructiveSolver):
        return None
    for provided in run.registry.solvers.values():
        if not issubclass(provided.cls, ConstructiveSolver):
            continue
        solver = configure(provided, run.request.preset.name, {})
        request = replace(run.request, solver=solver, learning_rates=(), preset=CONSTRUCTION, seeds=None, budget=None)
        try:
            protocol = request.check()
        except CannotConstruct:
            continue
        return Measurement(request, protocol, run.registry, run.store, run.progress, run.workplace, run.interrupt)
    return None


def _plan(run: Measurement) -> SearchPlan:
    """The search that a preset pays for, started where theory points."""
    request, preset = run.request, run.request.preset
    axis = axis_of(run.protocol)
    if run.protocol.parameter:
        present = getattr(request.architecture.plugin, run.protocol.parameter)
        around = (float(axis.low), float(min(4 * present, axis.high)))
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
        budget=run.protocol.budget or preset.budget,
    )


def _search(run: Measurement, plan: SearchPlan) -> None:
    """Rounds of trials until the interval is narrow enough; after each, the worse half of the rates is dropped."""
    rates: list[float | None] = [*run.protocol.learning_rates] or [None]
    while True:
        leader = leading_rate(run.trials, run.protocol)
        seen = outcomes([t for t in run.trials if t.learning_rate == leader])
        wanted = next_trials(seen, plan)
        if not wanted:
            return
        run.measure(wanted, rates)
        rates = _better_half(run, rates)


def _better_half(run: Measurement, rates: list[float | None]) -> list[float | None]:
    """The rates that go on: half of them, the leader first, and a rival beside it until the last two are left."""
    if len(rates) == 1:
        return rates
    kept: list[float | None] = []
    while len(kept) < (max(len(rates) // 2, 2) if len(rates) > 2 else 1):
        rest = [t for t in run.trials if t.learning_rate in rates and t.learning_rate not in kept]
        kept.append(leading_rate(rest, run.protocol))
    return kept
