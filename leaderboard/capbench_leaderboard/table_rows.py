"""Columns and cells of the tables in README and site, and a record as a row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from capbench.documents.text import number
from capbench_leaderboard.ranking.entry import BoardEntry
from capbench_leaderboard.ranking.measures import bits_per_element, training_cost
from capbench_leaderboard.ranking.ranked_tables import RankedRow, RankingGroup
from capbench_leaderboard.record_text import (
    best_guarantee,
    bits_text,
    capacity_and_interval_text,
    capacity_text,
    comparison_text,
    constructed_text,
    cost_text,
    drift_text,
    interval_text,
    plain_line,
    probability_text,
    rates_text,
    ratios_text,
    seconds_text,
    shape_text,
    state_bits_text,
    status_text,
    tier_text,
)


class TableCell(NamedTuple):
    """The text of a cell, its sort key if that is not the text, its link, and whether it is greyed."""

    text: str
    sort: float | str | None = None
    href: str = ""
    is_greyed: bool = False


class Column(NamedTuple):
    """A heading, and the kind of its cells: n numbers, right-aligned; s short, on one line; w sentences; else names."""

    label: str
    kind: str = ""


RANKED_COLUMNS = (
    Column("rank", "n"),
    Column("best", "n"),
    Column("architecture"),
    Column("capacity", "n"),
    Column("95 % interval", "n"),
    Column("bits per parameter", "n"),
    Column("bits per element of state", "n"),
    Column("parameters", "n"),
    Column("drift", "n"),
    Column("shape", "w"),
    Column("learning rate", "n"),
    Column("training cost", "n"),
    Column("time", "n"),
    Column("guaranteed", "n"),
    Column("constructed", "n"),
    Column("measured / lower bound"),
    Column("on shared seeds", "w long"),
)
TASK_PAGE_ONLY = frozenset(
    {
        "bits per element of state",
        "shape",
        "learning rate",
        "on shared seeds",
        "guaranteed",
        "constructed",
        "measured / lower bound",
    }
)
"""Columns of a task's page that the tables over all tasks do not have."""
OPTIONAL = frozenset({"bits per parameter", "bits per element of state"})
"""Columns that a table has only where one of its records has a value."""
README_COLUMNS = ("rank", "architecture", "capacity (95 % interval)", "bits per parameter", "best")
FRONT_COLUMNS = (
    Column("task"),
    Column("size", "n"),
    Column("architecture"),
    Column("capacity", "n"),
    Column("training cost", "n"),
    Column("bits per parameter", "n"),
)
SORTED_LAST = 10**12
"""Sort key of a record without a rank."""
OVERVIEW_COLUMNS = (
    Column("task"),
    Column("suite", "s"),
    Column("size", "n"),
    Column("status", "s"),
    *(column for column in RANKED_COLUMNS if column.label not in TASK_PAGE_ONLY),
)


def front_cells(entry: BoardEntry, task_page: str, page: str) -> list[TableCell]:
    """A record on the Pareto front as a row of `FRONT_COLUMNS`."""
    result, cost = entry.result, training_cost(entry)
    size = result.suite.tier if result.suite else result.n_parameters
    return [
        TableCell(plain_line(result.task.name), None, task_page),
        TableCell(tier_text(size), size),
        TableCell(plain_line(result.architecture.name), None, page),
        TableCell(capacity_and_interval_text(result.capacity), result.capacity.estimate),
        TableCell(cost_text(cost), cost),
        TableCell(bits_text(entry), result.bits_per_parameter),
    ]


def overview_cells(group: RankingGroup, row: RankedRow, task_page: str, page: str) -> list[TableCell]:
    """A record as a row of a table over all tasks: first its group, then the record."""
    cells = ranked_cells(replace(row, compared=(), same_model_as=()), {}, page)
    return [
        TableCell(plain_line(group.task), None, task_page),
        TableCell(f"{plain_line(group.suite)} {group.suite_version}" if group.suite else "–"),
        TableCell(tier_text(group.tier), group.tier),
        TableCell(status_text(group.is_self_reported)),
        *(cell for cell, column in zip(cells, RANKED_COLUMNS, strict=True) if column.label not in TASK_PAGE_ONLY),
    ]


def ranked_cells(row: RankedRow, labels: Mapping[str, str], page: str) -> list[TableCell]:
    """A record as a row of a ranked table."""
    result = row.entry.result
    capacity, guarantee = result.capacity, best_guarantee(result)
    constructed = result.counted_construction
    cost = training_cost(row.entry)
    cells = [
        *_standing_cells(row),
        TableCell(plain_line(result.architecture.name), None, page),
        TableCell(capacity_text(capacity), capacity.estimate),
        TableCell(interval_text(capacity), capacity.ci_low or 0.0),
        TableCell(bits_text(row.entry), result.bits_per_parameter),
        TableCell(state_bits_text(result), bits_per_element(result) or -1.0),
        TableCell(number(result.n_parameters), result.n_parameters),
        TableCell(drift_text(capacity), -1.0 if capacity.drift is None else capacity.drift),
        TableCell(shape_text(result)),
        TableCell(rates_text(result.rates), result.rates.best if result.rates else -1.0),
        TableCell(cost_text(cost), -1 if cost is None else cost),
        TableCell(seconds_text(result.timing.wall_seconds), result.timing.wall_seconds),
        TableCell(number(guarantee), -1.0 if guarantee is None else guarantee),
        TableCell(constructed_text(result), constructed.estimate if constructed else -1.0),
        TableCell(ratios_text(result)),
        TableCell(comparison_text(row, labels)),
    ]
    return [cell._replace(is_greyed=row.entry.is_unsettled) for cell in cells]


def without_unused(
    columns: Sequence[Column], rows: Sequence[Sequence[TableCell]]
) -> tuple[tuple[Column, ...], list[list[TableCell]]]:
    """The columns and cells of a table without the optional columns in which no record has a value."""
    kept = [i for i, c in enumerate(columns) if c.label not in OPTIONAL or any(row[i].text != "–" for row in rows)]
    return tuple(columns[i] for i in kept), [[row[i] for i in kept] for row in rows]


def readme_cells(row: RankedRow, page: str) -> list[TableCell]:
    """A record as a row of a short table, with the columns `README_COLUMNS`."""
    result, (rank, best) = row.entry.result, _standing_cells(row)
    cells = [
        rank,
        TableCell(plain_line(result.architecture.name), None, page),
        TableCell(capacity_and_interval_text(result.capacity)),
        TableCell(bits_text(row.entry)),
        best,
    ]
    return [cell._replace(is_greyed=row.entry.is_unsettled) for cell in cells]


def _standing_cells(row: RankedRow) -> list[TableCell]:
    """Rank and probability of being best; records that are not ranked are sorted last."""
    if row.standing is None:
        return [TableCell(row.rank, SORTED_LAST), TableCell("–", -1.0)]
    best, worst, probability = row.standing.best, row.standing.worst, row.standing.greatest_probability
    return [
        TableCell(row.rank, best * 1_000_000 + worst),
        TableCell(probability_text(row.standing), round(probability, 4)),
    ]
