"""The picture of a comparison: the share of trials that hold against the load, one colour per architecture."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path

import altair as alt

from capbench.documents.colours import architecture_colour
from capbench.documents.result import Result
from capbench.documents.text import plain
from capbench.report.result_plot import fitted_curve, save_chart, success_points
from capbench.report.result_text import brief_capacity

Row = dict[str, str | float]
TITLE_WIDTH = 88
"""Characters of a line of the title."""


def save_comparison(results: Sequence[Result], fact: str, answer: str, path: Path) -> None:
    """Writes the picture in the format that the suffix of the path names."""
    save_chart(comparison_chart(results, fact, answer), path)


def comparison_chart(results: Sequence[Result], fact: str, answer: str) -> alt.LayerChart:
    """Shares of trials with their intervals, fitted curves, and each capacity as a line with its interval as a band.

    A capacity of which only one side is known is a dashed line.
    """
    x = alt.X("at:Q", title=plain(f"{fact}s"), scale=alt.Scale(type="log", nice=False, padding=10))
    y_title = plain(f"share of trials with {results[0].protocol.criterion}")
    y = alt.Y("share:Q", title=y_title, scale=alt.Scale(domain=[0, 1]), axis=alt.Axis(format="%", tickCount=5))
    names = [result.architecture.name for result in results]
    scale = alt.Scale(domain=[plain(name) for name in names], range=[architecture_colour(name) for name in names])
    colour = alt.Color("architecture:N", title="", scale=scale, legend=alt.Legend(symbolOpacity=1))
    points = alt.Chart(alt.InlineData(values=[row for result in results for row in _points(result)]))
    curves = alt.Chart(alt.InlineData(values=[row for result in results for row in _curve(result)]))
    capacities = alt.Chart(alt.InlineData(values=[_capacity(result) for result in results]))
    dash = alt.StrokeDash("is_limit:N", scale=alt.Scale(domain=[False, True], range=[[1, 0], [6, 4]]), legend=None)
    tooltip = ["architecture:N", "at:Q", "held:Q", "trials:Q"]
    layers = [
        capacities.mark_rect(opacity=0.2).encode(x=alt.X("low:Q", title=plain(f"{fact}s")), x2="high:Q", color=colour),
        capacities.mark_rule(size=2).encode(x=x, color=colour, strokeDash=dash, tooltip=["architecture:N", "answer:N"]),
        curves.mark_line(opacity=0.7).encode(x=x, y=y, color=colour),
        points.mark_rule(opacity=0.6).encode(x=x, y=alt.Y("low:Q", title=y_title), y2="high:Q", color=colour),
        points.mark_point(filled=True, opacity=1).encode(
            x=x, y=y, color=colour, size=alt.Size("trials:Q", legend=None), tooltip=tooltip
        ),
    ]
    title = alt.Title(plain(results[0].task.name), subtitle=textwrap.wrap(plain(answer), TITLE_WIDTH))
    return alt.LayerChart(layer=layers).properties(width=560, height=320, title=title)


def _curve(result: Result) -> list[Row]:
    return [{"architecture": plain(result.architecture.name), **row} for row in fitted_curve(result)]


def _points(result: Result) -> list[Row]:
    name = plain(result.architecture.name)
    return [{"architecture": name, **{key: row[key] for key in KEYS}} for row in success_points(result)]


KEYS = ("at", "share", "low", "high", "held", "trials")


def _capacity(result: Result) -> Row:
    """The capacity and its interval; an open end is drawn at the last load that was tried."""
    capacity, tried = result.capacity, [trial.at for trial in result.trials]
    low = min(tried) if capacity.ci_low is None else capacity.ci_low
    high = max(tried) if capacity.ci_high is None else capacity.ci_high
    name = plain(result.architecture.name)
    is_limit = capacity.status != "estimated"
    ends = {"at": capacity.estimate, "low": low, "high": high}
    return {"architecture": name, **ends, "is_limit": is_limit, "answer": brief_capacity(result)}
