"""Ranked tables: entries grouped and ranked. Ranks are ranges, because capacities have intervals."""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from capbench.documents.result import MissingRecord, Protocol
from capbench_leaderboard.ranking.comparison import PairedComparison, compare_shared_trials
from capbench_leaderboard.ranking.entry import BoardEntry

ROWS_COMPARED = 8
"""Number of rows below it with which each row is compared on shared seeds."""


@dataclass(frozen=True, order=True)
class RankingGroup:
    """What must be equal for two records to be ranked against each other."""

    suite: str
    """Empty for records outside a suite: these are listed and not ranked."""
    suite_version: int
    task: str
    task_version: int
    tier: int
    """Target number of parameters; 0 outside a suite."""
    is_self_reported: bool
    scorer: str
    """The criterion, and what is searched for."""
    task_params: str
    solver: str
    training: str
    """Steps, learning rates and precision."""

    @property
    def is_ranked(self) -> bool:
        """Whether the suite makes its records comparable."""
        return bool(self.suite)

    @property
    def order(self) -> tuple[bool, str, int, str, int, RankingGroup]:
        """Sort key: suites before records outside them, newest versions first."""
        return not self.is_ranked, self.suite, -self.suite_version, self.task, -self.task_version, self


@dataclass(frozen=True)
class RankedRow:
    """A record with the range of ranks that its interval allows."""

    entry: BoardEntry
    best: int
    worst: int
    compared: tuple[PairedComparison, ...] = ()

    @property
    def rank(self) -> str:
        """The range as text; a dash if the group is not ranked."""
        if self.best == 0:
            return "–"
        return str(self.best) if self.best == self.worst else f"{self.best}–{self.worst}"


@dataclass(frozen=True)
class RankedTable:
    """The records of a group, best first, and the records that it lacks."""

    group: RankingGroup
    rows: tuple[RankedRow, ...]
    missing: tuple[MissingRecord, ...] = ()


def rank(
    entries: Iterable[BoardEntry], verified: Collection[str], missing: Iterable[tuple[str, MissingRecord]] = ()
) -> tuple[RankedTable, ...]:
    """Ranks entries within their groups. `verified` holds the paths of verified records."""
    groups: dict[RankingGroup, list[BoardEntry]] = defaultdict(list)
    for entry in entries:
        groups[group_of(entry, entry.path not in verified)].append(entry)
    tables = [RankedTable(group, _rows(group, members)) for group, members in groups.items()]
    return tuple(sorted(_add_missing(tables, missing), key=lambda table: table.group.order))


def group_of(entry: BoardEntry, is_self_reported: bool) -> RankingGroup:
    """The group of a record: different versions of a task, a scorer or a suite never share one."""
    result, suite, protocol = entry.result, entry.result.suite, entry.result.protocol
    return RankingGroup(
        suite=suite.name if suite else "",
        suite_version=suite.version if suite else 0,
        task=result.task.name,
        task_version=result.task.version,
        tier=suite.tier if suite else 0,
        is_self_reported=is_self_reported,
        scorer=f"{protocol.criterion}; {_search_text(protocol)}; protocol {protocol.name}",
        task_params=json.dumps(result.task.params, sort_keys=True),
        solver=f"{result.solver.name} {result.solver.version}",
        training=_training_text(protocol),
    )


def _search_text(protocol: Protocol) -> str:
    """What the capacity number is: the result of a search, or read at one load."""
    return {
        "capacity": "the largest load is searched for",
        "minimize": f"the least {protocol.parameter} for {protocol.at} facts is searched for",
        "at": f"read at {protocol.at} facts",
        "overload": f"read under {protocol.at} facts, more than it holds",
    }[protocol.mode]


def _training_text(protocol: Protocol) -> str:
    if not protocol.learning_rates:
        return f"nothing is trained, {protocol.dtype}"
    rates = ", ".join(f"{rate:g}" for rate in protocol.learning_rates)
    return f"at most {protocol.steps:,} steps, learning rates {rates}, {protocol.dtype}"


