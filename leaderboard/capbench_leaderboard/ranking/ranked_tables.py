"""Ranked tables: entries grouped and ranked. Ranks are ranges, because capacities are known as posteriors."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from math import comb

import numpy as np

from capbench.documents.result import MissingRecord, Protocol, SuiteCell, TierUnit
from capbench_leaderboard.ranking.comparison import PairedComparison, are_trials_equal, compare_shared_trials, holm
from capbench_leaderboard.ranking.entry import BoardEntry
from capbench_leaderboard.ranking.posterior import Standing, make_posterior, rank_jointly

ROWS_COMPARED = 8
"""Number of rows below it with which each row is compared on shared seeds."""
RANKING_SEED = 0
"""Every table draws from a generator of its own with this seed, so that the same records give the same ranks."""


@dataclass(frozen=True, order=True)
class RankingGroup:
    """What must be equal for two records to be ranked against each other."""

    suite: str
    """Empty for records outside a suite: these are listed and not ranked."""
    suite_version: int
    task: str
    task_version: int
    tier: int
    """Target number of parameters, or of elements of state; 0 outside a suite."""
    is_self_reported: bool
    scorer: str
    """The criterion, and what is searched for."""
    task_params: str
    solver: str
    training: str
    """Steps, learning rates and precision, or how they are chosen for each record."""
    unit: TierUnit = "parameters"
    """What the tier counts."""

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
    """A record with its standing in the table; without one it is listed and not ranked."""

    entry: BoardEntry
    standing: Standing | None = None
    compared: tuple[PairedComparison, ...] = ()
    same_model_as: tuple[str, ...] = ()
    """Architectures of the other records of this model in the table, which share its place."""

    @property
    def rank(self) -> str:
        """The range as text; a dash if the record is not ranked."""
        if self.standing is None:
            return "not settled" if self.entry.is_unsettled else "–"
        best, worst = self.standing.best, self.standing.worst
        return str(best) if best == worst else f"{best}–{worst}"

    @property
    def may_be_first(self) -> bool:
        """Whether its range of ranks begins with the first."""
        return self.standing is not None and self.standing.best == 1


@dataclass(frozen=True)
class RankedTable:
    """The records of a group, best first, and the records that it lacks."""

    group: RankingGroup
    rows: tuple[RankedRow, ...]
    missing: tuple[MissingRecord, ...] = ()

    @property
    def n_pairs(self) -> int:
        """Number of pairs of ranked records, for which the tests on shared seeds are corrected."""
        return comb(sum(row.standing is not None for row in self.rows), 2)


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
        training=_training_text(protocol, suite),
        unit=suite.unit if suite else "parameters",
    )


def _search_text(protocol: Protocol) -> str:
    """What the capacity number is: the result of a search, or read at one load."""
    return {
        "capacity": "the largest load is searched for",
        "minimize": f"the least {protocol.parameter} for {protocol.at} facts is searched for",
        "at": f"read at {protocol.at} facts",
        "overload": f"read under {protocol.at} facts, more than it holds",
    }[protocol.mode]


def _training_text(protocol: Protocol, suite: SuiteCell | None) -> str:
    if not protocol.learning_rates:
        return f"nothing is trained, {protocol.dtype}"
    if suite and suite.settle:
        return f"steps and learning rate chosen until capacities are settled to {suite.settle:.0%}, {protocol.dtype}"
    rates = ", ".join(f"{rate:g}" for rate in protocol.learning_rates)
    return f"at most {protocol.steps:,} steps, learning rates {rates}, {protocol.dtype}"


def rank_chosen(entries: Sequence[BoardEntry]) -> tuple[RankedRow, ...]:
    """Ranks runs that a user chose to compare, of any size, if all have the same task and scorer."""
    groups = {
        replace(group_of(entry, True), suite="", suite_version=0, tier=0, solver="", training="", unit="parameters")
        for entry in entries
    }
    group = groups.pop()
    return _rows(replace(group, suite="" if groups else "chosen"), list(entries))


def _rows(group: RankingGroup, entries: list[BoardEntry]) -> tuple[RankedRow, ...]:
    """The ranked records, best first, then the others by name."""
    ranked = [entry for entry in entries if group.is_ranked and not entry.is_unsettled]
    others = [entry for entry in entries if not group.is_ranked or entry.is_unsettled]
    others.sort(key=lambda entry: (entry.result.architecture.name, entry.path))
    return (*_compare_rows(_rank_entries(ranked)), *(RankedRow(entry) for entry in others))


def _rank_entries(entries: Sequence[BoardEntry]) -> list[RankedRow]:
    """Ranks models by their joint posterior; records of one model share its place."""
    models = _group_by_model(entries)
    posteriors = [make_posterior(_most_precise(records).result.capacity) for records in models]
    standings = rank_jointly(posteriors, np.random.default_rng(RANKING_SEED))
    rows = [
        RankedRow(record, standing, same_model_as=tuple(_name(other) for other in records if other is not record))
        for records, standing in zip(models, standings, strict=True)
        for record in records
    ]
    return sorted(rows, key=_row_order)


def _group_by_model(entries: Sequence[BoardEntry]) -> list[list[BoardEntry]]:
    """Records of the same model together, in an order that does not depend on the order given."""
    models: list[list[BoardEntry]] = []
    # Equal models share results that did not hold, and others hardly any: only models found there are compared.
    models_by_result: dict[object, set[int]] = defaultdict(set)
    for entry in sorted(entries, key=lambda each: (each.result.run_id, each.path)):
        results = [(trial, found) for trial, found in entry.prints.items() if not found.has_held]
        candidates = sorted(set().union(*(models_by_result[result] for result in results)))
        place = next((i for i in candidates if all(_is_same_model(entry, each) for each in models[i])), len(models))
        if place == len(models):
            models.append([])
        models[place].append(entry)
        for result in results:
            models_by_result[result].add(place)
    return models


def _is_same_model(one: BoardEntry, other: BoardEntry) -> bool:
    """Whether two records have the same number of parameters and equal results in all trials that they share."""
    return one.result.n_parameters == other.result.n_parameters and are_trials_equal(one.prints, other.prints)


def _most_precise(records: Sequence[BoardEntry]) -> BoardEntry:
    """The record with the narrowest interval."""
    return min(records, key=lambda each: each.interval[1] - each.interval[0])


def _name(entry: BoardEntry) -> str:
    return entry.result.architecture.name


def _row_order(row: RankedRow) -> tuple[int, int, float, str]:
    best, worst = (row.standing.best, row.standing.worst) if row.standing else (0, 0)
    return best, worst, -_sign(row.entry) * row.entry.result.capacity.estimate, row.entry.path


def _compare_rows(rows: Sequence[RankedRow]) -> list[RankedRow]:
    """Compares each row with those below it on shared seeds, corrected for all pairs of the table."""
    pairs = [
        (row, other, compare_shared_trials(other.entry.path, row.entry.held_by_trial, other.entry.held_by_trial))
        for i, row in enumerate(rows)
        for other in rows[i + 1 : i + 1 + ROWS_COMPARED]
        if row.standing is not other.standing
    ]
    adjusted = holm([found.p_value for _, _, found in pairs], comb(len(rows), 2))
    shown: dict[str, list[PairedComparison]] = defaultdict(list)
    for (row, other, found), p_value in zip(pairs, adjusted, strict=True):
        corrected = replace(found, p_value=p_value)
        if corrected.is_significant or (corrected.n_shared and _share_a_rank(row, other)):
            shown[row.entry.path].append(corrected)
    return [replace(row, compared=tuple(shown[row.entry.path])) for row in rows]


def _share_a_rank(one: RankedRow, other: RankedRow) -> bool:
    this, that = one.standing, other.standing
    return this is not None and that is not None and this.best <= that.worst and that.best <= this.worst


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
