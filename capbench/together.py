"""Runs of a series that differ in their load alone are trained together: trials of equal shape share a stack."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext

from capbench.executors import Workplace
from capbench.interrupts import Interrupt, deferred
from capbench.measurement import Measurement, Progress, Share
from capbench.registry import Registry
from capbench.request import Request
from capbench.store import Store


def bundles(requests: Sequence[Request]) -> list[list[int]]:
    """Which requests can be trained together, by their places; those at one load each that are otherwise the same."""
    alike: dict[tuple[str, ...], list[int]] = {}
    for place, request in enumerate(requests):
        if request.at is not None and request.minimize is None:
            alike.setdefault(_all_but_load(request), []).append(place)
    return [places for places in alike.values() if len(places) > 1]


def train_together(
    requests: Mapping[int, Request],
    registry: Registry,
    store: Store,
    progress: Progress,
    workplace: Workplace,
    asked_to_end: Interrupt | None = None,
) -> dict[int, Share]:
    """Trains what is not stored of all these runs as one, and says what each has of it."""
    started, first = time.perf_counter(), next(iter(requests.values()))
    with nullcontext(asked_to_end) if asked_to_end else deferred() as interrupt:
        run = Measurement(first, first.check(), registry, store, progress, workplace, interrupt)
        loads = [request.at for request in requests.values() if request.at is not None]
        points = [(load, seed) for load in loads for seed in range(run.protocol.seeds)]
        run.measure(points, run.protocol.learning_rates or (None,))
    seconds = time.perf_counter() - started
    trained = [trial for trial in run.trials if trial.key in run.trained]
    n_steps = sum(trial.steps for trial in trained) or 1
    shares = {}
    for place, request in requests.items():
        own = [trial for trial in trained if trial.load == request.at]
        part = sum(trial.steps for trial in own) / n_steps
        shares[place] = Share(frozenset(trial.key for trial in own), run.cost.part(part), part * seconds)
    return shares


def _all_but_load(request: Request) -> tuple[str, ...]:
    """All that decides how a request is carried out, but for its load, as text."""
    plugins = (f"{each.plugin!r} {each.provenance} {each.code_hash}" for each in request.plugins)
    protocol = request.check().model_copy(update={"at": None})
    return (*plugins, protocol.model_dump_json(), repr((request.where, request.compile_mode, request.trial_timeout)))
