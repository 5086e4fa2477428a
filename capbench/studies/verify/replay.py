"""Whether a result document is consistent: its summaries with its trials, and its trials with the search."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from pydantic import JsonValue
from pydantic_core import to_jsonable_python

from capbench.documents.result import BITS, Result, Trial, TrialStatus
from capbench.engine.trials import TrialSpec
from capbench.errors import CannotRepeat
from capbench.measure.estimate.floor import capacity_above_floor
from capbench.measure.estimate.precision import precision_points
from capbench.measure.estimate.summary import summarise
from capbench.measure.request import Request
from capbench.measure.run import execute
from capbench.measure.session import NullListener, Session
from capbench.measure.settle import chosen_training, settled_capacity, with_selection
from capbench.registry.registry import Registry
from capbench.store.store import Store
from capbench.studies.verify.selection import check_selection

ROUNDING_TOLERANCE = 1e-6
"""Relative difference that is allowed between two results of the same arithmetic."""
DERIVED = (
    "n_parameters",
    "capacity",
    "above_floor",
    "readings",
    "precision",
    "bits",
    "bits_per_parameter",
    "metrics",
    "data",
    "rates",
    "constructed",
    "run_id",
)
"""Fields of the document that the replay must derive again, besides the bounds."""


class StatedTrials(Store):
    """A store with the trials of a document only; raises CannotRepeat for a search that needs any other."""

    def trials(self, keys: Iterable[str]) -> dict[str, Trial]:
        """The stated trials with these keys; raises CannotRepeat if one is missing."""
        wanted = list(keys)
        found = super().trials(wanted)
        if len(found) < len(wanted):
            raise CannotRepeat(
                f"trials: the search that led to this result needs {len(wanted) - len(found)} trials "
                "that the document does not have"
            )
        return found


def check_summaries(result: Result) -> list[str]:
    """Fields of a document that do not follow from its trials, as far as this can be checked without its plugins."""
    if not result.trials:
        return ["trials: the document has none"]
    unknown_rates = [line for trial in result.trials for line in _unknown_rate(trial, result)]
    if unknown_rates:
        return unknown_rates
    summary = summarise(result.trials, result.protocol)
    capacity = summary.capacity
    if result.selection is not None:
        if not result.selection.trials or any(trial.limit is None for trial in result.selection.trials):
            return ["selection.trials: every trial of the selection states the most steps it was allowed"]
        picked = list(check_selection(result.selection, result))
        if picked:
            return picked
        capacity = settled_capacity(capacity, result.selection, result.protocol)
    bits = summary.metrics.get(BITS, 0.0)
    pairs: list[tuple[str, JsonValue, JsonValue]] = [
        (f"capacity.{name}", _plain(getattr(result.capacity, name)), _plain(getattr(capacity, name)))
        for name in (
            "kind", "estimate", "ci_low", "ci_high", "confidence", "status", "parameter", "limited_by",
            "settled", "drift", "by_steps",
        )
    ]  # fmt: skip
    pairs += [("metrics", dict(result.metrics), dict(summary.metrics)), ("data", dict(result.data), dict(summary.data))]
    pairs += [
        (
            "above_floor",
            _plain(result.above_floor),
            _plain(capacity_above_floor(result.trials, result.protocol)),
        ),
        (
            "precision",
            _plain(result.precision),
            _plain(precision_points(result.trials, result.protocol, summary, result.n_parameters)),
        ),
        ("bits", result.bits, bits),
        ("bits_per_parameter", result.bits_per_parameter, bits / result.n_parameters),
        ("rates", _plain(result.rates), _plain(summary.rates)),
    ]
    if result.selection is not None:
        rate, steps = chosen_training(result.selection, result.protocol)
        pairs += [
            ("protocol.learning_rates", _plain(result.protocol.learning_rates), [rate]),
            ("protocol.steps", result.protocol.steps, steps),
        ]
    found = [line for name, stated, derived in pairs for line in differences(name, stated, derived)]
    return found + _disorder(result) + [line for trial in result.trials for line in _contradictions(trial, result)]


def _disorder(result: Result) -> list[str]:
    """Findings where trials are not in the order of a document, or stated twice."""
    findings = []
    parts = {"trials": result.trials, "constructed.trials": result.constructed.trials if result.constructed else ()}
    for name, trials in parts.items():
        places = [(trial.at, trial.seed, trial.learning_rate or 0.0) for trial in trials]
        if any(before >= after for before, after in pairwise(places)):
            findings.append(f"{name}: they stand once each, in the order of load, seed and rate; got another order")
    return findings


def _unknown_rate(trial: Trial, result: Result) -> Iterator[str]:
    """A finding if the protocol does not have the trial's learning rate."""
    rates = result.protocol.learning_rates or (None,)
    if trial.learning_rate not in rates:
        yield f"trials: {trial_name(trial)} has a learning rate that is not among protocol.learning_rates"


def _contradictions(trial: Trial, result: Result) -> Iterator[str]:
    """A finding if a trial's status contradicts its own metric, or if it states what only other trials have."""
    if trial.limit is not None:
        yield f"trials: {trial_name(trial)} states a limit of steps, which only trials of the selection have"
    if trial.compiled and trial.learning_rate is None:
        yield f"trials: {trial_name(trial)} is stated to be compiled, and it was not trained"
    criterion = result.protocol.criterion
    value = trial.metrics.get(criterion.metric)
    if trial.status is TrialStatus.FAILED or value is None:
        return
    if criterion.is_met(value) != (trial.status is TrialStatus.HELD) and trial.status is not TrialStatus.DIVERGED:
        yield f"trials: {trial_name(trial)} is said to be {trial.status.value}, but its {criterion.metric} is {value:g}"


