"""The threshold of a success curve: where to look next, and how sure we are of what was found.

The chance that a trial succeeds is taken to be logistic in the logarithm of an axis: falling in the
load (how many facts?) or rising in a budget (how few dimensions?). Its midpoint is the capacity.
The interval is the central part of the midpoint's posterior under a flat prior on the midpoint and
a broad one on the steepness. It stays honest where resampling does not: when every trial so far
agrees, resampled data agree too and a bootstrap interval has no width.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt
from scipy.special import log_expit, ndtri

STEPS_PER_OCTAVE = 16
"""Spacing of the shared grid of axis values: two searches that meet there can share trials."""

END_SEEDS = 8
"""Seeds at the end of an axis that must agree before a search stops there."""

Floats = npt.NDArray[np.float64]

TYPICAL_SCALE = 0.12
"""Centre of the prior on the steepness, which is log-normal with a width of a factor e."""
LOG_SCALES: Floats = np.linspace(math.log(0.005), math.log(1.0), 25)
"""Steepness values over which the posterior is averaged: from a step to a slope of many octaves."""
LAPSES = (0.0, 0.02, 0.06)
"""Chances that training fails at loads which the model could hold; without them a few such trials far from the
transition would drag the midpoint towards them."""
LAPSE_PRIOR = (0.7, 0.2, 0.1)


class Status(StrEnum):
    """What the interval says: a value, or only the side on which the value lies."""

    ESTIMATED = "estimated"
    AT_LEAST = "at_least"
    BELOW = "below"


@dataclass(frozen=True)
class Outcome:
    """One trial as the search sees it: where, which seed, and whether it met the criterion."""

    at: int
    seed: int
    held: bool | None
    """None for a trial that could not be run: it is spent, but says nothing of the threshold."""


@dataclass(frozen=True)
class Threshold:
    """Where success turns into failure, with its interval; an open end is None."""

    estimate: float
    ci_low: float | None
    ci_high: float | None
    confidence: float
    status: Status
    steepness: float
    """Scale of the logistic curve in log-axis units: small is sharp."""

    @property
    def relative_half_width(self) -> float:
        """Half of the interval in relative terms; infinite while an end is open."""
        if self.ci_low is None or self.ci_high is None:
            return math.inf
        return math.sqrt(self.ci_high / self.ci_low) - 1


@dataclass(frozen=True)
class Axis:
    """What is searched over: a load, on which success falls, or a budget, on which it rises."""

    low: int
    high: int
    rising: bool = False
    confidence: float = 0.95
    unit: int = 1
    """Only multiples of it are possible: a total that is split over four heads comes in fours."""


@dataclass(frozen=True)
class SearchPlan:
    """What a search may do: the axis, the first bracket, the width asked for and the most it may spend."""

    axis: Axis
    bracket: tuple[float, float]
    ci_width: float = 0.05
    seeds: int = 24
    first_points: int = 8
    first_seeds: int = 2
    batch: int = 24
    budget: int = 240


def wilson(successes: int, trials: int, confidence: float = 0.95) -> tuple[float, float]:
    """Wilson score interval of a proportion; it has a width even when all trials agree."""
    if trials == 0:
        return 0.0, 1.0
    z = float(ndtri((1 + confidence) / 2))
    share, spread = successes / trials, z * z / trials
    centre = (share + spread / 2) / (1 + spread)
    half = z * math.sqrt(share * (1 - share) / trials + spread / (4 * trials)) / (1 + spread)
    return max(0.0, centre - half), min(1.0, centre + half)


def fit_threshold(outcomes: Sequence[Outcome], axis: Axis) -> Threshold:
    """Midpoint of the success curve with its interval: the posterior over a grid, steepness and lapses summed out."""
    outcomes = [o for o in outcomes if o.held is not None]
    midpoints, weights, scale = _posterior(outcomes, axis.rising)
    tail = (1 - axis.confidence) / 2
    low, middle, high = (math.exp(_quantile(midpoints, weights, p)) for p in (tail, 0.5, 1 - tail))
    bottom, top = min(o.at for o in outcomes), max(o.at for o in outcomes)
    # Trials that put the threshold above them, and trials that put it below: with none of a kind, that end is open.
    above = [o.at for o in outcomes if o.held != axis.rising]
    below = [o.at for o in outcomes if o.held == axis.rising]
    if not below or middle > axis.high:
        # How far below the last point could it be after all? Beyond that point nothing is known, so nothing counts.
        short = _quantile(midpoints, weights * (midpoints <= math.log(top)), tail)
        return Threshold(top, math.exp(short), None, axis.confidence, Status.AT_LEAST, scale)
    if not above or middle < axis.low:
        far = _quantile(midpoints, weights * (midpoints >= math.log(bottom)), 1 - tail)
        return Threshold(bottom, None, math.exp(far), axis.confidence, Status.BELOW, scale)
    return Threshold(middle, low, high, axis.confidence, Status.ESTIMATED, scale)


def next_trials(outcomes: Sequence[Outcome], plan: SearchPlan) -> list[tuple[int, int]]:
    """The (axis value, seed) pairs worth training next; empty when the search is over.

    A function of the outcomes alone, so a search that was cut off goes on as if it had not been.
    """
    room = plan.budget - len(outcomes)
    if room <= 0:
        return []
    if all(o.held is None for o in outcomes):
        if outcomes:
            return []
        points = _spread(*plan.bracket, plan)
        return [(at, seed) for at in points for seed in range(min(plan.first_seeds, plan.seeds))][:room]
    found = fit_threshold(outcomes, plan.axis)
    if found.status is Status.ESTIMATED:
        return [] if is_narrow_enough(found, plan) else _near_the_transition(outcomes, found, plan)[:room]
    points = _outward(outcomes, found.status, plan)
    if points:
        return [(at, seed) for at in points for seed in range(min(plan.first_seeds, plan.seeds))][:room]
    return _at_the_end(outcomes, int(found.estimate), plan)[:room]


def is_narrow_enough(found: Threshold, plan: SearchPlan) -> bool:
    """The interval is as narrow as asked for, or lies between two neighbouring whole numbers."""
    if found.ci_low is None or found.ci_high is None:
        return False
    unit = plan.axis.unit
    within_a_step = found.ci_high <= unit * (math.floor(found.ci_low / unit) + 1)
    return within_a_step or found.relative_half_width <= plan.ci_width


def snap(value: float, axis: Axis) -> int:
    """The possible value of the axis nearest to `value` on the shared geometric grid."""
    exponent = round(math.log2(max(value, 1.0)) * STEPS_PER_OCTAVE)
    on_grid = round(2 ** (exponent / STEPS_PER_OCTAVE) / axis.unit) * axis.unit
    return min(max(on_grid, axis.low), axis.high)


def _spread(start: float, stop: float, plan: SearchPlan) -> list[int]:
    """Distinct grid points at equal ratios from `start` to `stop`."""
    raw = np.geomspace(max(start, 1.0), max(stop, 1.0), plan.first_points)
    return sorted({snap(float(value), plan.axis) for value in raw})


def _outward(outcomes: Sequence[Outcome], status: Status, plan: SearchPlan) -> list[int]:
    """Points past the end of what was tried, on the side where the curve has not turned yet."""
    tried = [o.at for o in outcomes]
    if status is Status.AT_LEAST:
        steps = [snap(max(tried) * factor, plan.axis) for factor in (1.5, 2.0, 3.0, 4.0)]
        return sorted({at for at in steps if at > max(tried)})
    steps = [snap(min(tried) / factor, plan.axis) for factor in (1.5, 2.0, 3.0, 4.0)]
    return sorted({at for at in steps if at < min(tried)})


def _at_the_end(outcomes: Sequence[Outcome], end: int, plan: SearchPlan) -> list[tuple[int, int]]:
    """More seeds at the last point of the axis, so that "at least" or "below" rests on more than a first look."""
    used = sum(o.at == end for o in outcomes)
    return [(end, seed) for seed in range(used, min(plan.seeds, END_SEEDS))]


def _near_the_transition(outcomes: Sequence[Outcome], found: Threshold, plan: SearchPlan) -> list[tuple[int, int]]:
    """A batch of fresh seeds at the points that tell most about the midpoint."""
    used = Counter(o.at for o in outcomes)
    targets = [found.estimate * math.exp(found.steepness * z) for z in (-1.2, -0.4, 0.4, 1.2)]
    reach = max(3 * found.steepness, 4 * math.log(2) / STEPS_PER_OCTAVE)
    candidates = _grid_between(found.estimate * math.exp(-reach), found.estimate * math.exp(reach), plan)
    chosen: list[tuple[int, int]] = []
    for turn in range(plan.batch):
        target = targets[turn % len(targets)]
        free = [at for at in candidates if used[at] < plan.seeds]
        if not free:
            break
        at = min(free, key=lambda at: (abs(math.log(at / target)), at))
        chosen.append((at, used[at]))
        used[at] += 1
    return chosen


def _grid_between(low: float, high: float, plan: SearchPlan) -> list[int]:
    """Every grid point in a range, and every whole number where the grid is coarser than those."""
    first, last = (round(math.log2(max(v, 1.0)) * STEPS_PER_OCTAVE) for v in (low, high))
    return sorted({snap(2 ** (k / STEPS_PER_OCTAVE), plan.axis) for k in range(first, last + 1)})


def _posterior(outcomes: Sequence[Outcome], rising: bool) -> tuple[Floats, Floats, float]:
    """Grid of log-midpoints, their posterior weights, and the steepness' posterior median."""
    totals = Counter(o.at for o in outcomes)
    held = Counter(o.at for o in outcomes if o.held)
    at = np.array(sorted(totals))
    n_held = np.array([held[int(x)] for x in at], dtype=np.float64)
    counts = np.log(at), n_held, np.array([totals[int(x)] for x in at]) - n_held
    coarse = np.linspace(math.log(at[0]) - 1.0, math.log(at[-1]) + 1.0, 161)
    rough = _weigh(coarse, *counts, rising).sum(axis=1)
    likely = coarse[rough > 1e-7 * rough.max()]
    step = coarse[1] - coarse[0]
    midpoints = np.linspace(likely[0] - step, likely[-1] + step, 161)
    weights = _weigh(midpoints, *counts, rising)
    scale = math.exp(_quantile(LOG_SCALES, weights.sum(axis=0), 0.5))
    return midpoints, weights.sum(axis=1), scale


