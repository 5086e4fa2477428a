"""The overview: bits per parameter of every architecture on every task and at every tier, with the uncertainty."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from capbench_leaderboard.families import family_of, family_order
from capbench_leaderboard.ranking.board import Board
from capbench_leaderboard.ranking.entry import BoardEntry
from capbench_leaderboard.ranking.measures import BitsEstimate, bits_per_parameter, has_capacity, holds_in_weights

MAX_ARCHITECTURES = 60


@dataclass(frozen=True)
class HeatCell:
    """One record in the map."""

    entry: BoardEntry
    bits: BitsEstimate
    is_verified: bool

    @property
    def value_text(self) -> str:
        """The value, with what is known where only one side is."""
        sign = {"at_least": "≥ ", "below": "≤ ", "estimated": ""}[self.entry.result.capacity.status]
        return f"{sign}{self.bits.value:.2f}"

    @property
    def error_text(self) -> str:
        """Half the width of the interval; "open" where one end is not known."""
        low, high = self.bits.low, self.bits.high
        return "open" if low is None or high is None else f"± {(high - low) / 2:.2f}"


class HeatMap:
    """The cells by task, tier and architecture, of one version of one suite for each task."""

    def __init__(self, board: Board) -> None:
        self.tiers: dict[str, list[int]] = {}
        self.cells: dict[tuple[str, int, str], HeatCell] = {}
        for task in board.tasks:
            for entry in board.drawn_entries(task):
                suite = entry.result.suite
                if suite and has_capacity(entry) and holds_in_weights(entry):
                    cell = HeatCell(entry, bits_per_parameter(entry), entry.path in board.verified)
                    self.cells[task, suite.tier, entry.result.architecture.name] = cell
        for task in board.tasks:
            tiers = sorted({tier for each, tier, _ in self.cells if each == task})
            if tiers:
                self.tiers[task] = tiers

    @cached_property
    def families(self) -> list[tuple[str, list[str]]]:
        """Architectures by family, in each the one that holds most on average first."""
        members: dict[str, set[str]] = defaultdict(set)
        for (_, _, name), cell in self.cells.items():
            members[family_of(cell.entry.result)].add(name)
        shown = set(sorted({name for _, _, name in self.cells}, key=lambda n: (-self._mean(n), n))[:MAX_ARCHITECTURES])
        return [
            (family, sorted(names & shown, key=lambda name: (-self._mean(name), name)))
            for family, names in sorted(members.items(), key=lambda each: family_order(each[0]))
            if names & shown
        ]

    @property
    def n_left_out(self) -> int:
        """Number of architectures that do not fit."""
        return len({name for _, _, name in self.cells}) - sum(len(names) for _, names in self.families)

    @cached_property
    def scale(self) -> float:
        """The largest value or end of an interval: the end of the scale of colours and of bars."""
        return max((max(cell.bits.value, cell.bits.high or 0.0) for cell in self.cells.values()), default=1.0) or 1.0

    @cached_property
    def main_tier(self) -> int:
        """The largest of the tiers at which most is known."""
        counts = Counter(tier for _, tier, _ in self.cells)
        return max(counts, key=lambda tier: (counts[tier], tier), default=0)

    def row(self, name: str) -> list[HeatCell | None]:
        """The cells of an architecture, tier by tier and task by task."""
        return [self.cells.get((task, tier, name)) for task, tiers in self.tiers.items() for tier in tiers]

    @cached_property
    def _values(self) -> Mapping[str, Sequence[float]]:
        values: dict[str, list[float]] = defaultdict(list)
        for (_, _, name), cell in self.cells.items():
            values[name].append(cell.bits.value)
        return values

    def _mean(self, name: str) -> float:
        return sum(self._values[name]) / len(self._values[name])
