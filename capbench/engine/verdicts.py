"""Verdicts: when a lane's training ends, and the record of how."""

from __future__ import annotations

import math
from dataclasses import dataclass

from capbench.engine.lanes import Pair, Training, TrialSpec
from capbench.results import FACTS_HELD, Trial, TrialStatus

PATIENCE = 0.4
"""Share of all steps that a lane may go without a better metric before it counts as a plateau."""
BETTER_BY = 0.002
"""What counts as a better metric, as a share of the criterion's threshold."""
NEARLY = 0.02
"""A lane within this share of the criterion's threshold is never given up as a plateau."""


@dataclass
class Lane:
    """The trial that a lane of the stack carries, and how its metric has moved."""

    trial: TrialSpec
    data: dict[str, float]
    alive: bool = True
    best: float = -math.inf
    best_step: int = 0


def verdict(training: Training, value: float, step: int, lane: Lane) -> TrialStatus | None:
    """How a lane ends now, or None if it goes on. Updates its best metric."""
    if not math.isfinite(value):
        return TrialStatus.DIVERGED
    sign = 1 if training.criterion.at_least else -1
    score, goal = sign * value, sign * training.criterion.threshold
    is_last = step >= training.steps
    if not (training.stops_early or is_last):
        return None
    if score >= goal:
        return TrialStatus.HELD
    if score > lane.best + BETTER_BY * abs(goal):
        lane.best, lane.best_step = score, step
    if is_last:
        return TrialStatus.NOT_HELD
    is_near = score >= goal - NEARLY * abs(goal)
    is_stuck = step - lane.best_step >= PATIENCE * training.steps
    return TrialStatus.PLATEAU if is_stuck and not is_near else None


def finished(
    pair: Pair, trial: TrialSpec, status: TrialStatus, steps: int, metrics: dict[str, float], data: dict[str, float]
) -> Trial:
    """The record of a trial that has ended, with the facts it holds where its task can tell."""
    held = pair.task.plugin.facts_held(metrics, trial.load)
    if held is not None:
        metrics = {**metrics, FACTS_HELD: held}
    return Trial(
        key=pair.key(trial),
        load=trial.load,
        seed=trial.seed,
        learning_rate=trial.learning_rate,
        status=status,
        steps=steps,
        metrics=metrics,
        data=data,
    )
