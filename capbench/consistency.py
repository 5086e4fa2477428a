"""Whether a result document agrees with itself: its summaries with its trials, its trials with the search."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from pathlib import Path

from pydantic import JsonValue
from pydantic_core import to_jsonable_python

from capbench.engine.lanes import TrialSpec
from capbench.errors import CannotRepeat
from capbench.measurement import Measurement
from capbench.registry import Registry
from capbench.request import Request
from capbench.results import Result, Trial, TrialStatus
from capbench.runner import execute
from capbench.store import Store
from capbench.summary import summarise

EXACT = 1e-6
"""How far two numbers may be apart that the same arithmetic made."""
DERIVED = (
    "n_parameters",
    "capacity",
    "bits",
    "bits_per_parameter",
    "metrics",
    "data",
    "rates",
    "constructed",
    "run_id",
)
"""What the search must come to again, beside the bounds."""


class Silent:
    """Progress that nobody watches."""

    def plan(self, solver: str, n_trials: int, n_reused: int) -> None:
        """A round of trials begins."""

    def trained(self, trial: Trial) -> None:
        """A trial has ended."""

    def step(self, step: int, steps: int, n_alive: int) -> None:
        """Training goes on."""


class StatedTrials(Store):
    """A store of nothing but a document's trials: a search that needs another one is not the search that made it."""

    def trials(self, keys: Iterable[str]) -> dict[str, Trial]:
        """The stated trials of these keys, all of them or none."""
        wanted = list(keys)
        found = super().trials(wanted)
        if len(found) < len(wanted):
            raise CannotRepeat(
                f"trials: the search that led to this result needs {len(wanted) - len(found)} trials "
                "that the document does not have"
            )
        return found


def check_summaries(result: Result) -> list[str]:
    """What of a document does not follow from its own trials, as far as that can be said without its plugins."""
    if not result.trials:
        return ["trials: the document has none"]
    strangers = [line for trial in result.trials for line in _foreign(trial, result)]
    if strangers:
        return strangers
    summary = summarise(result.trials, result.protocol)
    bits = summary.metrics.get("bits", 0.0)
    pairs: list[tuple[str, JsonValue, JsonValue]] = [
        (f"capacity.{name}", getattr(result.capacity, name), getattr(summary.capacity, name))
        for name in ("kind", "estimate", "ci_low", "ci_high", "confidence", "status", "parameter")
    ]
    pairs += [("metrics", dict(result.metrics), dict(summary.metrics)), ("data", dict(result.data), dict(summary.data))]
    pairs += [
        ("bits", result.bits, bits),
        ("bits_per_parameter", result.bits_per_parameter, bits / result.n_parameters),
        ("rates", _plain(result.rates), _plain(summary.rates)),
    ]
    found = [line for name, stated, derived in pairs for line in differences(name, stated, derived)]
    return found + [line for trial in result.trials for line in _contradictions(trial, result)]


def _foreign(trial: Trial, result: Result) -> Iterator[str]:
    """A trial whose learning rate the protocol does not have is none of this run's."""
    rates = result.protocol.learning_rates or (None,)
    if trial.learning_rate not in rates:
        yield f"trials: {trial_name(trial)} has a learning rate that is not among protocol.learning_rates"


def _contradictions(trial: Trial, result: Result) -> Iterator[str]:
    """A trial that is said to hold must meet the criterion by its own metric, and one that meets it must hold."""
    criterion = result.protocol.criterion
    value = trial.metrics.get(criterion.metric)
    if trial.status is TrialStatus.FAILED or value is None:
        return
    meets = value >= criterion.threshold if criterion.at_least else value <= criterion.threshold
    if meets != (trial.status is TrialStatus.HELD) and trial.status is not TrialStatus.DIVERGED:
        yield f"trials: {trial_name(trial)} is said to be {trial.status.value}, its {criterion.metric} is {value:g}"


def check_keys(trials: Iterable[Trial], run: Measurement) -> list[str]:
    """Trials whose key is not that of their load, seed and rate: one of them was changed."""
    findings = []
    for trial in trials:
        if run.pair(place(trial)).key(TrialSpec(trial.load, trial.seed, trial.learning_rate)) != trial.key:
            findings.append(
                f"trials: {trial_name(trial)} has the key of another trial: its load, seed or rate was changed"
            )
    return findings


def replay(result: Result, request: Request, registry: Registry, folder: Path) -> list[str]:
    """Leads the search again over the stated trials; what comes out must be the document, bounds included."""
    store = StatedTrials(folder)
    try:
        for trial in (*result.trials, *(result.constructed.trials if result.constructed else ())):
            store.add_trials([trial], result.task.name, result.architecture.name)
        derived = execute(request, registry, store, Silent())
    finally:
        store.close()
    findings = [
        line
        for name in DERIVED
        for line in differences(name, _plain(getattr(result, name)), _plain(getattr(derived, name)))
    ]
    findings += differences("timing.grid_trials", result.timing.grid_trials, derived.timing.grid_trials)
    extra = len(result.trials) - len(derived.trials)
    if extra:
        findings.append(f"trials: {extra} of them are none that the search asks for")
    return findings + _bound_findings(result, derived, registry)


def _bound_findings(result: Result, derived: Result, registry: Registry) -> list[str]:
    """Bounds that come out otherwise here, that nobody here knows, or that were left out."""
    here = {bound.id: bound for bound in derived.bounds}
    stated = {bound.id: bound for bound in result.bounds}
    loaded_there = {(plugin.distribution, plugin.version) for plugin in result.environment.plugins}
    findings: list[str] = []
    for name, bound in stated.items():
        if name not in here:
            raise CannotRepeat(
                f"the bound {name!r} is of no plugin that the document names and that is installed here; "
                "install the one that provides it"
            )
        findings += differences(f"bounds.{name}", _plain(bound), _plain(here[name]))
    for name, provided in registry.bounds.items():
        origin = provided.provenance
        if name not in stated and (origin.distribution, origin.version) in loaded_there:
            findings.append(f"bounds.{name}: it was left out")
    return findings


def differences(name: str, stated: JsonValue, derived: JsonValue) -> Iterator[str]:
    """Where two JSON values differ, numbers in proportion."""
    if isinstance(stated, dict) and isinstance(derived, dict):
        for key in sorted({*stated, *derived}):
            yield from differences(f"{name}.{key}", stated.get(key), derived.get(key))
    elif isinstance(stated, list) and isinstance(derived, list) and len(stated) == len(derived):
        for place, (one, other) in enumerate(zip(stated, derived, strict=True)):
            yield from differences(f"{name}.{place}", one, other)
    elif not _same(stated, derived):
        yield f"{name}: stated {stated!r}, re-derived {derived!r}"


def _same(stated: JsonValue, derived: JsonValue) -> bool:
    numbers = isinstance(stated, int | float) and isinstance(derived, int | float)
    if numbers and not isinstance(stated, bool) and not isinstance(derived, bool):
        return math.isclose(float(stated), float(derived), rel_tol=EXACT, abs_tol=1e-12)  # type: ignore[arg-type]
    return stated == derived


def trial_name(trial: Trial) -> str:
    """A trial as a person points at it."""
    rate = "" if trial.learning_rate is None else f", rate {trial.learning_rate:g}"
    return f"load {trial.load}, seed {trial.seed}{rate}"


def place(trial: Trial) -> int:
    """Where on the axis a trial stands: its load, or its budget where that is what was searched."""
    return trial.load if trial.budget is None else trial.budget


def _plain(value: object) -> JsonValue:
    """A part of a document as plain JSON values."""
    plain: JsonValue = to_jsonable_python(value)
    return plain
