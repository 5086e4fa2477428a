"""The threshold of a success curve: its estimate and interval from trials that held, failed, or nearly held.

A trial that trains has a margin in units of the log axis, how much more it could have held: logistic about
ln(capacity) − ln(load). It holds if the margin is positive. With some probability (a lapse) training fails at a load
that the model could hold. So far this is a logistic success curve, and its midpoint is the capacity. In addition, the
shortfall of a failed trial's metric measures its margin: a power of the shortfall is proportional to it. Held trials
stop at the criterion, so their margin is only known to be positive.

The posterior of the midpoint is computed on a grid; steepness, lapse and the relation between shortfall and margin are
summed out. So is the question whether the shortfall says anything about the midpoint at all: where it contradicts the
verdicts, what remains is the posterior from the verdicts alone.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from scipy.special import ndtri

from capbench.measure.estimate.posterior import Observation, Posterior, fit_posterior, pool_posteriors

ESTIMATOR_VERSION = 4
"""Version of the search and of the estimator; the protocol of a document names the one it was made with."""


SHARPEST = 0.0135
"""A scale up to this is that of a step as far as the posterior can tell: it is the second of its values."""


class Status(StrEnum):
    """Whether the trials give an estimate, or only a limit on one side."""

    ESTIMATED = "estimated"
    AT_LEAST = "at_least"
    BELOW = "below"


class Limit(StrEnum):
    """Why a threshold is known on one side only."""

    AXIS = "axis"
    """The axis ends there: the task has no larger load, or the parameter no smaller value."""
    SEARCH = "search"
    """The search stopped there."""


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
    lapse: float = 0.0
    """Probability that training fails at a load that the model could hold: the posterior mean."""
    limited_by: Limit | None = None
    """Why only one side is known; None for an estimate."""
    midpoint: float | None = None
    """Median of the posterior, which may lie beyond the points tried."""

    @property
    def deviation(self) -> float:
        """Standard deviation of the log midpoint, as the interval gives it; 0 while an end is open."""
        if self.ci_low is None or self.ci_high is None:
            return 0.0
        return math.log(self.ci_high / self.ci_low) / (2 * float(ndtri((1 + self.confidence) / 2)))

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


def wilson(successes: int, trials: int, confidence: float = 0.95) -> tuple[float, float]:
    """Wilson score interval of a proportion; it has positive width even when all trials agree."""
    if trials == 0:
        return 0.0, 1.0
    z = float(ndtri((1 + confidence) / 2))
    share, spread = successes / trials, z * z / trials
    centre = (share + spread / 2) / (1 + spread)
    half = z * math.sqrt(share * (1 - share) / trials + spread / (4 * trials)) / (1 + spread)
    return max(0.0, centre - half), min(1.0, centre + half)


def fit_threshold(
    observations: Sequence[Observation],
    axis: Axis,
    others: Sequence[Sequence[Observation]] = (),
    version: int = ESTIMATOR_VERSION,
) -> Threshold:
    """Midpoint of the success curve with its interval.

    `others` are the trials at the learning rates that were compared with this one on the same trials: the best of
    several equal rates looks better than it is, and the others say by how much. Leave them out if the rate was chosen
    on other seeds than the observations.
    """
    seen = [o for o in observations if o.held is not None]
    posterior = fit_posterior(seen, axis.rising)
    compared = [[o for o in other if o.held is not None] for other in others]
    rest = [fit_posterior(other, axis.rising) for other in compared if other]
    return _threshold(pool_posteriors(posterior, rest) if rest else posterior, seen, axis, version >= 4)


def _threshold(posterior: Posterior, seen: Sequence[Observation], axis: Axis, resolution: bool) -> Threshold:
    """The threshold that a posterior gives, with an end open where no trial limits it."""
    tail = (1 - axis.confidence) / 2
    low, middle, high = (math.exp(posterior.quantile(p)) for p in (tail, 0.5, 1 - tail))
    bottom, top = min(o.at for o in seen), max(o.at for o in seen)
    # Trials that place the threshold above them, and trials that place it below.
    above = [o.at for o in seen if o.held != axis.rising]
    below = [o.at for o in seen if o.held == axis.rising]
    ends = min(max(low, axis.low), axis.high), min(max(high, axis.low), axis.high)
    # Where the midpoint lies beyond a last point that most trials do not place below it, the nearer end is taken.
    if resolution:
        ends = _widened(ends, above, below, posterior.steepness)
    estimate = ends[0] if middle > top else ends[1] if middle < bottom else middle
    found = Threshold(
        min(max(estimate, bottom), top),
        *ends,
        axis.confidence,
        Status.ESTIMATED,
        posterior.steepness,
        lapse=posterior.lapse,
        midpoint=middle,
    )
    if (not below or middle > top) and above.count(top) > below.count(top):
        limit = Limit.AXIS if top >= axis.high else Limit.SEARCH
        # Beyond the last point there are no trials: the lower end is that of the posterior up to it.
        low = max(min(math.exp(posterior.quantile(tail, below=math.log(top))), top), axis.low)
        return replace(found, estimate=top, ci_low=low, ci_high=None, status=Status.AT_LEAST, limited_by=limit)
    if (not above or middle < bottom) and below.count(bottom) > above.count(bottom):
        limit = Limit.AXIS if bottom <= axis.low else Limit.SEARCH
        high = min(max(math.exp(posterior.quantile(1 - tail, above=math.log(bottom))), bottom), axis.high)
        return replace(found, estimate=bottom, ci_low=None, ci_high=high, status=Status.BELOW, limited_by=limit)
    return found


def _widened(
    ends: tuple[float, float], above: Sequence[int], below: Sequence[int], steepness: float
) -> tuple[float, float]:
    """An interval that has in it the gap between two tried values where the whole transition may lie in that gap.

    There the posterior says how a logistic curve would go through the gap, and not how this one does.
    """
    n_above, n_below = Counter(above), Counter(below)
    tried = sorted(n_above.keys() | n_below.keys())
    first, last = bisect_left(tried, ends[0]) - 1, bisect_right(tried, ends[1])
    near = tried[max(first, 0) : last + 1]
    low = max((at for at in near if n_above[at] >= n_below[at]), default=math.inf)
    high = min((at for at in near if n_below[at] >= n_above[at] and at > low), default=0)
    is_resolved = high <= low or (math.log(high / low) <= steepness and steepness > SHARPEST)
    return ends if is_resolved else (min(ends[0], low), max(ends[1], high))
