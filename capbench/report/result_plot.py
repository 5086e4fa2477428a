"""The success curve of one result: trials, fitted curve, and capacity with its interval."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from io import StringIO
from pathlib import Path

import altair as alt
import numpy as np

from capbench.documents.colours import architecture_colour
from capbench.documents.result import Capacity, Result, TrialStatus
from capbench.documents.text import plain, sign_text
from capbench.errors import BadSetting
from capbench.measure.estimate.summary import axis_of, find_threshold
from capbench.measure.estimate.threshold import wilson
from capbench.report.precision_plot import precision_chart, precision_rows

AnyChart = alt.LayerChart | alt.ConcatChart | alt.HConcatChart
SUFFIXES = (".png", ".svg", ".html", ".pdf")
DARK_STYLE = (
    "@media (prefers-color-scheme: dark) {"
    ' rect[fill="white"] { fill: #14171c } text[fill="#000"] { fill: #d8dde3 }'
    ' [stroke="#ddd"] { stroke: #343a42 } [stroke="#888"] { stroke: #8b949e } }'
)
"""Colours of the page, labels, grid and axes on a dark page; those of the data, and numbers on them, stay."""
FULL_PAGE = "html, body { height: 100%; margin: 0 } #vis, .vega-embed { width: 96vw; height: 92vh; margin: 1vh auto }"
"""Lets a chart fill its page."""
CAPACITY_COLOUR = "#f58518"
THRESHOLDS = ("largest_load", "least_budget")
"""Kinds of capacity that are a point on the x axis, so that they can be drawn."""


def check_plot_path(path: Path) -> None:
    """Raises BadSetting for a path that no plot can be written to, before any training."""
    if path.suffix.lower() not in SUFFIXES:
        raise BadSetting(f"--plot takes a file ending in {', '.join(SUFFIXES)}, got {path.name!r}")
    if path.is_dir() or (path.exists() and not os.access(path, os.W_OK)):
        raise BadSetting(f"--plot needs a file it can write, got {str(path)!r}")
    if not path.parent.is_dir():
        raise BadSetting(f"--plot needs an existing folder, got {str(path.parent)!r}")


class ScriptSafeEncoder(json.JSONEncoder):
    """JSON that is safe inside a script element: no string in it can end the script."""

    def encode(self, o: object) -> str:
        """Encodes as usual, with < and > escaped."""
        return super().encode(o).replace("<", "\\u003c").replace(">", "\\u003e")


def save_plot(result: Result, fact: str, path: Path) -> None:
    """Writes the success curve, and the capacity against precision where that was measured."""
    curve = success_chart(result, fact)
    rounded = [precision_chart(result, fact)] if precision_rows(result) else []
    save_chart(alt.HConcatChart(hconcat=[curve, *rounded]) if rounded else curve, path)


def save_chart(chart: AnyChart, path: Path) -> None:
    """Writes a chart in the format that the suffix of the path names."""
    if path.suffix.lower() == ".html":
        path.write_text(page_with(chart), encoding="utf-8")
    elif path.suffix.lower() == ".svg":
        path.write_text(adapting_svg(chart), encoding="utf-8")
    elif path.suffix.lower() == ".pdf":
        chart.save(path, format="pdf")
    else:
        chart.save(path, format="png", scale_factor=2)


def page_with(chart: AnyChart) -> str:
    """A page that a chart fills; it needs no network."""
    if isinstance(chart, alt.LayerChart):
        chart = chart.properties(width="container", height="container")
    page: str = chart.to_html(inline=True, json_kwds={"cls": ScriptSafeEncoder})
    return page.replace("</head>", f"<style>{FULL_PAGE}</style></head>", 1)


def adapting_svg(chart: AnyChart) -> str:
    """A chart as an SVG that follows the reader's choice of a light or dark page."""
    drawn = StringIO()
    chart.save(drawn, format="svg")
    return with_dark_style(drawn.getvalue())


def with_dark_style(svg: str) -> str:
    """A drawn chart with the colours of a dark page, for readers who chose one."""
    head, mark, body = svg.partition(">")
    return f"{head}{mark}<style>{DARK_STYLE}</style>{body}"


