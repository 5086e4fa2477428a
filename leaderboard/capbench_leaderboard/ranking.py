"""Ranking: a pure function from entries to tables. Ranks are ranges, because capacities have intervals."""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from capbench.results import MissingRecord, Protocol
from capbench_leaderboard.entry import Entry
from capbench_leaderboard.pairing import Comparison, compare

NEIGHBOURS = 8
"""Each row is compared on shared seeds with so many rows below it."""


@dataclass(frozen=True, order=True)
class Group:
    """What must be equal for two records to be ranked against each other."""

    suite: str
    """Empty for records of no suite: these are listed and not ranked."""
    suite_version: int
    task: str
    task_version: int
    tier: int
    """Number of parameters aimed at; 0 outside a suite."""
    is_self_reported: bool
    scorer: str
    """What counts as holding, and what is searched for."""
    task_params: str
    solver: str
    training: str
    """How long, at which rates and in which precision."""

    @property
    def is_ranked(self) -> bool:
        """Whether the suite makes its records comparable."""
        return bool(self.suite)

    @property
    def order(self) -> tuple[bool, str, int, str, int, Group]:
        """Suites before what is outside them, the newest versions first."""
        return not self.is_ranked, self.suite, -self.suite_version, self.task, -self.task_version, self


@dataclass(frozen=True)
class Row:
    """A record with the range of ranks that its interval allows."""

    entry: Entry
    best: int
    worst: int
    compared: tuple[Comparison, ...] = ()

    @property
    def rank(self) -> str:
        """The range as it is written; a dash where nothing is ranked."""
        if self.best == 0:
            return "–"
        return str(self.best) if self.best == self.worst else f"{self.best}–{self.worst}"


@dataclass(frozen=True)
class Table:
    """The records of a group, the likely best first, and what the group lacks."""

    group: Group
    rows: tuple[Row, ...]
    missing: tuple[MissingRecord, ...] = ()


def rank(
    entries: Iterable[Entry], verified: Collection[str], missing: Iterable[tuple[str, MissingRecord]] = ()
) -> tuple[Table, ...]:
    """Tables of comparable records. `verified` holds the paths of those that somebody has checked."""
    groups: dict[Group, list[Entry]] = defaultdict(list)
    for entry in entries:
        groups[group_of(entry, entry.path not in verified)].append(entry)
    tables = [Table(group, _rows(group, members)) for group, members in groups.items()]
    return tuple(sorted(_with_missing(tables, missing), key=lambda table: table.group.order))


def group_of(entry: Entry, is_self_reported: bool) -> Group:
    """The group of a record: never across versions of its task, its scorer or its suite."""
    result, suite, protocol = entry.result, entry.result.suite, entry.result.protocol
    return Group(
        suite=suite.name if suite else "",
        suite_version=suite.version if suite else 0,
        task=result.task.name,
        task_version=result.task.version,
        tier=suite.tier if suite else 0,
        is_self_reported=is_self_reported,
        scorer=f"{protocol.criterion}; {_searched(protocol)}; protocol {protocol.name}",
        task_params=json.dumps(result.task.params, sort_keys=True),
        solver=f"{result.solver.name} {result.solver.version}",
        training=_training(protocol),
    )


def _searched(protocol: Protocol) -> str:
    """What the number is: found by a search, or read at a load."""
    return {
        "capacity": "the largest load is searched for",
        "minimize": f"the least {protocol.parameter} for {protocol.at} facts is searched for",
        "at": f"read at {protocol.at} facts",
        "overload": f"read under {protocol.at} facts, more than it holds",
    }[protocol.mode]


def _training(protocol: Protocol) -> str:
    if not protocol.learning_rates:
        return f"nothing is trained, {protocol.dtype}"
    rates = ", ".join(f"{rate:g}" for rate in protocol.learning_rates)
    return f"at most {protocol.steps:,} steps, learning rates {rates}, {protocol.dtype}"


def rank_ranges(intervals: Sequence[tuple[float, float]]) -> list[tuple[int, int]]:
    """The best and the worst rank that each interval allows: a rank is lost only to who lies wholly above."""
    lows, highs = sorted(low for low, _ in intervals), sorted(high for _, high in intervals)
    n = len(intervals)
    return [(1 + n - bisect_right(lows, high), n - bisect_left(highs, low)) for low, high in intervals]


def side_by_side(entries: Sequence[Entry]) -> tuple[Row, ...]:
    """Records that a user puts next to each other: ranked where task and scorer are the same, whatever their size."""
    groups = {
        replace(group_of(entry, True), suite="", suite_version=0, tier=0, solver="", training="") for entry in entries
    }
    group = groups.pop()
    return _rows(replace(group, suite="" if groups else "chosen"), list(entries))


def _rows(group: Group, entries: list[Entry]) -> tuple[Row, ...]:
    if not group.is_ranked:
        return tuple(Row(entry, 0, 0) for entry in sorted(entries, key=lambda e: (e.result.architecture.name, e.path)))
    ranges = rank_ranges([_merit_interval(entry) for entry in entries])
    rows = [Row(entry, best, worst) for entry, (best, worst) in zip(entries, ranges, strict=True)]
    rows.sort(
        key=lambda row: (row.best, row.worst, -_sign(row.entry) * row.entry.result.capacity.estimate, row.entry.path)
    )
    return tuple(replace(row, compared=_compared(row, rows[i + 1 : i + 1 + NEIGHBOURS])) for i, row in enumerate(rows))


def _compared(row: Row, below: Sequence[Row]) -> tuple[Comparison, ...]:
    """Against the next rows: where the shared trials decide, or where they do not and the intervals do not either."""
    found = [(other, compare(other.entry.path, row.entry.outcomes, other.entry.outcomes)) for other in below]
    return tuple(each for other, each in found if each.decides or (each.n_shared and _overlap(row, other)))


def _overlap(one: Row, other: Row) -> bool:
    (low, high), (other_low, other_high) = one.entry.interval, other.entry.interval
    return low <= other_high and other_low <= high


def _merit_interval(entry: Entry) -> tuple[float, float]:
    """The interval turned so that more is better."""
    low, high = entry.interval
    return (low, high) if _sign(entry) > 0 else (-high, -low)


def _sign(entry: Entry) -> int:
    return -1 if entry.result.capacity.kind == "least_budget" else 1


def _with_missing(tables: list[Table], missing: Iterable[tuple[str, MissingRecord]]) -> list[Table]:
    """Puts what is missing into the table where it would have stood; a place with no record gets a table of its own."""
    lacking: dict[tuple[str, str, int], list[MissingRecord]] = defaultdict(list)
    for suite, row in missing:
        lacking[suite, row.task, row.tier].append(row)
    found = []
    # The newest version comes first: what a suite lacks is said of how it is now.
    for table in sorted(tables, key=lambda t: t.group.order):
        place = (table.group.suite, table.group.task, table.group.tier)
        found.append(replace(table, missing=_sorted(lacking.pop(place, []))))
    newest: dict[str, int] = defaultdict(int)
    for table in tables:
        newest[table.group.suite] = max(newest[table.group.suite], table.group.suite_version)
    return found + [Table(bare_group(*place, newest[place[0]]), (), _sorted(rows)) for place, rows in lacking.items()]


def bare_group(suite: str, task: str, tier: int, version: int) -> Group:
    """A group without records."""
    return Group(suite, version, task, 0, tier, True, "", "", "", "")


def _sorted(rows: Iterable[MissingRecord]) -> tuple[MissingRecord, ...]:
    return tuple(sorted(rows, key=lambda row: (row.architecture, row.reason)))
