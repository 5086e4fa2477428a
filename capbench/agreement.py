"""Whether a trial that was run again came out as it is stated, and how far it may be off."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from capbench.consistency import EXACT, trial_name
from capbench.results import Result, Trial, TrialStatus

CLOSE = 0.02
"""How far the criterion's metric may be off on another machine before a changed verdict counts."""
DRIFT = 0.1
"""How far any metric may be off on another machine, in proportion: training is chaotic there."""
ASTRAY = 1 / 8
"""Share of the sample that may go astray on another machine; none may on the same kind of machine."""


def astray(stated: Trial, again: Trial, result: Result, is_alike: bool) -> Iterator[str]:
    """Says so where a trial came out otherwise."""
    name = result.protocol.criterion.metric
    agrees = _is_equal(stated, again) if is_alike else _is_near(stated, again, name)
    if not agrees:
        yield f"trials: {trial_name(stated)}: stated {_outcome(stated)}; run again {_outcome(again)}"


def tolerance_text(is_alike: bool, result: Result) -> str:
    """The tolerance in words, as a verdict states it."""
    metric = result.protocol.criterion.metric
    if is_alike:
        return f"same kind of machine: equal endings and steps, every number within {EXACT:g}"
    return (
        f"another kind of machine: equal verdicts or {metric} within {CLOSE:g}, every metric within {DRIFT:.0%}, "
        f"for all but {ASTRAY:.3g} of the sample"
    )


def _is_equal(stated: Trial, again: Trial) -> bool:
    """Whether a trial ended alike, after as many steps, with the same numbers."""
    alike = (stated.status, stated.steps) == (again.status, again.steps)
    return alike and _agree(stated.metrics, again.metrics, EXACT) and _agree(stated.data, again.data, EXACT)


def _is_near(stated: Trial, again: Trial, metric: str) -> bool:
    """Whether a trial came out alike as far as that can be asked of another machine."""
    same_verdict = (stated.status is TrialStatus.HELD) == (again.status is TrialStatus.HELD)
    gap = abs(stated.metrics.get(metric, math.inf) - again.metrics.get(metric, -math.inf))
    near = _agree(stated.metrics, again.metrics, DRIFT) and _agree(stated.data, again.data, DRIFT)
    return near and (same_verdict or gap <= CLOSE)


def _agree(stated: Mapping[str, float], again: Mapping[str, float], tolerance: float) -> bool:
    """Whether the same things were measured, and came out within a tolerance: in proportion, or absolutely near 0."""
    absolute = min(tolerance, CLOSE)
    return stated.keys() == again.keys() and all(
        math.isclose(stated[name], again[name], rel_tol=tolerance, abs_tol=absolute) for name in stated
    )


def _outcome(trial: Trial) -> str:
    """How a trial ended, with its numbers in full: a forged one may differ in the last digits only."""
    numbers = ", ".join(f"{name} {value}" for name, value in (trial.metrics | trial.data).items())
    return f"{trial.status.value} after {trial.steps} steps, {numbers}"