def rank_ranges(intervals: Sequence[tuple[float, float]]) -> list[tuple[int, int]]:
    """The best and the worst rank of each interval: only an interval wholly above another is ranked above it."""
    lows, highs = sorted(low for low, _ in intervals), sorted(high for _, high in intervals)
    n = len(intervals)
    return [(1 + n - bisect_right(lows, high), n - bisect_left(highs, low)) for low, high in intervals]


def rank_chosen(entries: Sequence[BoardEntry]) -> tuple[RankedRow, ...]:
    """Ranks runs that a user chose to compare, of any size, if all have the same task and scorer."""
    groups = {
        replace(group_of(entry, True), suite="", suite_version=0, tier=0, solver="", training="") for entry in entries
    }
    group = groups.pop()
    return _rows(replace(group, suite="" if groups else "chosen"), list(entries))


def _rows(group: RankingGroup, entries: list[BoardEntry]) -> tuple[RankedRow, ...]:
    if not group.is_ranked:
        return tuple(
            RankedRow(entry, 0, 0) for entry in sorted(entries, key=lambda e: (e.result.architecture.name, e.path))
        )
    ranges = rank_ranges([_merit_interval(entry) for entry in entries])
    rows = [RankedRow(entry, best, worst) for entry, (best, worst) in zip(entries, ranges, strict=True)]
    rows.sort(
        key=lambda row: (row.best, row.worst, -_sign(row.entry) * row.entry.result.capacity.estimate, row.entry.path)
    )
    return tuple(
        replace(row, compared=_compare_below(row, rows[i + 1 : i + 1 + ROWS_COMPARED])) for i, row in enumerate(rows)
    )


def _compare_below(row: RankedRow, below: Sequence[RankedRow]) -> tuple[PairedComparison, ...]:
    """Comparisons with the rows below that are significant, or undecided with overlapping intervals."""
    found = [
        (other, compare_shared_trials(other.entry.path, row.entry.held_by_trial, other.entry.held_by_trial))
        for other in below
    ]
    return tuple(
        each for other, each in found if each.is_significant or (each.n_shared and _intervals_overlap(row, other))
    )


def _intervals_overlap(one: RankedRow, other: RankedRow) -> bool:
    (low, high), (other_low, other_high) = one.entry.interval, other.entry.interval
    return low <= other_high and other_low <= high


def _merit_interval(entry: BoardEntry) -> tuple[float, float]:
    """The interval, negated where less is better."""
    low, high = entry.interval
    return (low, high) if _sign(entry) > 0 else (-high, -low)


def _sign(entry: BoardEntry) -> int:
    return -1 if entry.result.capacity.kind == "least_budget" else 1


def _add_missing(tables: list[RankedTable], missing: Iterable[tuple[str, MissingRecord]]) -> list[RankedTable]:
    """Adds each missing record to the table of its suite, task and tier; without such a table it gets a new one."""
    by_table: dict[tuple[str, str, int], list[MissingRecord]] = defaultdict(list)
    for suite, row in missing:
        by_table[suite, row.task, row.tier].append(row)
    found = []
    # The newest version comes first: missing records refer to the current suite.
    for table in sorted(tables, key=lambda t: t.group.order):
        key = (table.group.suite, table.group.task, table.group.tier)
        found.append(replace(table, missing=_sorted(by_table.pop(key, []))))
    newest: dict[str, int] = defaultdict(int)
    for table in tables:
        newest[table.group.suite] = max(newest[table.group.suite], table.group.suite_version)
    return found + [
        RankedTable(_empty_group(*key, newest[key[0]]), (), _sorted(rows)) for key, rows in by_table.items()
    ]


def _empty_group(suite: str, task: str, tier: int, version: int) -> RankingGroup:
    """The group of a table that has only missing records."""
    return RankingGroup(suite, version, task, 0, tier, True, "", "", "", "")


def _sorted(rows: Iterable[MissingRecord]) -> tuple[MissingRecord, ...]:
    return tuple(sorted(rows, key=lambda row: (row.architecture, row.reason)))