def check_keys(trials: Iterable[Trial], session: Session) -> list[str]:
    """Findings for trials whose key does not belong to their load, seed and rate."""
    findings = []
    for trial in trials:
        if session.setup(trial.at).key(TrialSpec(trial.load, trial.seed, trial.learning_rate)) != trial.key:
            findings.append(
                f"trials: {trial_name(trial)} has the key of another trial: its load, seed or rate was changed"
            )
    return findings


def check_selection_keys(result: Result, session: Session) -> list[str]:
    """Findings for trials of the selection whose key does not belong to their load, seed, rate and limit of steps."""
    trials = result.selection.trials if result.selection else ()
    findings = []
    for limit in sorted({trial.limit or 0 for trial in trials}):
        if not limit:
            return ["selection.trials: every trial of the selection states the most steps it was allowed"]
        findings += check_keys([trial for trial in trials if trial.limit == limit], with_steps(session, limit))
    return findings


def with_steps(session: Session, steps: int) -> Session:
    """A session of the same request with another number of steps, as trials of the selection have it."""
    options = session.request.options.replaced(steps=steps)
    return replace(session, request=replace(session.request, options=options), trials=[])


def replay(result: Result, request: Request, registry: Registry, folder: Path) -> list[str]:
    """Runs the search again on the stated trials, and returns where its result differs from the document."""
    store = StatedTrials(folder)
    try:
        for trial in (*result.trials, *(result.constructed.trials if result.constructed else ())):
            store.add_trials([trial], result.task.name, result.architecture.name)
        derived = with_selection(execute(request, registry, store, NullListener()), result.selection)
    finally:
        store.close()
    findings = [
        line
        for name in DERIVED
        for line in differences(name, _plain(getattr(result, name)), _plain(getattr(derived, name)))
    ]
    if result.architecture.family:  # older documents have none
        families = result.architecture.family, derived.architecture.family
        findings += differences("architecture.family", *families)
    sizes = result.architecture.state_size, derived.architecture.state_size
    findings += differences("architecture.state_size", *sizes)
    findings += differences("timing.grid_trials", result.timing.grid_trials, derived.timing.grid_trials)
    extra = len(result.trials) - len(derived.trials)
    if extra:
        findings.append(f"trials: the search does not ask for {extra} of them")
    return findings + _bound_findings(result, derived, registry)


def _bound_findings(result: Result, derived: Result, registry: Registry) -> list[str]:
    """Bounds that have another value here or were left out; raises CannotRepeat for one that is not installed."""
    derived_bounds = {bound.id: bound for bound in derived.bounds}
    stated = {bound.id: bound for bound in result.bounds}
    loaded = {(plugin.distribution, plugin.version) for plugin in result.environment.plugins}
    findings: list[str] = []
    for name, bound in stated.items():
        if name not in derived_bounds:
            raise CannotRepeat(
                f"the bound {name!r} is not provided by any installed plugin that the document names; "
                "install the one that provides it"
            )
        derived_bound = derived_bounds[name]
        if bound.lower_is_better is None:  # written before this field
            derived_bound = derived_bound.model_copy(update={"lower_is_better": None})
        findings += differences(f"bounds.{name}", _plain(bound), _plain(derived_bound))
    for name, provided in registry.bounds.items():
        origin = provided.provenance
        if name not in stated and (origin.distribution, origin.version) in loaded:
            findings.append(f"bounds.{name}: it was left out")
    return findings


def differences(name: str, stated: JsonValue, derived: JsonValue) -> Iterator[str]:
    """Findings where two JSON values differ; numbers may differ by rounding."""
    if isinstance(stated, dict) and isinstance(derived, dict):
        for key in sorted({*stated, *derived}):
            yield from differences(f"{name}.{key}", stated.get(key), derived.get(key))
    elif isinstance(stated, list) and isinstance(derived, list) and len(stated) == len(derived):
        for index, (one, other) in enumerate(zip(stated, derived, strict=True)):
            yield from differences(f"{name}.{index}", one, other)
    elif not _is_same(stated, derived):
        yield f"{name}: stated {stated!r}, re-derived {derived!r}"


def _is_same(stated: JsonValue, derived: JsonValue) -> bool:
    are_numbers = isinstance(stated, int | float) and isinstance(derived, int | float)
    if are_numbers and not isinstance(stated, bool) and not isinstance(derived, bool):
        return math.isclose(float(stated), float(derived), rel_tol=ROUNDING_TOLERANCE, abs_tol=1e-12)  # type: ignore[arg-type]
    return stated == derived


def trial_name(trial: Trial) -> str:
    """A trial as findings name it."""
    rate = "" if trial.learning_rate is None else f", rate {trial.learning_rate:g}"
    return f"load {trial.load}, seed {trial.seed}{rate}"


def _plain(value: object) -> JsonValue:
    """A part of a document as plain JSON values."""
    plain: JsonValue = to_jsonable_python(value)
    return plain