def success_chart(result: Result, fact: str) -> alt.LayerChart:
    """Share of trials that hold against load (or parameter value), with the capacity marked."""
    axis_title = plain(result.protocol.parameter or f"{fact}s to hold")
    x = alt.X(
        "at:Q",
        title=axis_title,
        scale=alt.Scale(type="log", nice=False, padding=10),
        axis=alt.Axis(tickCount=8, format="~s"),
    )
    y_title = plain(f"share of trials with {result.protocol.criterion}")
    y = alt.Y("share:Q", title=y_title, scale=alt.Scale(domain=[0, 1]), axis=alt.Axis(format="%", tickCount=5))
    points, colour = alt.Chart(_data(success_points(result))), architecture_colour(result.architecture.name)
    layers: list[alt.Chart] = [*_interval(result)]
    if result.capacity.kind in THRESHOLDS:
        layers.append(alt.Chart(_data(fitted_curve(result))).mark_line(color="#888888").encode(x=x, y=y))
    layers.append(points.mark_rule(color=colour).encode(x=x, y=alt.Y("low:Q", title=y_title), y2="high:Q"))
    tooltip = [
        "at:Q",
        "held:Q",
        "trials:Q",
        alt.Tooltip("metric:Q", title=plain(f"mean {result.protocol.criterion.metric}"), format=".3f"),
    ]
    layers.append(points.mark_point(filled=True, size=60, color=colour).encode(x=x, y=y, tooltip=tooltip))
    pair = plain(f"{result.task.name} × {result.architecture.name}")
    title = alt.Title(pair, subtitle=plain(_subtitle(result, fact)))
    return alt.LayerChart(layer=layers).properties(width=520, height=320, title=title)


def _data(rows: list[dict[str, float]]) -> alt.InlineData:
    return alt.InlineData(values=rows)


def _subtitle(result: Result, fact: str) -> str:
    capacity = result.capacity
    low, high = (f"{end:.3g}" if end is not None else "open" for end in (capacity.ci_low, capacity.ci_high))
    unit = {
        "largest_load": f"{fact}s",
        "least_budget": f"{capacity.parameter}",
        "success_rate": "of the trials",
        "overload": f"{fact}s under overload",
    }[capacity.kind]
    answer = f"{sign_text(capacity)}{capacity.estimate:.3g} {unit}, {capacity.confidence:.0%} interval {low} to {high}"
    return f"{answer}; {result.n_parameters:,} parameters{_settled(capacity)}"


def _settled(capacity: Capacity) -> str:
    """Whether the capacity is settled, and the drift; empty if it was not asked."""
    if capacity.settled is None:
        return ""
    drift = "" if capacity.drift is None else f" (drift {capacity.drift:+.1%})"
    return f"; {'settled' if capacity.settled else 'not settled'}{drift}"


def success_points(result: Result) -> list[dict[str, float]]:
    """Share of trials that hold at each load or parameter value, with its Wilson interval."""
    rate = result.rates.best if result.rates else None
    by_point = defaultdict(list)
    for trial in result.trials:
        if trial.learning_rate == rate and trial.status is not TrialStatus.FAILED:
            by_point[trial.at].append(trial)
    rows = []
    for at, trials in sorted(by_point.items()):
        held = sum(t.status is TrialStatus.HELD for t in trials)
        low, high = wilson(held, len(trials), result.capacity.confidence)
        metric = float(np.mean([t.metrics.get(result.protocol.criterion.metric, 0.0) for t in trials]))
        rows.append(
            {
                "at": at,
                "share": held / len(trials),
                "low": low,
                "high": high,
                "held": held,
                "trials": len(trials),
                "metric": metric,
            }
        )
    return rows


def fitted_curve(result: Result) -> list[dict[str, float]]:
    """The fitted logistic curve over the range of the trials."""
    axis = axis_of(result.protocol)
    found = find_threshold(result.trials, result.protocol)
    tried = [row["at"] for row in success_points(result)]
    at = np.geomspace(min(tried), max(tried), 120)
    z = np.log(at / found.estimate) / found.steepness * (1 if axis.rising else -1)
    shares = (1 - found.lapse) / (1 + np.exp(-z.clip(-60, 60)))
    return [{"at": float(a), "share": float(share)} for a, share in zip(at, shares, strict=True)]


def _interval(result: Result) -> list[alt.Chart]:
    """The capacity as a line, its interval as a band that goes to the last trials on an open side.

    Where only one side of the capacity is known, the line is dashed and a triangle points to where the capacity is.
    """
    capacity = result.capacity
    if capacity.kind not in THRESHOLDS or (capacity.ci_low is None and capacity.ci_high is None):
        return []
    tried = [row["at"] for row in success_points(result)]
    low, high = capacity.ci_low or min(tried), capacity.ci_high or max(tried)
    data = alt.Chart(_data([{"low": low, "high": high, "at": capacity.estimate, "share": 0.5}]))
    band = data.mark_rect(color=CAPACITY_COLOUR, opacity=0.25).encode(x="low:Q", x2="high:Q")
    if capacity.status == "estimated":
        return [band, data.mark_rule(color=CAPACITY_COLOUR, size=2).encode(x="at:Q")]
    shape = "triangle-right" if capacity.status == "at_least" else "triangle-left"
    line = data.mark_rule(color=CAPACITY_COLOUR, size=2, strokeDash=[6, 4]).encode(x="at:Q")
    arrow = data.mark_point(color=CAPACITY_COLOUR, shape=shape, filled=True, size=300, opacity=1)
    return [band, line, arrow.encode(x="at:Q", y="share:Q")]
