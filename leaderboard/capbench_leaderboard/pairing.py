"""Two records compared on the trials they share: the same facts, by load and seed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import comb

SIGNIFICANT = 0.05


@dataclass(frozen=True)
class Comparison:
    """How often only the one held, and only the other, where both were given the same facts."""

    other: str
    """Who it is compared with."""
    n_shared: int
    only_this: int
    only_other: int

    @property
    def p_value(self) -> float:
        """Chance of a split at least as uneven between equals: the exact two-sided sign test."""
        return sign_test(self.only_this, self.only_other)

    @property
    def decides(self) -> bool:
        """Whether the split is too uneven for equals."""
        return self.p_value < SIGNIFICANT

    @property
    def word(self) -> str:
        """Whether it is ahead, behind, or the shared trials do not say."""
        if not self.decides:
            return "undecided with"
        return "ahead of" if self.only_this > self.only_other else "behind"


def compare(other: str, this: Mapping[tuple[int, int], bool], that: Mapping[tuple[int, int], bool]) -> Comparison:
    """Counts the shared trials on which the two differ."""
    shared = this.keys() & that.keys()
    won = [this[key] for key in shared if this[key] is not that[key]]
    only_this = sum(won)
    return Comparison(other, len(shared), only_this, len(won) - only_this)


@lru_cache(maxsize=4096)
def sign_test(wins: int, losses: int) -> float:
    """Two-sided exact p-value of so many wins and losses between equals; ties say nothing."""
    n, fewer = wins + losses, min(wins, losses)
    tail = sum(comb(n, k) for k in range(fewer + 1))
    return min(1.0, float(2 * tail / 2**n))
