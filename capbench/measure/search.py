"""The threshold of a success curve: which trials to run next, and the estimate with its interval.

The probability that a trial holds is modelled as logistic in the logarithm of an axis: falling with the
load (how many facts?), or rising with the value of a minimised parameter (how few dimensions?). Its
midpoint is the capacity. The interval is the central part of the midpoint's posterior under a flat prior
on the midpoint and a broad one on the steepness. A bootstrap interval would have no width while all
trials agree, because resampled trials agree too.
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

POINTS_PER_OCTAVE = 16
"""Spacing of the grid of axis values; all searches use the same grid, so that they can share trials."""

END_SEEDS = 8
"""Seeds that are tried at the end of an axis before a search stops there."""

Floats = npt.NDArray[np.float64]

TYPICAL_SCALE = 0.12
"""Centre of the prior on the steepness, which is log-normal with a width of a factor e."""
LOG_SCALES: Floats = np.linspace(math.log(0.005), math.log(1.0), 25)
"""Steepness values over which the posterior is averaged: from a sharp step to a slope of many octaves."""
LAPSES = (0.0, 0.02, 0.06)
"""Probabilities that training fails at a load that the model could hold. Without them, a few such trials far from the
transition would pull the midpoint towards them."""
LAPSE_PRIOR = (0.7, 0.2, 0.1)


class Status(StrEnum):
    """Whether the trials give an estimate, or only a limit on one side."""

    ESTIMATED = "estimated"
    AT_LEAST = "at_least"
    BELOW = "below"


@dataclass(frozen=True)
class Observation:
    """One trial as the search sees it: axis value, seed, and whether it held."""

    at: int
    seed: int
    held: bool | None
    """None for a trial that could not be run: it counts towards the budget and is left out of the fit."""


@dataclass(frozen=True)
class Threshold:
    """The midpoint of the success curve with its interval; an open end is None."""

    estimate: float
    ci_low: float | None
    ci_high: float | None
    confidence: float
    status: Status
    steepness: float
    """Scale of the logistic curve in units of the log axis: the smaller, the sharper."""

    @property
    def relative_half_width(self) -> float:
        """Half of the interval's width as a share of its centre; infinite while an end is open."""
        if self.ci_low is None or self.ci_high is None:
            return math.inf
        return math.sqrt(self.ci_high / self.ci_low) - 1


@dataclass(frozen=True)
class Axis:
    """What is searched over: loads, where success falls, or values of a minimised parameter, where it rises."""

    low: int
    high: int
    rising: bool = False
    confidence: float = 0.95
    unit: int = 1
    """Only its multiples are possible values, as for a total width that is split over four heads."""


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


def wilson(successes: int, trials: int, confidence: float = 0.95) -> tuple[float, float]:
    """Wilson score interval of a proportion; it has positive width even when all trials agree."""
    if trials == 0:
        return 0.0, 1.0
    z = float(ndtri((1 + confidence) / 2))
    share, spread = successes / trials, z * z / trials
    centre = (share + spread / 2) / (1 + spread)
    half = z * math.sqrt(share * (1 - share) / trials + spread / (4 * trials)) / (1 + spread)
    return max(0.0, centre - half), min(1.0, centre + half)


def fit_threshold(observations: Sequence[Observation], axis: Axis) -> Threshold:
    """Midpoint of the success curve with its interval: its posterior on a grid, summed over steepness and lapses."""
    observations = [o for o in observations if o.held is not None]
    midpoints, weights, scale = _posterior(observations, axis.rising)
    tail = (1 - axis.confidence) / 2
    low, middle, high = (math.exp(_quantile(midpoints, weights, p)) for p in (tail, 0.5, 1 - tail))
    bottom, top = min(o.at for o in observations), max(o.at for o in observations)
    # Trials that place the threshold above them, and trials that place it below: without one of them, an end is open.
    above = [o.at for o in observations if o.held != axis.rising]
    below = [o.at for o in observations if o.held == axis.rising]
    if not below or middle > axis.high:
        # The lower end is that of the posterior up to the last point: beyond it there are no trials.
        low_end = _quantile(midpoints, weights * (midpoints <= math.log(top)), tail)
        return Threshold(top, math.exp(low_end), None, axis.confidence, Status.AT_LEAST, scale)
    if not above or middle < axis.low:
        high_end = _quantile(midpoints, weights * (midpoints >= math.log(bottom)), 1 - tail)
        return Threshold(bottom, None, math.exp(high_end), axis.confidence, Status.BELOW, scale)
    return Threshold(middle, low, high, axis.confidence, Status.ESTIMATED, scale)


