"""Whether a trial that was run again agrees with the stated one, and within which tolerance."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from math import comb

from capbench.documents.result import Result, Trial, TrialStatus, quality_names
from capbench.studies.verify.replay import ROUNDING_TOLERANCE, trial_name

METRIC_TOLERANCE = 0.02
"""On another kind of machine, a different status is allowed if the criterion's metric differs by no more than this."""
RELATIVE_TOLERANCE = 0.1
"""Relative difference of any metric that is allowed on another kind of machine: training amplifies rounding errors."""
MAX_DEVIATING_SHARE = 1 / 8
"""Share of the sample that may deviate on another kind of machine; none may on the same kind."""


def deviations(stated: Trial, again: Trial, result: Result, is_same_kind: bool) -> Iterator[str]:
    """A finding if a trial that was run again does not agree with the stated one."""
    metric = result.protocol.criterion.metric
    again = _without_later_data(stated, again, metric)
    agrees = _is_equal(stated, again) if is_same_kind else _is_near(stated, again, metric)
    if not agrees:
        yield f"trials: {trial_name(stated)}: stated {_trial_text(stated)}; run again {_trial_text(again)}"


def _without_later_data(stated: Trial, again: Trial, metric: str) -> Trial:
    """The trial run again without what is said of explicit weights, if the stated one is older than that."""
    names = set(quality_names(metric))
    if stated.learning_rate is not None or names & set(stated.data):
        return again
    return again.model_copy(update={"data": {name: v for name, v in again.data.items() if name not in names}})


def tolerance_text(is_same_kind: bool, result: Result) -> str:
    """The tolerance as a verdict states it."""
    metric = result.protocol.criterion.metric
    if is_same_kind:
        return f"same kind of machine: equal statuses and steps, every number within {ROUNDING_TOLERANCE:g}"
    return (
        f"another kind of machine: equal verdicts or {metric} within {METRIC_TOLERANCE:g}, every metric within "
        f"{RELATIVE_TOLERANCE:.0%}, for all but {MAX_DEVIATING_SHARE:.3g} of the sample"
    )


CHANGED_EXAMPLES = (1, 10)
"""Numbers of changed trials for which the chance to find them is stated."""


def chance_of_finding(n_trials: int, n_sampled: int, n_changed: int, n_allowed: int) -> float:
    """The probability that a random sample has more changed trials than may deviate (hypergeometric)."""
    missed = sum(
        comb(n_changed, found) * comb(n_trials - n_changed, n_sampled - found)
        for found in range(min(n_allowed, n_sampled) + 1)
        if n_sampled - found >= 0
    )
    return 1.0 - missed / comb(n_trials, n_sampled)


def chance_text(parts: Sequence[int], n_sample: int, n_allowed: int) -> str:
    """How likely changed metrics are found: of the part of the document (trials, selection, …) where it is least."""
    if not parts or not n_sample:
        return "no trial was run again: changed metrics from which the summaries follow are not found"
    texts = []
    for n_changed in CHANGED_EXAMPLES:
        found = (chance_of_finding(n, min(n_sample, n), min(n_changed, n), n_allowed) for n in parts)
        texts.append(f"{100 * min(found):.0f} % if {n_changed} {'trial was' if n_changed == 1 else 'trials were'}")
    return f"chance that this sample finds metrics changed beyond the tolerance: {', '.join(texts)}"


def _is_equal(stated: Trial, again: Trial) -> bool:
    """Whether status, steps and numbers are equal."""
    return (
        (stated.status, stated.steps) == (again.status, again.steps)
        and _agree(stated.metrics, again.metrics, ROUNDING_TOLERANCE)
        and _agree(stated.data, again.data, ROUNDING_TOLERANCE)
    )


def _is_near(stated: Trial, again: Trial, metric: str) -> bool:
    """Whether a trial agrees within the tolerances for another kind of machine."""
    is_same_status = (stated.status is TrialStatus.HELD) == (again.status is TrialStatus.HELD)
    gap = abs(stated.metrics.get(metric, math.inf) - again.metrics.get(metric, -math.inf))
    return (
        (is_same_status or gap <= METRIC_TOLERANCE)
        and _agree(stated.metrics, again.metrics, RELATIVE_TOLERANCE)
        and _agree(stated.data, again.data, RELATIVE_TOLERANCE)
    )


def _agree(stated: Mapping[str, float], again: Mapping[str, float], tolerance: float) -> bool:
    """Whether the names are the same and the numbers within a tolerance: relative, or absolute near 0."""
    absolute = min(tolerance, METRIC_TOLERANCE)
    return stated.keys() == again.keys() and all(
        math.isclose(stated[name], again[name], rel_tol=tolerance, abs_tol=absolute) for name in stated
    )


def _trial_text(trial: Trial) -> str:
    """Status, steps and numbers of a trial, in full: a forged one may differ in the last digits only."""
    numbers = ", ".join(f"{name} {value}" for name, value in (trial.metrics | trial.data).items())
    return f"{trial.status.value} after {trial.steps} steps, {numbers}"
