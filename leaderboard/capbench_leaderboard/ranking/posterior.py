"""The joint posterior of the capacities of a table, and the ranks that follow from it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from capbench.documents.result import Capacity

RANK_CONFIDENCE = 0.95
"""Probability with which all rank ranges of a table hold at once."""
MAX_DRAWS = 40_000
"""With these, the standard error of a probability is at most 0.25 %."""
MIN_DRAWS = 1000
MAX_VALUES = 2_000_000
"""Draws times records: a table of thousands of records gets fewer draws, so that they fit in memory."""
LOGARITHMIC_KINDS = frozenset({"largest_load", "least_budget"})
"""Capacities whose posterior is computed over their logarithm; shares and means are not."""

Values = NDArray[np.float64]
Ranks = NDArray[np.int64]


@dataclass(frozen=True)
class CapacityPosterior:
    """A split normal: its median is the estimate, its quantiles the ends of the interval; open ends are infinite."""

    estimate: float
    low: float
    high: float
    confidence: float = 0.95
    is_logarithmic: bool = True
    less_is_better: bool = False

    def draw_merits(self, scores: Values) -> tuple[Values, Values]:
        """For each standard normal score, the least and the greatest merit that open ends allow; more is better."""
        least, greatest = self._draw_capacities(scores)
        return (-greatest, -least) if self.less_is_better else (least, greatest)

    def _draw_capacities(self, scores: Values) -> tuple[Values, Values]:
        """Both are equal for a closed interval; beyond an open end the capacity may be anywhere."""
        distance = scores / NormalDist().inv_cdf((1 + self.confidence) / 2)  # ±1 at the ends of the interval
        below = self._move_towards(self.low, np.maximum(-distance, 0))
        above = self._move_towards(self.high, np.maximum(distance, 0))
        capacity = np.where(distance < 0, below, above)
        least = greatest = capacity
        if math.isinf(self.high):
            # What is known: 2.5 % lie below the lower end, and at most half below the estimate.
            greatest = np.where(distance > -1, np.inf, capacity)
        if math.isinf(self.low):
            least = np.where(distance < 1, -np.inf, capacity)
        return least, greatest

    def _move_towards(self, end: float, share: Values) -> Values:
        """The value at this share of the way from the estimate to an end; an open end is never approached."""
        if math.isinf(end):
            return np.full_like(share, self.estimate)
        with np.errstate(over="ignore"):
            if self.is_logarithmic:
                return self.estimate * np.power(end / self.estimate, share)
            return self.estimate + (end - self.estimate) * share


@dataclass(frozen=True)
class Standing:
    """The range of ranks of a record, and the range of its probability of being best."""

    best: int
    worst: int
    least_probability: float
    greatest_probability: float
    """Differs from the least one only where an open end decides who is best."""


def make_posterior(capacity: Capacity) -> CapacityPosterior:
    """The posterior that a record's estimate and interval describe."""
    low = -math.inf if capacity.ci_low is None else min(capacity.ci_low, capacity.estimate)
    high = math.inf if capacity.ci_high is None else max(capacity.ci_high, capacity.estimate)
    is_positive = capacity.estimate > 0 and (low > 0 or math.isinf(low))
    return CapacityPosterior(
        estimate=capacity.estimate,
        low=low,
        high=high,
        confidence=capacity.confidence,
        is_logarithmic=capacity.kind in LOGARITHMIC_KINDS and is_positive,
        less_is_better=capacity.kind == "least_budget",
    )


def rank_jointly(posteriors: Sequence[CapacityPosterior], generator: np.random.Generator) -> list[Standing]:
    """Ranks independent posteriors by joint draws."""
    if not posteriors:
        return []
    n_draws = min(MAX_DRAWS, max(MIN_DRAWS, MAX_VALUES // len(posteriors)))
    merits = [posterior.draw_merits(generator.standard_normal(n_draws)) for posterior in posteriors]
    least = np.stack([each for each, _ in merits], axis=1)  # (draws, records)
    greatest = np.stack([each for _, each in merits], axis=1)
    best, worst = _ranks_by_draw(least, greatest)
    firsts, lasts = _simultaneous_ranges(best, worst)
    surely_best, possibly_best = (worst == 1).mean(axis=0), (best == 1).mean(axis=0)
    return [
        Standing(int(first), int(last), float(surely), float(possibly))
        for first, last, surely, possibly in zip(firsts, lasts, surely_best, possibly_best, strict=True)
    ]


def _ranks_by_draw(least: Values, greatest: Values) -> tuple[Ranks, Ranks]:
    """The best and the worst rank of each record in each draw, over all values that open ends allow."""
    n = least.shape[1]
    # Descending; where values are equal, the greatest merits come first, so that equals share their ranks.
    order = np.argsort(-np.concatenate([greatest, least], axis=1), axis=1, kind="stable")  # (draws, 2 records)
    place = np.argsort(order, axis=1)
    n_least, n_greatest = np.cumsum(order >= n, axis=1), np.cumsum(order < n, axis=1)
    best = 1 + np.take_along_axis(n_least, place[:, :n], axis=1)  # (draws, records)
    worst = np.take_along_axis(n_greatest, place[:, n:], axis=1)
    return best, worst


def _simultaneous_ranges(best: Ranks, worst: Ranks) -> tuple[Ranks, Ranks]:
    """The central ranges of ranks, with tails so small that all hold at once in 95 % of the draws."""
    n, parts = best.shape[1], 1
    while True:
        tail = (1 - RANK_CONFIDENCE) / 2 / parts
        firsts = np.quantile(best, tail, axis=0, method="inverted_cdf").astype(np.int64)
        lasts = np.quantile(worst, 1 - tail, axis=0, method="inverted_cdf").astype(np.int64)
        covered = ((best >= firsts) & (worst <= lasts)).all(axis=1).mean()
        if covered >= RANK_CONFIDENCE or parts >= n:  # with as many parts as records it is Bonferroni's correction
            return firsts, lasts
        parts *= 2