def next_trials(observations: Sequence[Observation], plan: SearchPlan) -> list[tuple[int, int]]:
    """The (axis value, seed) pairs to train next; empty when the search is over.

    They depend on the observations only, so an interrupted search continues with the same trials.
    """
    n_left = plan.budget - len(observations)
    if n_left <= 0:
        return []
    if all(o.held is None for o in observations):
        if observations:
            return []
        points = _spread_points(*plan.bracket, plan)
        return [(at, seed) for at in points for seed in range(min(plan.first_seeds, plan.seeds))][:n_left]
    found = fit_threshold(observations, plan.axis)
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


def snap(value: float, axis: Axis) -> int:
    """The value of the geometric grid nearest to `value` that the axis allows."""
    exponent = round(math.log2(max(value, 1.0)) * POINTS_PER_OCTAVE)
    on_grid = round(2 ** (exponent / POINTS_PER_OCTAVE) / axis.unit) * axis.unit
    return min(max(on_grid, axis.low), axis.high)


def _spread_points(start: float, stop: float, plan: SearchPlan) -> list[int]:
    """Distinct grid points at equal ratios from `start` to `stop`."""
    raw = np.geomspace(max(start, 1.0), max(stop, 1.0), plan.first_points)
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
    """A batch of new seeds at the points that are most informative about the midpoint."""
    used = Counter(o.at for o in observations)
    targets = [found.estimate * math.exp(found.steepness * z) for z in (-1.2, -0.4, 0.4, 1.2)]
    reach = max(3 * found.steepness, 4 * math.log(2) / POINTS_PER_OCTAVE)
    candidates = _grid_between(found.estimate * math.exp(-reach), found.estimate * math.exp(reach), plan)
    chosen: list[tuple[int, int]] = []
    for i in range(plan.batch):
        target = targets[i % len(targets)]
        free = [at for at in candidates if used[at] < plan.seeds]
        if not free:
            break
        at = min(free, key=lambda at: (abs(math.log(at / target)), at))
        chosen.append((at, used[at]))
        used[at] += 1
    return chosen


def _grid_between(low: float, high: float, plan: SearchPlan) -> list[int]:
    """Every grid point in a range; at small values, where the grid is finer than the axis, every axis value."""
    first, last = (round(math.log2(max(v, 1.0)) * POINTS_PER_OCTAVE) for v in (low, high))
    return sorted({snap(2 ** (k / POINTS_PER_OCTAVE), plan.axis) for k in range(first, last + 1)})


def _posterior(observations: Sequence[Observation], rising: bool) -> tuple[Floats, Floats, float]:
    """A grid of log-midpoints, their posterior weights, and the posterior median of the steepness."""
    totals = Counter(o.at for o in observations)
    held = Counter(o.at for o in observations if o.held)
    at = np.array(sorted(totals))
    n_held = np.array([held[int(x)] for x in at], dtype=np.float64)
    counts = np.log(at), n_held, np.array([totals[int(x)] for x in at]) - n_held
    coarse = np.linspace(math.log(at[0]) - 1.0, math.log(at[-1]) + 1.0, 161)
    rough = _posterior_weights(coarse, *counts, rising).sum(axis=1)
    likely = coarse[rough > 1e-7 * rough.max()]
    step = coarse[1] - coarse[0]
    midpoints = np.linspace(likely[0] - step, likely[-1] + step, 161)
    weights = _posterior_weights(midpoints, *counts, rising)
    scale = math.exp(_quantile(LOG_SCALES, weights.sum(axis=0), 0.5))
    return midpoints, weights.sum(axis=1), scale


def _posterior_weights(midpoints: Floats, log_at: Floats, n_held: Floats, n_missed: Floats, rising: bool) -> Floats:
    """Unnormalised posterior of (midpoint, steepness) pairs given the counts at each point, summed over lapses."""
    z = (midpoints[:, None, None] - log_at) / np.exp(LOG_SCALES)[:, None]  # (midpoints, scales, points)
    log_held, log_missed = log_expit(-z if rising else z), log_expit(z if rising else -z)
    joint = np.stack([_log_likelihood(log_held, log_missed, n_held, n_missed, lapse) for lapse in LAPSES])
    joint += np.log(LAPSE_PRIOR)[:, None, None] - 0.5 * (LOG_SCALES - math.log(TYPICAL_SCALE)) ** 2
    weights: Floats = np.exp(joint - joint.max()).sum(axis=0)
    return weights


def _log_likelihood(log_held: Floats, log_missed: Floats, n_held: Floats, n_missed: Floats, lapse: float) -> Floats:
    """Log-likelihood of the counts if a trial that could hold fails with probability `lapse`."""
    if lapse:
        log_held, log_missed = log_held + math.log1p(-lapse), np.logaddexp(log_missed, log_held + math.log(lapse))
    total: Floats = (n_held * log_held + n_missed * log_missed).sum(axis=-1)
    return total


def _quantile(values: Floats, weights: Floats, p: float) -> float:
    """Weighted quantile by linear interpolation of the cumulative weight."""
    cumulative = np.cumsum(weights) - weights / 2
    return float(np.interp(p, cumulative / weights.sum(), values))
