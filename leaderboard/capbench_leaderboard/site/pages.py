"""Contents of the site's pages: links, tables and charts, as the templates take them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property

from markupsafe import Markup

from capbench_leaderboard.charts import (
    Datasets,
    capacity_data,
    chart_specs,
    charted_text,
    is_worth_drawing,
    plot_height,
    ratio_data,
    reserved_height,
    thin_out,
)
from capbench_leaderboard.ranking.board import Board
from capbench_leaderboard.ranking.entry import BoardEntry
from capbench_leaderboard.ranking.ranked_tables import RankedTable
from capbench_leaderboard.record_text import (
    conditions_text,
    group_text,
    missing_texts,
    plain_line,
    ranking_text,
    tier_text,
)
from capbench_leaderboard.site.html_table import HtmlTable, embed_json
from capbench_leaderboard.slugs import unique_slugs
from capbench_leaderboard.table_rows import OVERVIEW_COLUMNS, RANKED_COLUMNS, Cell, overview_cells, ranked_cells


@dataclass(frozen=True)
class Chart:
    """A chart of a page: its specification, its data, and an SVG (file or inline) for browsers without scripts."""

    id: str
    kind: str
    caption: str
    datasets: Datasets
    picture: str = ""
    inline_svg: Markup = Markup("")  # noqa: RUF009 - Markup is immutable

    @cached_property
    def data(self) -> Markup:
        """The datasets as JSON for the script."""
        return embed_json(self.datasets)

    @property
    def height(self) -> int:
        """Height inside its axes."""
        return plot_height(chart_specs()[self.kind], self.datasets)

    @property
    def reserved_height(self) -> int:
        """Maximum height with axes and legend."""
        return reserved_height(chart_specs()[self.kind], self.datasets)


@dataclass(frozen=True)
class Link:
    """A link to a page, with a note."""

    name: str
    href: str
    text: str = ""


@dataclass(frozen=True)
class PageSection:
    """A table of a page with its heading."""

    title: str
    about: str
    table: HtmlTable
    missing: Sequence[tuple[str, str]] = ()
    """Missing names, and the reason."""


class SitePages:
    """The address of every page, and the tables that link to them."""

    def __init__(self, board: Board) -> None:
        self.board = board
        paths = unique_slugs(entry.path.removesuffix(".json") for entry in board.entries)
        self.records = {f"{path}.json": f"records/{address}.html" for path, address in paths.items()}
        self.task_slugs = unique_slugs(board.tasks)
        self.tasks = {task: f"tasks/{address}.html" for task, address in self.task_slugs.items()}
        architectures = {entry.result.architecture.name for entry in board.entries}
        self.architectures = {name: f"architectures/{a}.html" for name, a in unique_slugs(architectures).items()}

    def overview(self) -> HtmlTable:
        """Every record in one table."""
        return HtmlTable("all", "All records", OVERVIEW_COLUMNS, [cells for _, cells in self._overview_rows])

    def task_sections(self, task: str) -> list[PageSection]:
        """One ranked table per group of a task."""
        own = [table for table in self.board.tables if table.group.task == task]
        return [self._section(f"group{i}", table) for i, table in enumerate(own)]

    def _section(self, name: str, table: RankedTable) -> PageSection:
        title = group_text(table.group)
        labels = {row.entry.path: plain_line(row.entry.result.architecture.name) for row in table.rows}
        cells = [ranked_cells(row, labels, f"../{self.records[row.entry.path]}") for row in table.rows]
        missing = missing_texts((row.architecture, row.reason) for row in table.missing)
        return PageSection(
            f"{title[0].upper()}{title[1:]}",
            f"{conditions_text(table.group)} {ranking_text(table)}".strip(),
            HtmlTable(name, title, RANKED_COLUMNS, cells),
            missing,
        )

    def architecture_section(self, architecture: str) -> PageSection:
        """Every record of an architecture, and the tasks and tiers where it has none."""
        rows = [[_one_folder_down(cell) for cell in cells] for cells in self._by_architecture[architecture]]
        missing = missing_texts(
            (f"{row.task} at {tier_text(row.tier)}", row.reason)
            for table in self.board.tables
            for row in table.missing
            if row.architecture == architecture
        )
        return PageSection("Records", "", HtmlTable("records", "Records", OVERVIEW_COLUMNS, rows), missing)

    @cached_property
    def _overview_rows(self) -> list[tuple[BoardEntry, list[Cell]]]:
        """Every record as a row of the overview."""
        return [
            (row.entry, overview_cells(table.group, row, self.tasks[table.group.task], self.records[row.entry.path]))
            for table in self.board.tables
            for row in table.rows
        ]

    @cached_property
    def _by_architecture(self) -> Mapping[str, list[list[Cell]]]:
        found: dict[str, list[list[Cell]]] = defaultdict(list)
        for entry, cells in self._overview_rows:
            found[entry.result.architecture.name].append(cells)
        return found

    @cache  # noqa: B019 - a build makes one
    def links(self, root: str) -> Mapping[str, str]:
        """The page of each record, with `root` as the relative path to the site's folder."""
        return {path: f"{root}{page}" for path, page in self.records.items()}


def _one_folder_down(cell: Cell) -> Cell:
    """A cell with its link made relative to a page one folder down."""
    return cell._replace(href=f"../{cell.href}") if cell.href else cell


def task_charts(
    entries: Sequence[BoardEntry], task: str, name: str, links: Mapping[str, str], pictures: Collection[str] = ()
) -> list[Chart]:
    """Capacity against parameters, and measured over bound, for one task; `name` starts the names of its SVG files."""
    drawn, subject = thin_out(entries), f"{task}, {charted_text(entries)}"
    charts = [
        Chart(f"{name}-capacity", "capacity", f"Capacity against parameters: {subject}", capacity_data(drawn, links)),
        Chart(f"{name}-bounds", "ratio", f"Measured over bound: {subject}", ratio_data(drawn, links)),
    ]
    drawable = [chart for chart in charts if is_worth_drawing(chart.datasets)]
    return [replace(c, picture=f"charts/{c.id}.svg") if f"{c.id}.svg" in pictures else c for c in drawable]
