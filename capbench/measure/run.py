"""One run: search or measure, store every trial as it ends, and summarise."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial

from capbench.contract.solver import ConstructiveSolver
from capbench.documents.result import Result, Selection, Trial
from capbench.engine.devices import check_precision
from capbench.engine.lane_program import keep_programs
from capbench.errors import CannotConstruct, RunFailed, RunInterrupted
from capbench.executors.backends import open_pool_backend
from capbench.executors.executor import Backend
from capbench.executors.interrupts import Interrupt, deferred
from capbench.measure.document import command, document
from capbench.measure.estimate.floor import above_floor
from capbench.measure.estimate.precision import at_precision
from capbench.measure.estimate.search import SearchPlan, next_trials
from capbench.measure.estimate.summary import (
    axis_of,
    find_threshold,
    holds_fewer,
    leading_rate,
    observations_by_rate,
    rates_in_use,
)
from capbench.measure.presets import CONSTRUCTION
from capbench.measure.request import Request
from capbench.measure.session import SELECTION_SEED, RunListener, Session
from capbench.measure.settle import RATE_STEP, settle, with_selection
from capbench.measure.shapes import ChosenShape, choose_shape
from capbench.measure.theory import bracket, refuse_broken
from capbench.registry.registry import Registry
from capbench.registry.settings import configure
from capbench.store.store import Store

MAX_EXTENSIONS = 8
"""Factors of two by which --settle extends the learning rates at most."""
FURTHER_BUDGET = 4
"""The search at each precision may add the budget divided by this: it starts from the trials of all searches before."""
FEW_POINTS = 4
"""Loads of the first round where the capacity is known roughly."""
PROBES = 8
"""Trials by which a rate beyond those tried must keep up with the best before it gets all of them."""
MAX_WORKERS = 8
"""Workers of a single run at most: a round of a search has about 32 trials, and fewer than four per worker are slow."""


def execute(
    request: Request,
    registry: Registry,
    store: Store,
    listener: RunListener,
    backend: Backend | None = None,
    interrupt: Interrupt | None = None,
) -> Result:
    """Measures what a request asks for and returns the result document.

    A study passes the backend that its runs share, and handles interrupts itself.
    """
    (result,) = execute_jointly([request], registry, store, listener, backend, interrupt)
    if isinstance(result, RunFailed):
        raise result
    return result


def execute_jointly(
    requests: Sequence[Request],
    registry: Registry,
    store: Store,
    listener: RunListener,
    backend: Backend | None = None,
    interrupt: Interrupt | None = None,
) -> list[Result | RunFailed]:
    """Runs one request, or several that differ only in their load: their trials are then trained as one.

    Returns the result of each request, or why it has none.
    """
    started, first = time.perf_counter(), requests[0]
    with (
        nullcontext(backend) if backend else _open_backend(first, store) as opened,
        nullcontext(interrupt) if interrupt else deferred() as pending,
    ):
        check_precision(first.protocol.dtype, opened.device)
        opened.prepare(first.plugins)
        session = Session(first, registry, store, listener, opened, pending)
        try:
            shape = choose_shape(session)
            if first.options.settle:
                return [_finish(*_settle(session, shape), started)]
            _measure(session, [request.protocol.at for request in requests])
            if len(requests) == 1:
                return [_finish(session, None, started)]
            elapsed = time.perf_counter() - started
            parts = [session.part(request) for request in requests]
            return [_finish(part, None, time.perf_counter() - share * elapsed) for part, share in parts]
        except KeyboardInterrupt:
            if pending.is_repeated:
                opened.kill()
            raise RunInterrupted(
                f"interrupted: {session.n_trained} newly trained trials are stored; "
                f"the same command goes on from there: {command(session.request)}"
            ) from None


def _open_backend(request: Request, store: Store) -> Backend:
    """The backend of a single run: on a CPU a worker pool, whose workers share the trials of each round."""
    keep_programs(store.path.parent / "compiled")
    return open_pool_backend(request.options.target, MAX_WORKERS, request.plugins, store.closed())


def _settle(session: Session, shape: ChosenShape | None) -> tuple[Session, Selection]:
    """Chooses learning rate and steps, and measures with them; returns the session of the measurement."""

    def open_session(request: Request) -> Session:
        return replace(session, request=request, offset=SELECTION_SEED, trials=[], trained=set(), cost=session.cost)

    settled = settle(session.request, shape, open_session, _search_extending)
    measured = replace(session, request=settled.request, trials=[], trained=set(), cost=session.cost)
    _measure(measured)
    return measured, settled.selection


def _search_extending(session: Session, around: tuple[float, float] | None, width: float) -> None:
    """A coarse search that extends the learning rates until the best one is not at an end of those tried.

    A larger --budget than the preset's is for the measurement.
    """
    plan = search_plan(session.request, session.registry)
    budget = min(plan.budget, session.request.preset.budget)
    plan = replace(plan, ci_width=max(plan.ci_width, width), bracket=around or plan.bracket, budget=budget)
    _search(session, replace(plan, first_points=FEW_POINTS) if around else plan, extends=True)


def _finish(session: Session, selection: Selection | None, started: float) -> Result | RunFailed:
    """The result document of a session that started at a time, stored; or why there is none."""
    failure = session.failure()
    if failure is not None:
        return failure
    constructed = construction(session)
    if constructed is not None:
        _measure(constructed)
    result = with_selection(document(session, constructed, time.perf_counter() - started), selection)
    session.store.add_run(result)
    try:
        refuse_broken(result.bounds)
    except RunFailed as broken:
        return broken
    return result


def _measure(session: Session, loads: Sequence[int | None] = ()) -> None:
    """Trains what the protocol asks for: seeds at one load or several, or a search."""
    protocol = session.protocol
    if protocol.mode in ("at", "overload"):
        points = [(load, seed) for load in loads or [protocol.at] if load for seed in range(protocol.seeds)]
        session.measure(points, protocol.learning_rates or (None,))
    else:
        plan = search_plan(session.request, session.registry)
        _search(session, plan)
        for bits in protocol.precisions:
            _search_again(session, plan, partial(at_precision, protocol=protocol, bits=bits))
        if above_floor(session.trials, protocol) != session.trials:
            _search_again(session, plan, partial(above_floor, protocol=protocol))


def _search_again(session: Session, plan: SearchPlan, view: Callable[[Sequence[Trial]], list[Trial]]) -> None:
    """Further rounds, at the leading rate, until the capacity of trials judged in another way is narrow too."""
    protocol = session.protocol
    more = plan.budget // FURTHER_BUDGET
    n_before = None
    while True:
        seen, others = observations_by_rate(view(session.trials), protocol)
        n_before = len(seen) if n_before is None else n_before
        wanted = next_trials(seen, replace(plan, budget=n_before + more), others)
        if not wanted:
            return
        session.measure(wanted, [leading_rate(session.trials, protocol)])


def construction(session: Session) -> Session | None:
    """A session for the same pair by explicit weights, where a trained capacity is asked for and a solver has them."""
    if session.protocol.mode != "capacity" or isinstance(session.request.solver.plugin, ConstructiveSolver):
        return None
    options = session.request.options.replaced(rates=(), seeds=None, budget=None, settle=None)
    for provided in session.registry.solvers.values():
        if not (issubclass(provided.cls, ConstructiveSolver) and provided.cls.beside_training):
            continue
        solver = configure(provided, session.request.preset.name, {})
        try:
            request = replace(session.request, solver=solver, options=options, preset=CONSTRUCTION)
        except CannotConstruct:
            continue
        return Session(request, session.registry, session.store, session.listener, session.backend, session.interrupt)
    return None


def search_plan(request: Request, registry: Registry) -> SearchPlan:
    """The search plan: limits from the preset, start range from the bounds."""
    preset, protocol = request.preset, request.protocol
    axis = axis_of(protocol)
    if protocol.parameter:
        present = getattr(request.architecture.plugin, protocol.parameter)
        around = (float(axis.low), float(min(4 * present, axis.high)))
    else:
        bounds = [provided.cls for provided in registry.bounds.values()]
        with registry.bound_calls():
            around = bracket(bounds, request.task.plugin, request.architecture.plugin)
    return SearchPlan(
        axis=axis,
        bracket=around,
        ci_width=protocol.ci_width,
        seeds=protocol.seeds,
        first_points=preset.first_points,
        first_seeds=preset.first_seeds,
        batch=preset.batch,
        budget=protocol.budget or preset.budget,
    )


def _search(session: Session, plan: SearchPlan, extends: bool = False) -> None:
    """Rounds of trials until the interval is narrow enough; after each, the worse half of the rates is dropped.

    A session that has trials goes on from them. With `extends`, rates are added, and dropped down to one at once.
    """
    rates: list[float | None] = [*session.protocol.learning_rates] or [None]
    least = 1 if extends else 2
    if session.trials:
        rates = _better_half(session, rates_in_use(session.trials), least)
    while True:
        seen, others = observations_by_rate(session.trials, session.protocol)
        wanted = next_trials(seen, plan, others)
        if not wanted:
            return
        session.measure(wanted, rates)
        if extends:
            rates = _extended(session, rates)
        rates = _better_half(session, rates, least)


def _extended(session: Session, rates: list[float | None]) -> list[float | None]:
    """The rates and, while the best one is at an end of all that were tried, the next one beyond it.

    A rate that holds fewer than the best of the trials nearest to the capacity gets no others.
    """
    for _ in range(MAX_EXTENSIONS):
        best = leading_rate(session.trials, session.protocol)
        tried = sorted({trial.learning_rate for trial in session.trials if trial.learning_rate is not None})
        if best is None or tried[0] < best < tried[-1]:
            break
        beyond = best * RATE_STEP if best == tried[-1] else best / RATE_STEP
        nearest = _nearest_first(session, best)
        session.measure(nearest[:PROBES], [beyond])
        if not holds_fewer(session.trials, beyond, best):
            if len(nearest) > PROBES:
                session.measure(nearest[PROBES:], [beyond])
            rates = [*rates, beyond]
    return rates


def _nearest_first(session: Session, rate: float) -> list[tuple[int, int]]:
    """Load and seed of each trial at a learning rate, those nearest to the capacity first."""
    capacity = find_threshold(session.trials, session.protocol).estimate
    own = [trial for trial in session.trials if trial.learning_rate == rate]
    own.sort(key=lambda trial: (abs(math.log(trial.at / capacity)), trial.at, trial.seed))
    return [(trial.at, trial.seed - session.first_seed) for trial in own]


def _better_half(session: Session, rates: Sequence[float | None], least: int) -> list[float | None]:
    """The rates that go on: the better half, and at least so many until only two are left."""
    n_kept = max(len(rates) // 2, least) if len(rates) > 2 else 1
    kept: list[float | None] = []
    while len(kept) < n_kept:
        rest = [t for t in session.trials if t.learning_rate in rates and t.learning_rate not in kept]
        kept.append(leading_rate(rest, session.protocol))
    return kept
