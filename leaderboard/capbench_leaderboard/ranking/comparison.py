"""Two records compared on the trials they share: same load and seed, hence the same facts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from math import comb
from typing import NamedTuple

SIGNIFICANCE_LEVEL = 0.05
MIN_TELLING_RESULTS = 4
"""Records of one model share this many different results that did not hold: those of held trials agree anyway."""
HeldByTrial = Mapping[tuple[int, int], bool]
"""Whether the trial held, by load and seed."""


class TrialPrint(NamedTuple):
    """Whether a trial held, and a digest of its status, steps and metrics."""

    has_held: bool
    digest: str


TrialPrints = Mapping[tuple[int, int, float | None], TrialPrint]
"""The print of a trial by load, seed and learning rate."""


@dataclass(frozen=True)
class PairedComparison:
    """In how many shared trials only this record held, and in how many only the other."""

    other: str
    """Path of the other record."""
    n_shared: int
    only_this: int
    only_other: int
    p_value: float
    """P-value of the split, corrected by `holm` for the other pairs of the table."""

    @property
    def is_significant(self) -> bool:
        """Whether the split would be rare if both were equally good."""
        return self.p_value < SIGNIFICANCE_LEVEL

    @property
    def relation(self) -> str:
        """How this record compares with the other: ahead of, behind, or undecided with."""
        if not self.is_significant:
            return "undecided with"
        return "ahead of" if self.only_this > self.only_other else "behind"


def compare_shared_trials(other: str, this: HeldByTrial, that: HeldByTrial) -> PairedComparison:
    """Counts the shared trials on which the two differ; the p-value is not corrected for other pairs."""
    shared = this.keys() & that.keys()
    won = [this[key] for key in shared if this[key] is not that[key]]
    only_this = sum(won)
    p_value = sign_test(only_this, len(won) - only_this)
    return PairedComparison(other, len(shared), only_this, len(won) - only_this, p_value)


@lru_cache(maxsize=4096)
def sign_test(wins: int, losses: int) -> float:
    """Two-sided exact p-value of these wins and losses if both were equally good; ties are not counted."""
    n, fewer = wins + losses, min(wins, losses)
    tail = sum(comb(n, k) for k in range(fewer + 1))
    return min(1.0, float(2 * tail / 2**n))


def holm(p_values: Sequence[float], n_tests: int) -> list[float]:
    """P-values corrected for `n_tests` tests by Holm's method; tests whose p-value is not given count as failed."""
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    scaled = [min(1.0, (n_tests - place) * p_values[i]) for place, i in enumerate(order)]
    adjusted = dict(zip(order, accumulate(scaled, max), strict=True))
    return [adjusted[i] for i in range(len(p_values))]


def are_trials_equal(this: TrialPrints, that: TrialPrints) -> bool:
    """Whether all shared trials have the same status, steps and metrics, enough of them short of the criterion."""
    shared = this.keys() & that.keys()
    telling = {this[key].digest for key in shared if not this[key].has_held}
    return len(telling) >= MIN_TELLING_RESULTS and all(this[key] == that[key] for key in shared)
