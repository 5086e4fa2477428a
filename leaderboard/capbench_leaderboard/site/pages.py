"""Contents of the site's pages: links, tables and charts, as the templates take them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property

from markupsafe import Markup

from capbench.documents.colours import architecture_colour
from capbench_leaderboard.bits_chart import bits_data
from capbench_leaderboard.chart_style import Datasets
from capbench_leaderboard.charts import (
    capacity_data,
    chart_specs,
    charted_text,
    is_worth_drawing,
    plot_height,
    ratio_data,
    reserved_height,
    state_data,
    thin_out,
)
from capbench_leaderboard.front_chart import front_data
from capbench_leaderboard.ranking.board import Board
from capbench_leaderboard.ranking.entry import BoardEntry
from capbench_leaderboard.ranking.measures import pareto_front
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
from capbench_leaderboard.table_rows import (
    FRONT_COLUMNS,
    OVERVIEW_COLUMNS,
    RANKED_COLUMNS,
    TableCell,
    front_cells,
    overview_cells,
    ranked_cells,
    without_unused,
)


@dataclass(frozen=True)
class LegendKey:
    """An architecture in a legend: its name, its colour and the shape of its points."""

    name: str
    colour: str
    shape: str


@dataclass(frozen=True)
class Chart:
    """A chart of a page: its specification, its data, and an SVG (file or inline) for browsers without scripts."""

    id: str
    kind: str
    caption: str
    datasets: Datasets
    picture: str = ""
    legend: Sequence[tuple[str, Sequence[LegendKey]]] = ()
    """Families with the keys of their architectures; empty where the chart has a legend of its own or needs none."""
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

    def front(self) -> HtmlTable:
        """The records on the Pareto front of each task, the cheapest training first."""
        rows = [
            front_cells(entry, self.tasks[task], self.records[entry.path])
            for task in self.board.tasks
            for entry in pareto_front(thin_out(self.board.drawn_entries(task)))
        ]
        return HtmlTable("front", "The Pareto front", FRONT_COLUMNS, rows)

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
            HtmlTable(name, title, *without_unused(RANKED_COLUMNS, cells)),
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
    def _overview_rows(self) -> list[tuple[BoardEntry, list[TableCell]]]:
        """Every record as a row of the overview."""
        return [
            (row.entry, overview_cells(table.group, row, self.tasks[table.group.task], self.records[row.entry.path]))
            for table in self.board.tables
            for row in table.rows
        ]

    @cached_property
    def _by_architecture(self) -> Mapping[str, list[list[TableCell]]]:
        found: dict[str, list[list[TableCell]]] = defaultdict(list)
        for entry, cells in self._overview_rows:
            found[entry.result.architecture.name].append(cells)
        return found

    @cache  # noqa: B019 - a build makes one
    def links(self, root: str) -> Mapping[str, str]:
        """The page of each record, with `root` as the relative path to the site's folder."""
        return {path: f"{root}{page}" for path, page in self.records.items()}


def _one_folder_down(cell: TableCell) -> TableCell:
    """A cell with its link made relative to a page one folder down."""
    return cell._replace(href=f"../{cell.href}") if cell.href else cell


def task_charts(
    entries: Sequence[BoardEntry], task: str, name: str, links: Mapping[str, str], pictures: Collection[str] = ()
) -> list[Chart]:
    """Bits per parameter, capacity, its cost and measured over bound; `name` starts the names of their SVG files."""
    drawn, subject = thin_out(entries), f"{task}, {charted_text(entries)}"
    charts = [
        bits_chart(entries, task, name, links),
        Chart(f"{name}-state", "state", f"Capacity against the state: {subject}", state_data(drawn, links)),
        Chart(f"{name}-capacity", "capacity", f"Capacity against parameters: {subject}", capacity_data(drawn, links)),
        front_chart(entries, task, name, links),
        Chart(f"{name}-bounds", "ratio", f"Measured over bound: {subject}", ratio_data(drawn, links)),
    ]
    return with_pictures(charts, pictures)


def with_pictures(charts: Sequence[Chart], pictures: Collection[str]) -> list[Chart]:
    """The charts with enough to draw, each with its SVG file if it is among the names of pictures."""
    drawable = [chart for chart in charts if is_worth_drawing(chart.datasets)]
    return [replace(c, picture=f"charts/{c.id}.svg") if f"{c.id}.svg" in pictures else c for c in drawable]


def bits_chart(entries: Sequence[BoardEntry], task: str, name: str, links: Mapping[str, str]) -> Chart:
    """The picture of a task, with a legend that hides and shows architectures."""
    datasets = bits_data(thin_out(entries), links)
    caption = f"Bits per parameter against parameters: {task}, {charted_text(entries)}"
    return Chart(f"{name}-bits", "bits", caption, datasets, legend=legend_of(datasets))


def front_chart(entries: Sequence[BoardEntry], task: str, name: str, links: Mapping[str, str]) -> Chart:
    """What capacity costs on a task."""
    caption = f"Capacity against training cost: {task}, {charted_text(entries)}"
    return Chart(f"{name}-front", "front", caption, front_data(thin_out(entries), links))


def legend_of(datasets: Datasets) -> list[tuple[str, list[LegendKey]]]:
    """The architectures of a chart by family, in the order of its rows."""
    families: dict[str, dict[str, LegendKey]] = {}
    for row in datasets["rows"]:
        name, colour = str(row["architecture"]), architecture_colour(str(row["architecture"]))
        families.setdefault(str(row["family"]), {})[name] = LegendKey(name, colour, str(row["shape"]))
    return [(family, list(keys.values())) for family, keys in families.items()]
