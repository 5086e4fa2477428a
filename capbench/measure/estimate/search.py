"""The search for a threshold: which trials to run next."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from capbench.measure.estimate.posterior import Observation
from capbench.measure.estimate.threshold import Axis, Status, Threshold, fit_threshold

POINTS_PER_OCTAVE = 16
"""Spacing of the grid of axis values; all searches use the same grid, so that they can share trials."""

END_SEEDS = 8
"""Seeds that are tried at the end of an axis before a search stops there."""


TARGETS = (-1.2, -0.4, 0.4, 1.2)
"""Where trials say most about the midpoint, in units of the steepness, or of its standard deviation while that is more.
"""
FINEST = 16
"""The grid is refined by at most this factor: on sharp curves, whose transition may lie between two of its values."""
EASY_SHARE = 0.1
"""At this share of the midpoint a failed trial is a lapse, even on a broad curve. Such trials train fast."""
NOTABLE_LAPSE = 0.04
"""Lapses as probable as this are worth such trials: without them a curve with lapses looks like a broad one."""

FEWEST_POINTS = 4
"""The first round takes at most half of the budget, but for so many points: what it finds says where others help."""
SMALLEST_ROUND = 8
"""Fewest trials of a round near the transition: training fewer at once takes as long."""


@dataclass(frozen=True)
class SearchPlan:
    """The axis of a search, its first bracket, the wanted width of the interval, and its limits."""

    axis: Axis
    bracket: tuple[float, float]
    ci_width: float = 0.05
    seeds: int = 24
    first_points: int = 8
    first_seeds: int = 2
    batch: int = 24
    """Trials per round near the transition."""
    budget: int = 240
    """Most trials of the search."""


def next_trials(
    observations: Sequence[Observation], plan: SearchPlan, others: Sequence[Sequence[Observation]] = ()
) -> list[tuple[int, int]]:
    """The (axis value, seed) pairs to train next; empty when the search is over.

    The observations are those at the leading learning rate; `others` are as in `fit_threshold`. The pairs depend on
    the observations only, so an interrupted search continues with the same trials.
    """
    n_left = plan.budget - len(observations)
    if n_left <= 0:
        return []
    if all(o.held is None for o in observations):
        if observations:
            return []
        points = _spread_points(*plan.bracket, plan)
        return [(at, seed) for at in points for seed in range(min(plan.first_seeds, plan.seeds))][:n_left]
    found = fit_threshold(observations, plan.axis, others)
    if found.status is Status.ESTIMATED:
        return [] if is_narrow_enough(found, plan) else _trials_near_transition(observations, found, plan)[:n_left]
    points = _points_beyond(observations, found.status, plan)
    if points:
        return [(at, seed) for at in points for seed in range(min(plan.first_seeds, plan.seeds))][:n_left]
    return _trials_at_end(observations, int(found.estimate), plan)[:n_left]


def is_narrow_enough(found: Threshold, plan: SearchPlan) -> bool:
    """Whether the interval has the wanted width, or lies between two neighbouring values of the axis."""
    if found.ci_low is None or found.ci_high is None:
        return False
    unit = plan.axis.unit
    is_within_unit = found.ci_high <= unit * (math.floor(found.ci_low / unit) + 1)
    return is_within_unit or found.relative_half_width <= plan.ci_width


def snap(value: float, axis: Axis, refined: int = 1) -> int:
    """The value of the geometric grid, refined by a factor, nearest to `value` that the axis allows."""
    per_octave = POINTS_PER_OCTAVE * refined
    exponent = round(math.log2(max(value, 1.0)) * per_octave)
    on_grid = round(2 ** (exponent / per_octave) / axis.unit) * axis.unit
    return min(max(on_grid, axis.low), axis.high)


def _spread_points(start: float, stop: float, plan: SearchPlan) -> list[int]:
    """Distinct grid points at equal ratios from `start` to `stop`."""
    n_points = min(plan.first_points, max(FEWEST_POINTS, plan.budget // (2 * plan.first_seeds)))
    raw = np.geomspace(max(start, 1.0), max(stop, 1.0), n_points)
    return sorted({snap(float(value), plan.axis) for value in raw})


def _points_beyond(observations: Sequence[Observation], status: Status, plan: SearchPlan) -> list[int]:
    """Points beyond the tried ones, on the side where the transition must lie."""
    tried = [o.at for o in observations]
    if status is Status.AT_LEAST:
        steps = [snap(max(tried) * factor, plan.axis) for factor in (1.5, 2.0, 3.0, 4.0)]
        return sorted({at for at in steps if at > max(tried)})
    steps = [snap(min(tried) / factor, plan.axis) for factor in (1.5, 2.0, 3.0, 4.0)]
    return sorted({at for at in steps if at < min(tried)})


def _trials_at_end(observations: Sequence[Observation], end: int, plan: SearchPlan) -> list[tuple[int, int]]:
    """More seeds at the end of the axis, so that "at least" or "below" rests on several of them."""
    used = sum(o.at == end for o in observations)
    return [(end, seed) for seed in range(used, min(plan.seeds, END_SEEDS))]


def _trials_near_transition(
    observations: Sequence[Observation], found: Threshold, plan: SearchPlan
) -> list[tuple[int, int]]:
    """New seeds at the points that are most informative about the midpoint, as many as the interval seems to need."""
    used = Counter(o.at for o in observations)
    centre = found.midpoint or found.estimate
    sign = -1 if plan.axis.rising else 1
    width = max(found.steepness, found.deviation)
    refined = _refinement(width)
    targets = [centre * math.exp(width * z) for z in TARGETS]
    reach = max(3 * width, 4 * math.log(2) / (refined * POINTS_PER_OCTAVE))
    candidates = _grid_between(centre * math.exp(-reach), centre * math.exp(reach), plan, refined)
    if found.lapse > NOTABLE_LAPSE:
        targets.append(centre * EASY_SHARE**sign)
        candidates.append(snap(targets[-1], plan.axis))
    chosen: list[tuple[int, int]] = []
    for i in range(_n_missing(len(observations), found, plan)):
        target = targets[i % len(targets)]
        free = [at for at in candidates if used[at] < plan.seeds]
        if not free:
            break
        at = min(free, key=lambda at: (abs(math.log(at / target)), at))
        chosen.append((at, used[at]))
        used[at] += 1
    return chosen


def _refinement(width: float) -> int:
    """The power of two by which the grid is refined, so that neighbouring targets are different values of it."""
    wanted = math.log(2) / (POINTS_PER_OCTAVE * (TARGETS[1] - TARGETS[0]) * width)
    return int(min(FINEST, 2 ** max(0, math.ceil(math.log2(wanted)))))


def _n_missing(n_trials: int, found: Threshold, plan: SearchPlan) -> int:
    """Trials of the next round: those that the wanted width takes if it falls with their root, at most a batch."""
    ratio = found.relative_half_width / plan.ci_width
    missing = n_trials * (ratio * ratio - 1) if ratio < math.inf else plan.batch
    return min(plan.batch, max(SMALLEST_ROUND, math.ceil(missing)))


def _grid_between(low: float, high: float, plan: SearchPlan, refined: int) -> list[int]:
    """Every grid point in a range; at small values, where the grid is finer than the axis, every axis value."""
    per_octave = POINTS_PER_OCTAVE * refined
    first, last = (round(math.log2(max(v, 1.0)) * per_octave) for v in (low, high))
    return sorted({snap(2 ** (k / per_octave), plan.axis, refined) for k in range(first, last + 1)})
