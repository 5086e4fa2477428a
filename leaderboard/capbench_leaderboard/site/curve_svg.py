"""The curve of a record as a small SVG for browsers without scripts: cheap enough for ten thousand pages."""

from __future__ import annotations

import math

from markupsafe import Markup

from capbench_leaderboard.charts import colour_of
from capbench_leaderboard.ranking.entry import BoardEntry

WIDTH, HEIGHT, MARGIN = 620, 260, 34
RIGHT, BOTTOM = WIDTH - MARGIN, HEIGHT - MARGIN


def curve_svg(entry: BoardEntry) -> Markup:
    """Share of trials that hold against the load, with the capacity as a line; only numbers and colours go in."""
    if not entry.points:
        return Markup("")
    first, last = entry.points[0].at, entry.points[-1].at
    points = [(_x_of(p.at, first, last), BOTTOM - p.held / p.trials * (BOTTOM - MARGIN)) for p in entry.points]
    colour = colour_of(entry)
    line = " ".join(f"{x:.0f},{y:.0f}" for x, y in points)
    dots = "".join(f'<circle cx="{x:.0f}" cy="{y:.0f}" r="3.5"/>' for x, y in points)
    return Markup(
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="share of trials that hold against load">'
        f'<g fill="none" stroke="#737b86"><path d="M{MARGIN} {MARGIN}V{BOTTOM}H{RIGHT}"/>{_capacity_line(entry)}'
        f'<polyline points="{line}" stroke="{colour}" stroke-width="2"/></g><g fill="{colour}">{dots}</g>'
        f'<g fill="#737b86" font-size="12"><text x="{MARGIN}" y="{HEIGHT - 12}">{first:d} facts</text>'
        f'<text x="{RIGHT}" y="{HEIGHT - 12}" text-anchor="end">{last:d} facts</text>'
        f'<text x="{MARGIN}" y="20">share of trials that hold</text></g></svg>'
    )


def _x_of(at: float, first: int, last: int) -> float:
    """The x coordinate of a load on a logarithmic axis; loads beyond an end are drawn at that end."""
    width = math.log(max(last, first + 1) / first)
    share = math.log(max(at, first) / first) / width
    return MARGIN + min(1.0, share) * (RIGHT - MARGIN)


def _capacity_line(entry: BoardEntry) -> str:
    capacity = entry.result.capacity
    if capacity.kind not in ("largest_load", "least_budget"):
        return ""
    x = _x_of(capacity.estimate, entry.points[0].at, entry.points[-1].at)
    return f'<path d="M{x:.0f} {MARGIN}V{BOTTOM}" stroke-dasharray="4 3"/>'
