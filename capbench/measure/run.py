"""One run: search or measure, store every trial as it ends, and summarise."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace

from capbench.contract.solver import ConstructiveSolver
from capbench.documents.result import Result
from capbench.engine.devices import check_precision
from capbench.engine.step import keep_programs
from capbench.errors import CannotConstruct, RunFailed, RunInterrupted
from capbench.executors.backends import open_pool_backend
from capbench.executors.executor import Backend
from capbench.executors.interrupts import Interrupt, deferred
from capbench.measure.document import command, document
from capbench.measure.presets import CONSTRUCTION
from capbench.measure.request import Request
from capbench.measure.search import SearchPlan, next_trials
from capbench.measure.session import RunListener, Session
from capbench.measure.shapes import choose_shape
from capbench.measure.summary import axis_of, leading_rate, observations
from capbench.measure.theory import bracket, refuse_broken
from capbench.registry.registry import Registry
from capbench.registry.settings import configure
from capbench.store.store import Store

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
            choose_shape(session)
            _measure(session, [request.protocol.at for request in requests])
            elapsed = time.perf_counter() - started
            if len(requests) == 1:
                return [_finish(session, elapsed)]
            parts = [session.part(request) for request in requests]
            return [_finish(part, share * elapsed) for part, share in parts]
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


def _finish(session: Session, elapsed: float) -> Result | RunFailed:
    """The result document of a session that took so long, stored; or why there is none."""
    started = time.perf_counter() - elapsed
    if len(session.failed()) == len(session.trials):
        return RunFailed(f"all {len(session.trials)} trials failed; the first: {session.trials[0].reason}")
    constructed = construction(session)
    if constructed is not None:
        _measure(constructed)
    result = document(session, constructed, time.perf_counter() - started)
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
        _search(session, _plan(session))


def construction(session: Session) -> Session | None:
    """A session for the same pair by explicit weights, where a trained capacity is asked for and a solver has them."""
    if session.protocol.mode != "capacity" or isinstance(session.request.solver.plugin, ConstructiveSolver):
        return None
    options = session.request.options.replaced(rates=(), seeds=None, budget=None)
    for provided in session.registry.solvers.values():
        if not issubclass(provided.cls, ConstructiveSolver):
            continue
        solver = configure(provided, session.request.preset.name, {})
        try:
            request = replace(session.request, solver=solver, options=options, preset=CONSTRUCTION)
        except CannotConstruct:
            continue
        return Session(request, session.registry, session.store, session.listener, session.backend, session.interrupt)
    return None


def _plan(session: Session) -> SearchPlan:
    """The search that the preset pays for, started where theory expects the capacity."""
    request, preset, protocol = session.request, session.request.preset, session.protocol
    axis = axis_of(protocol)
    if protocol.parameter:
        present = getattr(request.architecture.plugin, protocol.parameter)
        around = (float(axis.low), float(min(4 * present, axis.high)))
    else:
        bounds = [provided.cls for provided in session.registry.bounds.values()]
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


def _search(session: Session, plan: SearchPlan) -> None:
    """Rounds of trials until the interval is narrow enough; after each, the worse half of the rates is dropped."""
    rates: list[float | None] = [*session.protocol.learning_rates] or [None]
    while True:
        leader = leading_rate(session.trials, session.protocol)
        seen = observations([trial for trial in session.trials if trial.learning_rate == leader])
        wanted = next_trials(seen, plan)
        if not wanted:
            return
        session.measure(wanted, rates)
        rates = _better_half(session, rates)


def _better_half(session: Session, rates: list[float | None]) -> list[float | None]:
    """The rates that go on: the better half, and at least two until only two are left."""
    if len(rates) == 1:
        return rates
    kept: list[float | None] = []
    while len(kept) < (max(len(rates) // 2, 2) if len(rates) > 2 else 1):
        rest = [t for t in session.trials if t.learning_rate in rates and t.learning_rate not in kept]
        kept.append(leading_rate(rest, session.protocol))
    return kept
