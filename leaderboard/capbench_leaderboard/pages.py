"""The pages of the site: what each shows, handed to its template."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property

from markupsafe import Markup

from capbench.report.text import number
from capbench.results import MissingRecord
from capbench_leaderboard.address import addresses
from capbench_leaderboard.board import Board
from capbench_leaderboard.charts import Datasets, capacity_data, ratio_data
from capbench_leaderboard.entry import Entry
from capbench_leaderboard.grid import Cell, Column, Grid, embedded
from capbench_leaderboard.ranking import Row, Table
from capbench_leaderboard.wording import (
    capacity_text,
    constructed_text,
    group_text,
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
    Column("parameters", "n"),
    Column("capacity", "n"),
    Column("95 % interval", "n"),
    Column("guaranteed", "n"),
    Column("constructed", "n"),
    Column("measured / lower bound"),
    Column("bits a parameter", "n"),
    Column("on shared seeds", "w"),
    Column("time", "n"),
)
LEFT_OUT = frozenset({"on shared seeds", "guaranteed", "constructed"})
"""Columns that stand on the page of a task and not in the tables across tasks."""
ACROSS = tuple(column for column in RANKED if column.label not in LEFT_OUT)
PLACE = (Column("task"), Column("size", "n"), Column("standing"))


@dataclass(frozen=True)
class Chart:
    """A chart of a page: which specification, its data, and a picture or a sketch for browsers without scripts."""

    id: str
    kind: str
    caption: str
    datasets: Datasets
    picture: str = ""
    sketch: Markup = Markup("")  # noqa: RUF009 - it does not change

    @cached_property
    def data(self) -> Markup:
        """The data, for the script."""
        return embedded(self.datasets)


@dataclass(frozen=True)
class Link:
    """A name with its page."""

    name: str
    href: str
    text: str = ""


@dataclass(frozen=True)
class Section:
    """A table of a page with its heading."""

    title: str
    about: str
    table: Grid
    missing: tuple[MissingRecord, ...] = ()


class Pages:
    """Where everything lies, and the tables that lead there."""

    def __init__(self, board: Board) -> None:
        self.board = board
        paths = addresses(entry.path.removesuffix(".json") for entry in board.entries)
        self.records = {f"{path}.json": f"records/{address}.html" for path, address in paths.items()}
        self.names = addresses({table.group.task for table in board.tables})
        architectures = {entry.result.architecture.name for entry in board.entries}
        self.tasks = {task: f"tasks/{address}.html" for task, address in self.names.items()}
        self.architectures = {name: f"architectures/{a}.html" for name, a in addresses(architectures).items()}

    @cache  # noqa: B019 - there is one of it in a build
    def entries(self, task: str) -> list[Entry]:
        """The records of a task."""
        return [entry for entry in self.board.entries if entry.result.task.name == task]

    def overview(self) -> Grid:
        """Every record in one table."""
        found = [(table, row) for table in self.board.tables for row in table.rows]
        rows = [[*self._place(table), *self._across(row, "")] for table, row in found]
        return Grid("all", "All records", (*PLACE, *ACROSS), rows)

    def task_sections(self, task: str) -> list[Section]:
        """A ranked table for each group of a task."""
        own = [table for table in self.board.tables if table.group.task == task]
        return [self._section(f"group{i}", table) for i, table in enumerate(own)]

    def _section(self, name: str, table: Table) -> Section:
        title = group_text(table.group)
        labels = self._labels(table)
        grid = Grid(name, title, RANKED, [self._cells(row, labels, "../") for row in table.rows])
        scorer, params = table.group.scorer, shown(_fields(table.group.task_params))
        about = f"Held: {shown(scorer)}. Task version {table.group.task_version}, {params}" if scorer else ""
        return Section(f"{title[0].upper()}{title[1:]}", about, grid, table.missing)

    def architecture_section(self, architecture: str) -> Section:
        """Every record of an architecture."""
        rows = [
            [*self._place(table, "../"), *self._across(row, "../")]
            for table in self.board.tables
            for row in table.rows
            if row.entry.result.architecture.name == architecture
        ]
        return Section("Records", "", Grid("records", "Records", (*PLACE, *ACROSS), rows))

    @cache  # noqa: B019 - there is one of it in a build
    def links(self, root: str) -> Mapping[str, str]:
        """The page of each record, seen from a folder."""
        return {path: f"{root}{page}" for path, page in self.records.items()}

    def _labels(self, table: Table) -> Mapping[str, str]:
        return {row.entry.path: shown(row.entry.result.architecture.name) for row in table.rows}

    def _place(self, table: Table, root: str = "") -> list[Cell]:
        group = table.group
        return [
            Cell(shown(group.task), None, root + self.tasks[group.task]),
            Cell(tier_text(group.tier), group.tier),
            Cell(standing_text(group.is_self_reported)),
        ]

    def _across(self, row: Row, root: str) -> list[Cell]:
        alone = replace(row, compared=())
        cells = ranked_cells(alone, {}, root + self.records[row.entry.path])
        return [cell for cell, column in zip(cells, RANKED, strict=True) if column.label not in LEFT_OUT]

    def _cells(self, row: Row, labels: Mapping[str, str], root: str) -> list[Cell]:
        page = root + self.records[row.entry.path]
        return ranked_cells(row, labels, page)


def _fields(params: str) -> str:
    """A task's fields as they are set on the command line."""
    return ", ".join(f"{name}={json.dumps(value)}" for name, value in json.loads(params or "{}").items())


def ranked_cells(row: Row, labels: Mapping[str, str], page: str) -> list[Cell]:
    """A record as a row of a ranked table."""
    result = row.entry.result
    capacity, least = result.capacity, guaranteed(result)
    made = capacity if result.rates is None else result.constructed and result.constructed.capacity
    return [
        Cell(row.rank, row.best * 1_000_000 + row.worst),
        Cell(shown(result.architecture.name), None, page),
        Cell(number(result.n_parameters), result.n_parameters),
        Cell(capacity_text(capacity), capacity.estimate),
        Cell(interval_text(capacity), capacity.ci_low or 0.0),
        Cell(number(least), -1.0 if least is None else least),
        Cell(constructed_text(result), made.estimate if made else -1.0),
        Cell(ratios_text(result)),
        Cell(number(result.bits_per_parameter), result.bits_per_parameter),
        Cell(paired_text(row.compared, labels)),
        Cell(seconds_text(result.timing.wall_seconds), result.timing.wall_seconds),
    ]


def task_charts(
    entries: Sequence[Entry], task: str, name: str, links: Mapping[str, str], pictures: Collection[str] = ()
) -> list[Chart]:
    """Capacity against parameters, and measured over bound, for one task; `name` is what its pictures are called by."""
    made = [
        Chart(f"{name}-capacity", "capacity", f"Capacity against parameters: {task}", capacity_data(entries, links)),
        Chart(f"{name}-bounds", "ratio", f"Measured over bound: {task}", ratio_data(entries, links)),
    ]
    drawn = [chart for chart in made if chart.datasets["rows"]]
    return [replace(c, picture=f"charts/{c.id}.svg") if f"{c.id}.svg" in pictures else c for c in drawn]
