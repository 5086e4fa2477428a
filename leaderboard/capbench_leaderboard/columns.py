"""The columns of the ranked tables, on the site as in the README, and a record as a row of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from capbench.report.text import number
from capbench_leaderboard.grid import Cell, Column
from capbench_leaderboard.ranking import Group, Row
from capbench_leaderboard.wording import (
    capacity_text,
    constructed_text,
    guaranteed,
    interval_text,
    paired_text,
    ratios_text,
    seconds_text,
    shown,
    standing_text,
    tier_text,
)

RANKED = (
    Column("rank", "n"),
    Column("architecture"),
    Column("capacity", "n"),
    Column("95 % interval", "n"),
    Column("parameters", "n"),
    Column("bits a parameter", "n"),
    Column("time", "n"),
    Column("guaranteed", "n"),
    Column("constructed", "n"),
    Column("measured / lower bound"),
    Column("on shared seeds", "w"),
)
LEFT_OUT = frozenset({"on shared seeds", "guaranteed", "constructed", "measured / lower bound"})
"""Columns that stand on the page of a task and not in the tables across tasks."""
ACROSS = (
    Column("task"),
    Column("suite", "s"),
    Column("size", "n"),
    Column("standing", "s"),
    *(column for column in RANKED if column.label not in LEFT_OUT),
)


def across_cells(group: Group, row: Row, task_page: str, page: str) -> list[Cell]:
    """A record as a row of a table across tasks: its group first."""
    cells = ranked_cells(replace(row, compared=()), {}, page)
    return [
        Cell(shown(group.task), None, task_page),
        Cell(f"{shown(group.suite)} {group.suite_version}" if group.suite else "–"),
        Cell(tier_text(group.tier), group.tier),
        Cell(standing_text(group.is_self_reported)),
        *(cell for cell, column in zip(cells, RANKED, strict=True) if column.label not in LEFT_OUT),
    ]


def ranked_cells(row: Row, labels: Mapping[str, str], page: str) -> list[Cell]:
    """A record as a row of a ranked table."""
    result = row.entry.result
    capacity, least = result.capacity, guaranteed(result)
    made = capacity if result.rates is None else result.constructed and result.constructed.capacity
    return [
        Cell(row.rank, row.best * 1_000_000 + row.worst),
        Cell(shown(result.architecture.name), None, page),
        Cell(capacity_text(capacity), capacity.estimate),
        Cell(interval_text(capacity), capacity.ci_low or 0.0),
        Cell(number(result.n_parameters), result.n_parameters),
        Cell(number(result.bits_per_parameter), result.bits_per_parameter),
        Cell(seconds_text(result.timing.wall_seconds), result.timing.wall_seconds),
        Cell(number(least), -1.0 if least is None else least),
        Cell(constructed_text(result), made.estimate if made else -1.0),
        Cell(ratios_text(result)),
        Cell(paired_text(row.compared, labels)),
    ]
