"""Columns and cells of the tables in README and site, and a record as a row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from capbench.documents.text import number
from capbench_leaderboard.ranking.ranked_tables import RankedRow, RankingGroup
from capbench_leaderboard.record_text import (
    best_guarantee,
    capacity_text,
    comparison_text,
    constructed_text,
    interval_text,
    plain_line,
    probability_text,
    ratios_text,
    seconds_text,
    status_text,
    tier_text,
)


class Cell(NamedTuple):
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
    Column("parameters", "n"),
    Column("bits per parameter", "n"),
    Column("time", "n"),
    Column("guaranteed", "n"),
    Column("constructed", "n"),
    Column("measured / lower bound"),
    Column("on shared seeds", "w"),
)
TASK_PAGE_ONLY = frozenset({"on shared seeds", "guaranteed", "constructed", "measured / lower bound"})
"""Columns of a task's page that the tables over all tasks do not have."""
SORTED_LAST = 10**12
"""Sort key of a record without a rank."""
OVERVIEW_COLUMNS = (
    Column("task"),
    Column("suite", "s"),
    Column("size", "n"),
    Column("status", "s"),
    *(column for column in RANKED_COLUMNS if column.label not in TASK_PAGE_ONLY),
)


def overview_cells(group: RankingGroup, row: RankedRow, task_page: str, page: str) -> list[Cell]:
    """A record as a row of a table over all tasks: first its group, then the record."""
    cells = ranked_cells(replace(row, compared=(), same_model_as=()), {}, page)
    return [
        Cell(plain_line(group.task), None, task_page),
        Cell(f"{plain_line(group.suite)} {group.suite_version}" if group.suite else "–"),
        Cell(tier_text(group.tier), group.tier),
        Cell(status_text(group.is_self_reported)),
        *(cell for cell, column in zip(cells, RANKED_COLUMNS, strict=True) if column.label not in TASK_PAGE_ONLY),
    ]


def ranked_cells(row: RankedRow, labels: Mapping[str, str], page: str) -> list[Cell]:
    """A record as a row of a ranked table."""
    result = row.entry.result
    capacity, guarantee = result.capacity, best_guarantee(result)
    constructed = capacity if result.rates is None else result.constructed and result.constructed.capacity
    cells = [
        *_standing_cells(row),
        Cell(plain_line(result.architecture.name), None, page),
        Cell(capacity_text(capacity), capacity.estimate),
        Cell(interval_text(capacity), capacity.ci_low or 0.0),
        Cell(number(result.n_parameters), result.n_parameters),
        Cell(number(result.bits_per_parameter), result.bits_per_parameter),
        Cell(seconds_text(result.timing.wall_seconds), result.timing.wall_seconds),
        Cell(number(guarantee), -1.0 if guarantee is None else guarantee),
        Cell(constructed_text(result), constructed.estimate if constructed else -1.0),
        Cell(ratios_text(result)),
        Cell(comparison_text(row, labels)),
    ]
    return [cell._replace(is_greyed=row.entry.is_unsettled) for cell in cells]


def _standing_cells(row: RankedRow) -> list[Cell]:
    """Rank and probability of being best; records that are not ranked are sorted last."""
    if row.standing is None:
        return [Cell(row.rank, SORTED_LAST), Cell("–", -1.0)]
    best, worst, probability = row.standing.best, row.standing.worst, row.standing.greatest_probability
    return [Cell(row.rank, best * 1_000_000 + worst), Cell(probability_text(row.standing), round(probability, 4))]