def _weigh(midpoints: Floats, log_at: Floats, held: Floats, missed: Floats, rising: bool) -> Floats:
    """Unnormalised posterior of (midpoint, steepness) pairs given the counts at each point, over all lapse rates."""
    z = (midpoints[:, None, None] - log_at) / np.exp(LOG_SCALES)[:, None]  # (midpoints, scales, points)
    able, unable = log_expit(-z if rising else z), log_expit(z if rising else -z)
    joint = np.stack([_log_likelihood(able, unable, held, missed, lapse) for lapse in LAPSES])
    joint += np.log(LAPSE_PRIOR)[:, None, None] - 0.5 * (LOG_SCALES - math.log(TYPICAL_SCALE)) ** 2
    weights: Floats = np.exp(joint - joint.max()).sum(axis=0)
    return weights


def _log_likelihood(able: Floats, unable: Floats, held: Floats, missed: Floats, lapse: float) -> Floats:
    """Of the counts, where a trial that could hold its facts fails all the same with the chance `lapse`."""
    if lapse:
        able, unable = able + math.log1p(-lapse), np.logaddexp(unable, able + math.log(lapse))
    total: Floats = (held * able + missed * unable).sum(axis=-1)
    return total


def _quantile(values: Floats, weights: Floats, p: float) -> float:
    """Weighted quantile by linear interpolation of the cumulative weight."""
    cumulative = np.cumsum(weights) - weights / 2
    return float(np.interp(p, cumulative / weights.sum(), values))
