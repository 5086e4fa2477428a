"""The heat map of the site: an HTML table, so that it works without scripts, by keyboard and for a screen reader."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import accumulate

from capbench.documents.colours import architecture_colour
from capbench_leaderboard.families import shape_of
from capbench_leaderboard.heat_map import HeatCell, HeatMap
from capbench_leaderboard.record_text import capacity_and_interval_text, plain_line, tier_text
from capbench_leaderboard.site.pages import LegendKey, SitePages


@dataclass(frozen=True)
class HeatLink:
    """A cell: its text, where it leads, and its place on the scale in percent."""

    text: str
    error: str
    title: str
    href: str
    style: str
    kind: str
    """`settled` or `unsettled`, and `verified` if it is."""


@dataclass(frozen=True)
class HeatRow:
    """An architecture with its cells; None where there is no record."""

    key: LegendKey
    href: str
    cells: Sequence[HeatLink | None]


@dataclass(frozen=True)
class HeatTable:
    """The map as the template takes it."""

    tasks: Sequence[tuple[str, str, Sequence[str]]]
    """Name, page and tiers of each task."""
    families: Sequence[tuple[str, Sequence[HeatRow]]]
    scale: str
    n_left_out: int
    n_columns: int
    firsts: Collection[int]
    """Columns with which a task begins."""


def heat_table(heat: HeatMap, pages: SitePages) -> HeatTable:
    """The map with the address of every page."""
    tasks = [(plain_line(task), pages.tasks[task], [tier_text(t) for t in tiers]) for task, tiers in heat.tiers.items()]
    families = [(family, [_row(heat, pages, family, name) for name in names]) for family, names in heat.families]
    *firsts, n_columns = accumulate((len(tiers) for _, _, tiers in tasks), initial=0)
    return HeatTable(tasks, families, f"{heat.scale:.2f}", heat.n_left_out, n_columns, firsts)


def _row(heat: HeatMap, pages: SitePages, family: str, name: str) -> HeatRow:
    key = LegendKey(plain_line(name), architecture_colour(plain_line(name)), shape_of(family))
    cells = [_cell(heat, pages, cell) if cell else None for cell in heat.row(name)]
    return HeatRow(key, pages.architectures[name], cells)


def _cell(heat: HeatMap, pages: SitePages, cell: HeatCell) -> HeatLink:
    result, low, high = cell.entry.result, cell.bits.low or 0.0, cell.bits.high
    ends = (cell.bits.value, low, heat.scale if high is None else high)
    value, start, end = (round(100 * min(1.0, each / heat.scale)) for each in ends)
    status = ("verified" if cell.is_verified else "self-reported") + (
        ", not settled" if cell.entry.is_unsettled else ""
    )
    return HeatLink(
        cell.value_text,
        cell.error_text,
        f"{capacity_and_interval_text(result.capacity)} facts, {result.n_parameters:,} parameters, {status}: "
        f"{plain_line(result.architecture.name)} on {plain_line(result.task.name)}",
        pages.records[cell.entry.path],
        f"--v:{value}%;--l:{start}%;--w:{max(2, end - start)}%",
        ("unsettled" if cell.entry.is_unsettled else "settled") + (" verified" if cell.is_verified else ""),
    )
