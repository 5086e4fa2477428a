"""The posterior of the midpoint of a success curve, on a grid."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt
from scipy.interpolate import PchipInterpolator
from scipy.special import log_expit

Floats = npt.NDArray[np.float64]

TYPICAL_SCALE = 0.12
"""Centre of the prior on the steepness, which is log-normal with a width of a factor e."""
SCALES: Floats = np.geomspace(0.008, 0.9, 10)
"""Steepness values over which the posterior is averaged: from a sharp step to a slope of many octaves."""
SCALE_PRIOR: Floats = np.exp(-0.5 * np.log(SCALES / TYPICAL_SCALE) ** 2)
LAPSES: Floats = np.array([0.0, 0.05, 0.15, 0.27, 0.4])
"""Probabilities that training fails at a load that the model could hold."""
LAPSE_PRIOR: Floats = np.array([0.55, 0.15, 0.1, 0.12, 0.08])

FAR = 0.25
"""Shortfalls beyond this count as equal: the metric saturates there."""
SMALLEST_SHORTFALL = 0.002
"""Smaller shortfalls count as this one: metrics are counts of facts, divided by the load."""
POWER = 0.75
"""The margin is proportional to this power of the shortfall: of 0.4 to 1, the likeliest for the published records."""
MARGINS_AT_TENTH: Floats = np.geomspace(0.04, 1.6, 7)
"""The margin, in units of the log axis, of a trial whose shortfall is 0.1."""
MARGIN_PRIOR: Floats = np.exp(-0.5 * (np.log(MARGINS_AT_TENTH / 0.2) / 0.9) ** 2)
"""Log-normal: median and width are those of the published records."""
LAPSED_NEAR = 0.5
"""Share of lapsed trials whose shortfall is below FAR; it is uniform there."""
LINKED = 0.5
"""Prior probability that the shortfall says where the midpoint is."""

RATE_SPREADS = (0.03, 0.1, 0.3, 1.0)
"""Standard deviation of the log capacities of the learning rates that were compared, with its prior."""
RATE_SPREAD_PRIOR = (0.5, 0.25, 0.15, 0.1)
OUTLYING_RATE = 0.15
"""Probability that a learning rate has nothing to do with the others, as one at which nothing trains."""

N_COARSE, N_FINE, N_CENTRES = 141, 81, 201
MAX_ZOOMS = 3


@dataclass(frozen=True)
class Observation:
    """One trial as the search sees it: axis value, seed, whether it held, and how near it came if it did not."""

    at: int
    seed: int
    held: bool | None
    """None for a trial that could not be run: it counts towards the budget and is left out of the fit."""
    shortfall: float | None = None
    """Share of the criterion by which the metric of a failed trial fell short of it, 0 to 1; None if unknown."""


@dataclass(frozen=True)
class Posterior:
    """Posterior weights over (log midpoint, scale), and the mean of the lapse."""

    midpoints: Floats
    joint: Floats
    lapse: float
    span: float
    """Width of the range in which the verdicts alone place the log midpoint."""

    @property
    def steepness(self) -> float:
        """Median of the scale."""
        return math.exp(weighted_quantile(np.log(SCALES), self.joint.sum(axis=0), 0.5))

    def quantile(self, p: float, above: float = -math.inf, below: float = math.inf) -> float:
        """Quantile of the log midpoint, given that it is in a range; the nearest value where nothing is in it."""
        midpoints, weights = self._interpolated
        inside = weights * ((midpoints >= above) & (midpoints <= below))
        if not inside.any():
            return float(np.clip(weighted_quantile(midpoints, weights, p), above, below))
        return weighted_quantile(midpoints, inside, p)

    @cached_property
    def _interpolated(self) -> tuple[Floats, Floats]:
        """Weights of a finer grid of midpoints: on the grid itself, narrow intervals would come out too wide."""
        weights = self.joint.sum(axis=1)
        logs = np.log(np.maximum(weights / weights.max(), 1e-30))
        midpoints = np.linspace(self.midpoints[0], self.midpoints[-1], 8 * (len(weights) - 1) + 1)
        return midpoints, np.exp(PchipInterpolator(self.midpoints, logs)(midpoints))


def weighted_quantile(values: Floats, weights: Floats, p: float) -> float:
    """Weighted quantile by linear interpolation of the cumulative weight."""
    cumulative = np.cumsum(weights) - weights / 2
    return float(np.interp(p, cumulative / weights.sum(), values))


# Below, positions on the log axis are called x, and success falls with x: an axis along which it rises is mirrored.


@dataclass(frozen=True)
class _Trials:
    """Trials as arrays over distinct positions, and those with a near shortfall one by one."""

    x: Floats
    n_held: Floats
    n_failed: Floats
    """All failed trials: near, far and those whose shortfall is unknown."""
    n_far: Floats
    x_near: Floats
    shortfalls: Floats

    @classmethod
    def of(cls, observations: Sequence[Observation], rising: bool) -> _Trials:
        sign = -1.0 if rising else 1.0
        at = sorted({o.at for o in observations}, reverse=rising)
        failed = [o for o in observations if not o.held]
        # Sorted, so that sums do not depend on the order in which trials ended.
        near = sorted((o.at, o.shortfall) for o in failed if o.shortfall is not None and o.shortfall < FAR)
        far = Counter(o.at for o in failed if o.shortfall is not None and o.shortfall >= FAR)
        held = Counter(o.at for o in observations if o.held)
        return cls(
            x=sign * np.log(at),
            n_held=np.array([held[each] for each in at], dtype=np.float64),
            n_failed=np.array([sum(o.at == each for o in failed) for each in at], dtype=np.float64),
            n_far=np.array([far[each] for each in at], dtype=np.float64),
            x_near=sign * np.log([at for at, _ in near]),
            shortfalls=np.array([max(shortfall, SMALLEST_SHORTFALL) for _, shortfall in near]),
        )


def fit_posterior(observations: Sequence[Observation], rising: bool) -> Posterior:
    """Posterior of the midpoint: the verdicts say in which range it is, then all trials are weighed there."""
    trials = _Trials.of(observations, rising)
    coarse = np.linspace(trials.x[0] - 1.0, trials.x[-1] + 1.0, N_COARSE)
    rough = _sum_out(_log_verdicts(trials, coarse, LAPSES[::2]), LAPSE_PRIOR[::2]).sum(axis=(1, 2))
    likely = coarse[rough > 1e-6 * rough.max()]
    step = coarse[1] - coarse[0]
    x = np.linspace(likely[0] - step, likely[-1] + step, N_FINE)
    span, log_unlinked = float(x[-1] - x[0]), _log_unlinked(trials, x)
    for _ in range(MAX_ZOOMS):  # near misses may narrow the range so much that few points of the grid are left in it
        joint = _sum_out(_log_verdicts(trials, x, LAPSES) + _log_shortfalls(trials, x, log_unlinked), LAPSE_PRIOR)
        marginal = joint.sum(axis=(1, 2))
        likely, step = x[marginal > 1e-6 * marginal.max()], x[1] - x[0]
        if len(likely) > N_FINE // 2:
            break
        x = np.linspace(likely[0] - step, likely[-1] + step, N_FINE)
    else:
        joint = _sum_out(_log_verdicts(trials, x, LAPSES) + _log_shortfalls(trials, x, log_unlinked), LAPSE_PRIOR)
    lapse = float(joint.sum(axis=(0, 1)) @ LAPSES / joint.sum())
    weights = joint.sum(axis=2) / joint.sum()
    return Posterior(-x[::-1], weights[::-1], lapse, span) if rising else Posterior(x, weights, lapse, span)


def _sum_out(log_likelihood: Floats, lapse_prior: Floats) -> Floats:
    """Unnormalised posterior over (midpoint, scale, lapse)."""
    weights: Floats = np.exp(log_likelihood - log_likelihood.max()) * SCALE_PRIOR[:, None] * lapse_prior
    return weights


def _log_verdicts(trials: _Trials, midpoints: Floats, lapses: Floats) -> Floats:
    """Log likelihood of what held and what failed, over (midpoint, scale, lapse)."""
    z = (midpoints[:, None, None] - trials.x) / SCALES[:, None]  # (midpoints, scales, positions)
    log_held = (log_expit(z) @ trials.n_held)[..., None] + trials.n_held.sum() * np.log1p(-lapses)
    is_failed = trials.n_failed > 0
    log_failed = _log_with_lapses(log_expit(-z[..., is_failed]), trials.n_failed[is_failed], lapses)
    result: Floats = log_held + log_failed
    return result


def _log_with_lapses(log_p: Floats, counts: Floats, lapses: Floats, lapsed_p: float = 1.0) -> Floats:
    """Log likelihood of events that have probability p in a trial that trains, and `lapsed_p` in one that lapsed."""
    p = np.exp(log_p)
    by_lapse = [
        (np.log((1 - lapse) * p + lapse * lapsed_p) if lapse else log_p) @ counts for lapse in lapses
    ]  # each (midpoints, scales)
    return np.stack(by_lapse, axis=-1)


def _has_shortfalls(trials: _Trials) -> bool:
    """Far misses count even without near ones: otherwise only small shortfalls, which raise the midpoint, would."""
    return len(trials.shortfalls) > 0 or bool(trials.n_far.any())


def _log_unlinked(trials: _Trials, midpoints: Floats) -> float:
    """Log likelihood of the shortfalls if they measure the distance to a point of their own, anywhere in a range."""
    if not _has_shortfalls(trials):
        return 0.0
    by_midpoint, top = _by_midpoint(trials, midpoints)
    prior = SCALE_PRIOR[:, None] * LAPSE_PRIOR / SCALE_PRIOR.sum()
    return float(np.log((by_midpoint * prior).sum() / len(midpoints)) + top)


def _log_shortfalls(trials: _Trials, midpoints: Floats, log_unlinked: float) -> Floats | float:
    """Log likelihood of the shortfalls of the trials that failed, over (midpoint, scale, lapse).

    It is the mean over two cases: the shortfall measures the distance to the midpoint, or to a point of its own.
    """
    if not _has_shortfalls(trials):
        return 0.0
    by_midpoint, top = _by_midpoint(trials, midpoints)
    with np.errstate(divide="ignore"):  # a likelihood below the smallest float is none
        linked = math.log(LINKED) + np.log(by_midpoint) + top
    result: Floats = np.logaddexp(linked, math.log(1 - LINKED) + log_unlinked)
    return result


def _by_midpoint(trials: _Trials, midpoints: Floats) -> tuple[Floats, float]:
    """Likelihood of the shortfalls if they measure the distance to the midpoint, and the log of the factor left out."""
    linked = _log_linked(trials, midpoints)  # (margins, midpoints, scales, lapses)
    top = float(linked.max())
    return np.tensordot(MARGIN_PRIOR / MARGIN_PRIOR.sum(), np.exp(linked - top), axes=1), top


def _log_linked(trials: _Trials, midpoints: Floats) -> Floats:
    """Log likelihood of the shortfalls, given that these trials failed, over (margin, midpoint, scale, lapse)."""
    by_margin = [_log_near(trials, midpoints, m) + _log_far(trials, midpoints, m) for m in MARGINS_AT_TENTH]
    known = trials.n_far.copy()
    np.add.at(known, np.searchsorted(trials.x, trials.x_near), 1)
    z = (trials.x[known > 0] - midpoints[:, None, None]) / SCALES[:, None]
    return np.stack(by_margin) - _log_with_lapses(log_expit(z), known[known > 0], LAPSES)


def _log_near(trials: _Trials, midpoints: Floats, margin: float) -> Floats:
    """Log density of the near shortfalls, over (midpoint, scale, lapse)."""
    missed = margin * (trials.shortfalls / 0.1) ** POWER  # by how much the load was too large
    per_shortfall = POWER * missed / trials.shortfalls
    distance = np.abs(midpoints[:, None, None] - (trials.x_near - missed)) / SCALES[:, None]
    tail = np.exp(-distance)  # (midpoints, scales, trials)
    # Logistic density tail / (1 + tail)²; in logs, where nothing lapses, because it may be smaller than any float.
    log_density = -distance.sum(axis=-1) - 2 * _log_product(1 + tail)
    log_density += np.log(per_shortfall).sum() - len(missed) * np.log(SCALES)
    density = tail / (1 + tail) ** 2 * per_shortfall / SCALES[:, None]
    by_lapse = [
        _log_product((1 - lapse) * density + lapse * LAPSED_NEAR / FAR) if lapse else log_density for lapse in LAPSES
    ]
    return np.stack(by_lapse, axis=-1)


def _log_product(factors: Floats) -> Floats:
    """Sum of logarithms along the last axis, with few logarithms: of products that a float can hold."""
    blocks = range(0, max(1, factors.shape[-1]), 24)
    total: Floats = np.sum([np.log(factors[..., i : i + 24].prod(axis=-1)) for i in blocks], axis=0)
    return total


def _log_far(trials: _Trials, midpoints: Floats, margin: float) -> Floats | float:
    """Log probability that the far shortfalls are beyond FAR, over (midpoint, scale, lapse)."""
    is_far = trials.n_far > 0
    if not is_far.any():
        return 0.0
    missed = margin * (FAR / 0.1) ** POWER
    z = (trials.x[is_far] - missed - midpoints[:, None, None]) / SCALES[:, None]
    return _log_with_lapses(log_expit(z), trials.n_far[is_far], LAPSES, 1 - LAPSED_NEAR)


def pool_posteriors(leader: Posterior, others: Sequence[Posterior]) -> Posterior:
    """The posterior of the leading rate if the capacities of all rates scatter about a common centre.

    The scatter is unknown and summed out: rates that agree are taken as one, rates that differ say nothing. All rates
    have the same steepness.
    """
    ends = [p.midpoints[i] for p in (leader, *others) for i in (0, -1)]
    centres = np.linspace(min(ends), max(ends), N_CENTRES)
    outlying = OUTLYING_RATE / max(max(ends) - min(ends), *(p.span for p in (leader, *others)))
    factor = np.zeros_like(leader.joint)
    for spread, prior in zip(RATE_SPREADS, RATE_SPREAD_PRIOR, strict=True):
        at_centre = np.ones((N_CENTRES, len(SCALES)))
        for other in others:
            likelihood = other.joint / SCALE_PRIOR  # (midpoints, scales)
            near = _normal(centres, other.midpoints, spread) @ likelihood
            at_centre *= (1 - OUTLYING_RATE) * near + outlying * likelihood.sum(axis=0)
        near = _normal(leader.midpoints, centres, spread) @ at_centre
        factor += prior * ((1 - OUTLYING_RATE) * near + outlying * at_centre.sum(axis=0))
    return replace(leader, joint=leader.joint * factor)


def _normal(values: Floats, means: Floats, deviation: float) -> Floats:
    """Normal densities, over (values, means)."""
    z = (values[:, None] - means) / deviation
    density: Floats = np.exp(-0.5 * z * z) / (deviation * math.sqrt(2 * math.pi))
    return density
