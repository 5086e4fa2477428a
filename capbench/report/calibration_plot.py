"""The plot of a calibration: measured success over the exact curve, one panel per known capacity."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import altair as alt

from capbench.documents.result import Result
from capbench.documents.text import number, plain
from capbench.report.result_plot import save_chart, success_points
from capbench.studies.calibrate import System

SPAN = 2.0
"""A panel shows the loads from the known capacity divided by this to the capacity times this."""
COLUMNS = 3
MOST_CURVE_POINTS = 200
COLOURS = {"solved": "#4c78a8", "trained": "#f58518"}
Rows = list[dict[str, float | str]]


def save_calibration_plot(systems: Sequence[System], path: Path) -> None:
    """Writes the plot in the format that the suffix of the path names."""
    save_chart(calibration_chart(systems), path)


def calibration_chart(systems: Sequence[System]) -> alt.ConcatChart:
    """One panel for the systems that share a task, an architecture and a bound."""
    panels: dict[tuple[object, ...], list[System]] = {}
    for system in systems:
        if system.result is not None:
            pair = (system.bound.name, system.request.task.plugin, system.request.architecture.plugin)
            panels.setdefault(pair, []).append(system)
    return alt.concat(*(_panel(group) for group in panels.values()), columns=COLUMNS)


def _panel(systems: Sequence[System]) -> alt.LayerChart:
    first = systems[0]
    fact = first.request.task.plugin.fact
    title = alt.Title(
        plain(first.cell.name.rpartition(",")[0] or first.cell.name),
        subtitle=f"{'exact' if first.is_exact else 'law'}: {number(first.expected)} {plain(fact)}s",
    )
    x = alt.X("at:Q", title=plain(f"{fact}s"), scale=alt.Scale(domain=list(_domain(first)), nice=False))
    title_y = "share of trials that hold"
    share = alt.Y("share:Q", title=title_y, scale=alt.Scale(domain=[0, 1]))
    colour = alt.Color("weights:N", title=None, scale=alt.Scale(domain=list(COLOURS), range=list(COLOURS.values())))
    points = alt.Chart(alt.InlineData(values=_points(systems)))
    layers = [
        alt.Chart(alt.InlineData(values=[{"at": first.expected}]))
        .mark_rule(color="#888888", strokeDash=[4, 4])
        .encode(x=x),
        alt.Chart(alt.InlineData(values=_curve(first))).mark_line(color="#888888").encode(x=x, y=share),
        points.mark_rule(opacity=0.6).encode(x=x, y=alt.Y("low:Q", title=title_y), y2="high:Q", color=colour),
        points.mark_point(filled=True, size=40, opacity=1).encode(
            x=x, y=share, color=colour, tooltip=["system:N", "at:Q", "held:Q", "trials:Q"]
        ),
    ]
    return alt.LayerChart(layer=layers).properties(width=240, height=180, title=title)


def _domain(system: System) -> tuple[float, float]:
    return system.expected / SPAN, system.expected * SPAN


def _curve(system: System) -> Rows:
    """The exact success curve; empty for a law."""
    low, high = (round(end) for end in _domain(system))
    loads = range(max(1, low), high + 1, math.ceil((high - low) / MOST_CURVE_POINTS))
    found = [(load, system.success(load)) for load in loads]
    return [{"at": load, "share": share} for load, share in found if share is not None]


def _points(systems: Sequence[System]) -> Rows:
    """The measured shares inside the panel, each with its interval."""
    low, high = _domain(systems[0])
    return [
        {**point, "weights": "trained" if system.is_trained else "solved", "system": plain(system.cell.name)}
        for system in systems
        for point in _measured(system.result)
        if low <= point["at"] <= high
    ]


def _measured(result: Result | None) -> list[dict[str, float]]:
    return success_points(result) if result else []
