"""How far a second run of some cells, on other seeds, agrees with the records."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import NormalDist

from capbench_leaderboard.ranking.entry import BoardEntry

CONFIDENCE = 0.95
"""Of the intervals."""


@dataclass(frozen=True)
class CheckedCell:
    """A record, and the second run of its cell."""

    record: BoardEntry
    check: BoardEntry

    @property
    def agrees(self) -> bool:
        """Whether the second interval contains the first estimate."""
        low, high = self.check.interval
        return low <= self.record.result.capacity.estimate <= high

    @property
    def ratio(self) -> float:
        """The second estimate over the first."""
        return self.check.result.capacity.estimate / self.record.result.capacity.estimate

    @property
    def is_closed(self) -> bool:
        """Whether both intervals have two ends, so that it is known how often they should agree."""
        return all(0 < low < high < math.inf for low, high in (self.record.interval, self.check.interval))

    @property
    def expected(self) -> float:
        """The probability that they agree if both intervals are right: less than that of either alone."""
        first, second = (math.log(high / low) for low, high in (self.record.interval, self.check.interval))
        reach = NormalDist().inv_cdf((1 + CONFIDENCE) / 2) * second / math.hypot(first, second)
        return 2 * NormalDist().cdf(reach) - 1


@dataclass(frozen=True)
class Agreement:
    """The cells that were run twice on different seeds."""

    cells: tuple[CheckedCell, ...]

    @property
    def n_agreeing(self) -> int:
        """In how many cells the second interval contains the first estimate."""
        return sum(cell.agrees for cell in self.cells)

    @property
    def expected(self) -> float:
        """In how many cells it should, if all intervals are right."""
        return sum(cell.expected for cell in self.cells)


def agreement(records: Iterable[BoardEntry], checks: Iterable[BoardEntry]) -> Agreement | None:
    """The records of a suite with the second runs of their cells; None where no cell was run twice.

    Both must be of one version of the suite, share no seed, and have intervals with two ends.
    """
    first = {_cell(entry): entry for entry in records if entry.result.suite}
    pairs = [CheckedCell(first[_cell(check)], check) for check in checks if _cell(check) in first]
    cells = tuple(pair for pair in pairs if pair.is_closed and not _seeds(pair.record) & _seeds(pair.check))
    return Agreement(cells) if cells else None


def agreement_text(found: Agreement) -> str:
    """The statement of the board."""
    n = len(found.cells)
    cells = "1 cell, drawn at random, was" if n == 1 else f"{n} cells, drawn at random, were"
    return (
        f"{cells} measured a second time on other seeds, from the choice of shape on: the second interval contains the "
        f"first estimate in {found.n_agreeing} of {n}; {found.expected:.1f} are expected if all intervals are right."
    )


def _cell(entry: BoardEntry) -> tuple[object, ...]:
    result = entry.result
    return result.suite, result.task.name, result.architecture.name


def _seeds(entry: BoardEntry) -> set[int]:
    return {seed for _, seed in entry.held_by_trial}
