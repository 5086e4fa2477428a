"""The heat map of the README: architectures by tasks at one tier, readable on a light and on a dark page."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import escape

from capbench.documents.colours import UNSETTLED_COLOUR, architecture_colour
from capbench_leaderboard.chart_style import TEXT_COLOR
from capbench_leaderboard.heat_map import HeatCell, HeatMap
from capbench_leaderboard.record_text import plain_line, tier_text

LABEL_WIDTH, FAMILY_WIDTH, CELL_HEIGHT, GAP, HEAD = 170, 90, 34, 10, 50
MAX_WIDTH = 860
LIGHT, DARK = (222, 235, 247), (33, 102, 172)
"""Colours of zero and of the largest value."""
FONT = "'Liberation Sans', system-ui, sans-serif"


def heat_svg(heat: HeatMap) -> str:
    """The map at the tier at which most is known; empty with fewer than two cells there."""
    tasks = [task for task, tiers in heat.tiers.items() if heat.main_tier in tiers]
    if sum(tier == heat.main_tier for _, tier, _ in heat.cells) < 2:
        return ""
    width = min(150, (MAX_WIDTH - LABEL_WIDTH - FAMILY_WIDTH) // len(tasks))
    parts, y = [_heads(heat, tasks, width)], HEAD
    for family, names in heat.families:
        parts.append(_text(0, y + 21, plain_line(family), TEXT_COLOR, 12))
        for name in names:
            parts += [_row(heat, tasks, name, y, width)]
            y += CELL_HEIGHT
        y += GAP
    total = FAMILY_WIDTH + LABEL_WIDTH + width * len(tasks)
    about = f"bits per parameter at about {tier_text(heat.main_tier)} parameters"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {total} {y}" width="{total}" height="{y}" role="img" '
        f'aria-label="{about}" font-family="{FONT}">{"".join(parts)}</svg>\n'
    )


def _heads(heat: HeatMap, tasks: Sequence[str], width: int) -> str:
    left = FAMILY_WIDTH + LABEL_WIDTH
    title = f"bits per parameter, about {tier_text(heat.main_tier)} parameters"
    names = (
        _text(left + width * (i + 0.5), 42, _short(task, width), TEXT_COLOR, 12, "middle")
        for i, task in enumerate(tasks)
    )
    return _text(left, 16, title, TEXT_COLOR, 12) + "".join(names)


def _row(heat: HeatMap, tasks: Sequence[str], name: str, y: int, width: int) -> str:
    left = FAMILY_WIDTH + LABEL_WIDTH
    cells = (
        _cell(heat, heat.cells.get((task, heat.main_tier, name)), left + i * width, y, width)
        for i, task in enumerate(tasks)
    )
    return _text(FAMILY_WIDTH, y + 21, _short(name, LABEL_WIDTH), architecture_colour(plain_line(name)), 13) + "".join(
        cells
    )


def _cell(heat: HeatMap, cell: HeatCell | None, x: int, y: int, width: int) -> str:
    """The value with its error, above a bar that shows the interval on the scale of the map."""
    if cell is None:
        return _text(x + width / 2, y + 21, "–", TEXT_COLOR, 13, "middle")
    share = min(1.0, cell.bits.value / heat.scale)
    unsettled = cell.entry.is_unsettled
    fill = "none" if unsettled else _mix(share)
    ink = TEXT_COLOR if unsettled else "#ffffff" if share > 0.62 else "#10243d"
    border = f' stroke="{UNSETTLED_COLOUR}" stroke-dasharray="3 2"' if unsettled else ""
    box = f'<rect x="{x + 1}" y="{y + 1}" width="{width - 3}" height="{CELL_HEIGHT - 3}" rx="3" fill="{fill}"{border}/>'
    value = (
        f'<tspan font-size="13" font-weight="600">{escape(cell.value_text)}</tspan> '
        f'<tspan font-size="11">{cell.error_text}</tspan>'
    )
    text = f'<text x="{x + width / 2:g}" y="{y + 18}" text-anchor="middle" fill="{ink}">{value}</text>'
    return box + text + _interval(heat, cell, x, y, width, ink)


def _interval(heat: HeatMap, cell: HeatCell, x: int, y: int, width: int, ink: str) -> str:
    inner, low, high = width - 15, cell.bits.low or 0.0, cell.bits.high
    start, end = (min(1.0, end / heat.scale) * inner for end in (low, heat.scale if high is None else high))
    left, length = x + 6 + start, max(2.0, end - start)
    return (
        f'<rect x="{x + 6}" y="{y + 25}" width="{inner}" height="1" fill="{ink}" opacity="0.25"/>'
        f'<rect x="{left:.1f}" y="{y + 24}" width="{length:.1f}" height="3" rx="1" fill="{ink}"/>'
    )


def _mix(share: float) -> str:
    return "#" + "".join(f"{round(a + (b - a) * share):02x}" for a, b in zip(LIGHT, DARK, strict=True))


def _short(text: str, width: int) -> str:
    return plain_line(text, max(4, width // 8))


def _text(x: float, y: int, text: str, fill: str, size: int, anchor: str = "start") -> str:
    return f'<text x="{x:g}" y="{y}" font-size="{size}" fill="{fill}" text-anchor="{anchor}">{escape(text)}</text>'
