"""Two records compared on the trials they share: same load and seed, hence the same facts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import comb

SIGNIFICANCE_LEVEL = 0.05
HeldByTrial = Mapping[tuple[int, int], bool]
"""Whether the trial held, by load and seed."""


@dataclass(frozen=True)
class PairedComparison:
    """In how many shared trials only this record held, and in how many only the other."""

    other: str
    """Path of the other record."""
    n_shared: int
    only_this: int
    only_other: int

    @property
    def p_value(self) -> float:
        """Probability of a split at least as uneven if both were equally good: the exact two-sided sign test."""
        return sign_test(self.only_this, self.only_other)

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
    """Counts the shared trials on which the two differ."""
    shared = this.keys() & that.keys()
    won = [this[key] for key in shared if this[key] is not that[key]]
    only_this = sum(won)
    return PairedComparison(other, len(shared), only_this, len(won) - only_this)


@lru_cache(maxsize=4096)
def sign_test(wins: int, losses: int) -> float:
    """Two-sided exact p-value of these wins and losses if both were equally good; ties are not counted."""
    n, fewer = wins + losses, min(wins, losses)
    tail = sum(comb(n, k) for k in range(fewer + 1))
    return min(1.0, float(2 * tail / 2**n))
