"""The estimator of documents of version 1, kept so that their numbers can be derived again.

It uses only whether trials held, at the leading learning rate. To be deleted with the last record of that version.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
from scipy.special import log_expit

from capbench.measure.estimate.posterior import TYPICAL_SCALE, Floats, Observation
from capbench.measure.estimate.threshold import Axis, Status, Threshold

LOG_SCALES: Floats = np.linspace(math.log(0.005), math.log(1.0), 25)
LAPSES = (0.0, 0.02, 0.06)
LAPSE_PRIOR = (0.7, 0.2, 0.1)


def fit_threshold_v1(observations: Sequence[Observation], axis: Axis) -> Threshold:
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
