"""The pages of the site: what each shows, handed to its template."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property

from markupsafe import Markup

from capbench_leaderboard.address import addresses
from capbench_leaderboard.board import Board
from capbench_leaderboard.charts import (
    Datasets,
    capacity_data,
    charted_text,
    height,
    is_worth_drawing,
    ratio_data,
    room,
    specifications,
    thinned,
)
from capbench_leaderboard.columns import ACROSS, RANKED, across_cells, ranked_cells
from capbench_leaderboard.entry import Entry
from capbench_leaderboard.grid import Cell, Grid, embedded
from capbench_leaderboard.ranking import Table
from capbench_leaderboard.wording import conditions_text, group_text, missing_texts, shown, tier_text


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

    @property
    def height(self) -> int:
        """How tall it is inside its axes."""
        return height(specifications()[self.kind], self.datasets)

    @property
    def room(self) -> int:
        """How tall it is with all that stands around it."""
        return room(specifications()[self.kind], self.datasets)


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
    missing: Sequence[tuple[str, str]] = ()
    """Who or what is missing, and why."""


class Pages:
    """Where everything lies, and the tables that lead there."""

    def __init__(self, board: Board) -> None:
        self.board = board
        paths = addresses(entry.path.removesuffix(".json") for entry in board.entries)
        self.records = {f"{path}.json": f"records/{address}.html" for path, address in paths.items()}
        self.names = addresses(board.tasks)
        self.tasks = {task: f"tasks/{address}.html" for task, address in self.names.items()}
        architectures = {entry.result.architecture.name for entry in board.entries}
        self.architectures = {name: f"architectures/{a}.html" for name, a in addresses(architectures).items()}

    def overview(self) -> Grid:
        """Every record in one table."""
        return Grid("all", "All records", ACROSS, [cells for _, cells in self._across])

    def task_sections(self, task: str) -> list[Section]:
        """A ranked table for each group of a task."""
        own = [table for table in self.board.tables if table.group.task == task]
        return [self._section(f"group{i}", table) for i, table in enumerate(own)]

    def _section(self, name: str, table: Table) -> Section:
        title = group_text(table.group)
        labels = {row.entry.path: shown(row.entry.result.architecture.name) for row in table.rows}
        cells = [ranked_cells(row, labels, f"../{self.records[row.entry.path]}") for row in table.rows]
        missing = missing_texts((row.architecture, row.reason) for row in table.missing)
        return Section(
            f"{title[0].upper()}{title[1:]}", conditions_text(table.group), Grid(name, title, RANKED, cells), missing
        )

    def architecture_section(self, architecture: str) -> Section:
        """Every record of an architecture, and where it has none."""
        rows = [[_from_a_folder(cell) for cell in cells] for cells in self._by_architecture[architecture]]
        missing = missing_texts(
            (f"{row.task} at {tier_text(row.tier)}", row.reason)
            for table in self.board.tables
            for row in table.missing
            if row.architecture == architecture
        )
        return Section("Records", "", Grid("records", "Records", ACROSS, rows), missing)

    @cached_property
    def _across(self) -> list[tuple[Entry, list[Cell]]]:
        """Every record as a row of a table across tasks."""
        return [
            (row.entry, across_cells(table.group, row, self.tasks[table.group.task], self.records[row.entry.path]))
            for table in self.board.tables
            for row in table.rows
        ]

    @cached_property
    def _by_architecture(self) -> Mapping[str, list[list[Cell]]]:
        found: dict[str, list[list[Cell]]] = defaultdict(list)
        for entry, cells in self._across:
            found[entry.result.architecture.name].append(cells)
        return found

    @cache  # noqa: B019 - there is one of it in a build
    def links(self, root: str) -> Mapping[str, str]:
        """The page of each record, seen from a folder."""
        return {path: f"{root}{page}" for path, page in self.records.items()}


def _from_a_folder(cell: Cell) -> Cell:
    """A cell whose link leads on from a page one folder down."""
    return cell._replace(href=f"../{cell.href}") if cell.href else cell


def task_charts(
    entries: Sequence[Entry], task: str, name: str, links: Mapping[str, str], pictures: Collection[str] = ()
) -> list[Chart]:
    """Capacity against parameters, and measured over bound, for one task; `name` is what its pictures are called by."""
    drawn, what = thinned(entries), f"{task}, {charted_text(entries)}"
    made = [
        Chart(f"{name}-capacity", "capacity", f"Capacity against parameters: {what}", capacity_data(drawn, links)),
        Chart(f"{name}-bounds", "ratio", f"Measured over bound: {what}", ratio_data(drawn, links)),
    ]
    seen = [chart for chart in made if is_worth_drawing(chart.datasets)]
    return [replace(c, picture=f"charts/{c.id}.svg") if f"{c.id}.svg" in pictures else c for c in seen]
