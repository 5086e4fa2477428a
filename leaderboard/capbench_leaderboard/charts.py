"""The charts: three Vega-Lite specifications with named datasets, and the functions that fill the datasets."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from capbench.contract.bound import FACTS
from capbench_leaderboard.ranking.entry import BoardEntry
from capbench_leaderboard.record_text import capacity_text, interval_text, kind_text, plain_line

ChartRow = dict[str, str | float | int | None]
Datasets = Mapping[str, Sequence[ChartRow]]
Spec = dict[str, Any]
"""A Vega-Lite specification: JSON written by altair and read by the browser."""

FONT = "Liberation Sans"
"""Comes with vl-convert, so that an SVG has the same bytes on every machine."""
TEXT_COLOR = "#737b86"
"""Readable on white and on black: a README is shown on both."""
GRID_COLOR = "#9aa2ad66"
"""Grid lines: a light shade of the text colour, half transparent."""
BLUE, ORANGE = "#3b74b8", "#d9731a"
MAX_CHART_RECORDS = 400
"""Maximum points per chart."""


def thin_out(entries: Sequence[BoardEntry]) -> Sequence[BoardEntry]:
    """As many records as a chart can show, evenly spaced in their order."""
    return entries[:: max(1, -(-len(entries) // MAX_CHART_RECORDS))]


def is_worth_drawing(datasets: Datasets) -> bool:
    """Whether there is more than one point; a single one is easier to read as a number."""
    return len(datasets["rows"]) > 1


def charted_text(entries: Sequence[BoardEntry]) -> str:
    """The suite of the charted records, and their number if not all are drawn."""
    suite = entries[0].result.suite if entries else None
    name = f"suite {plain_line(suite.name)} {suite.version}" if suite else "outside a suite"
    n_drawn = len(thin_out(entries))
    return name if n_drawn == len(entries) else f"{name}; {n_drawn:,} of {len(entries):,} records"


def curve_data(entry: BoardEntry) -> Datasets:
    """Mean metric and share of trials that hold at each load, the capacity with its interval, and bounds on facts."""
    metric = f"mean {plain_line(entry.result.protocol.criterion.metric)}"
    points: list[ChartRow] = []
    for at, held, trials, value in entry.points:
        shared: ChartRow = {"at": at, "held": held, "trials": trials}
        points.append({**shared, "value": round(held / trials, 4), "series": "share of trials that hold"})
        if value is not None:
            points.append({**shared, "value": float(f"{value:.4g}"), "series": metric})
    return {"points": points, "capacity": _capacity(entry), "bounds": _bounds(entry)}


def _capacity(entry: BoardEntry) -> list[ChartRow]:
    capacity = entry.result.capacity
    if capacity.kind not in ("largest_load", "least_budget") or not entry.points:
        return []
    low = capacity.ci_low if capacity.ci_low is not None else entry.points[0].at
    high = capacity.ci_high if capacity.ci_high is not None else entry.points[-1].at
    return [{"at": capacity.estimate, "low": low, "high": high, "name": f"capacity {capacity_text(capacity)}"}]


def _bounds(entry: BoardEntry) -> list[ChartRow]:
    """Bounds on the number of facts, if that is the horizontal axis."""
    if entry.result.protocol.parameter:
        return []
    return [
        {"at": b.value, "name": f"{plain_line(b.id)}: {kind_text(b)}"}
        for b in sorted(entry.result.bounds, key=lambda b: b.id)
        if b.quantity == FACTS and b.value is not None and b.value >= 1
    ]


def capacity_data(entries: Iterable[BoardEntry], links: Mapping[str, str]) -> Datasets:
    """Capacity against parameters: one point per record."""
    rows: list[ChartRow] = []
    for entry in entries:
        result = entry.result
        capacity = result.capacity
        if capacity.kind != "largest_load" or capacity.estimate <= 0:
            continue
        rows.append(
            {
                "parameters": result.n_parameters,
                "capacity": float(f"{capacity.estimate:.5g}"),
                "low": float(f"{capacity.ci_low or capacity.estimate:.5g}"),
                "high": float(f"{capacity.ci_high or capacity.estimate:.5g}"),
                "architecture": plain_line(result.architecture.name),
                "text": f"{capacity_text(capacity)} ({interval_text(capacity)})",
                "href": links.get(entry.path, ""),
            }
        )
    return {"rows": rows}


def ratio_data(entries: Iterable[BoardEntry], links: Mapping[str, str]) -> Datasets:
    """Measured over bound: one point per record and bound; laws have no such ratio."""
    rows: list[ChartRow] = [
        {
            "architecture": plain_line(entry.result.architecture.name),
            "ratio": float(f"{bound.ratio:.5g}"),
            "bound": f"{plain_line(bound.id)} ({kind_text(bound)})",
            "parameters": entry.result.n_parameters,
            "href": links.get(entry.path, ""),
        }
        for entry in entries
        for bound in entry.result.bounds
        if bound.ratio is not None and bound.ratio > 0
    ]
    return {"rows": rows, "one": [{"ratio": 1}]}


@cache
def chart_specs() -> dict[str, Spec]:
    """The three specifications by kind, without data."""
    return {"curve": _curve_spec(), "capacity": _capacity_spec(), "ratio": _ratio_spec()}


def _curve_spec() -> Spec:
    import altair as alt

    x = alt.X("at:Q", title=None, scale=alt.Scale(type="log", nice=False, padding=12), axis=_axis(alt))
    y = alt.Y("value:Q", title=None, scale=alt.Scale(domain=[0, 1]))
    series = alt.Color("series:N", title=None, scale=alt.Scale(range=[BLUE, ORANGE]), legend=alt.Legend(orient="top"))
    capacity, bounds = _chart_of(alt, "capacity"), _chart_of(alt, "bounds")
    tip = [alt.Tooltip("at:Q", title="at"), "series:N", alt.Tooltip("value:Q", format=".3f"), "held:Q", "trials:Q"]
    points = _chart_of(alt, "points")
    size = alt.Size("trials:Q", legend=None, scale=alt.Scale(domain=[1, 8], range=[35, 130], clamp=True))
    layers = [
        capacity.mark_rect(fill=ORANGE, fillOpacity=0.15).encode(x=alt.X("low:Q", title=None), x2="high:Q"),
        capacity.mark_rule(color=ORANGE, strokeWidth=2).encode(x=alt.X("at:Q", title=None), tooltip=["name:N"]),
        bounds.mark_rule(color=TEXT_COLOR, strokeDash=[5, 4], strokeWidth=1.5).encode(
            x=alt.X("at:Q", title=None), tooltip=["name:N"]
        ),
        *(
            marks.mark_text(angle=270, align="left", dx=6, dy=-6, fontSize=10, color=colour).encode(
                x="at:Q", y=alt.value(280), text="name:N"
            )
            for marks, colour in ((bounds, TEXT_COLOR), (capacity, ORANGE))
        ),
        points.mark_line(strokeWidth=2).encode(x=x, y=y, color=series),
        points.mark_point(filled=True, opacity=1).encode(x=x, y=y, color=series, size=size, tooltip=tip),
    ]
    return _to_spec(alt.layer(*layers), 300)


def _capacity_spec() -> Spec:
    import altair as alt

    rows = _chart_of(alt, "rows")
    x = alt.X("parameters:Q", title="parameters", scale=alt.Scale(type="log", nice=False, padding=24), axis=_axis(alt))
    scale = alt.Scale(type="log", nice=False, padding=14)
    legend = alt.Legend(symbolOpacity=1, orient="right")
    colour = alt.Color("architecture:N", title=None, scale=alt.Scale(scheme="tableau10"), legend=legend)
    tip = ["architecture:N", "parameters:Q", alt.Tooltip("text:N", title="capacity")]
    layers = [
        rows.mark_line(strokeWidth=1.5, opacity=0.5).encode(x=x, y=alt.Y("capacity:Q", scale=scale), color=colour),
        rows.mark_rule(strokeWidth=1.5, opacity=0.7).encode(
            x=x, y=alt.Y("low:Q", scale=scale, title="capacity (facts)", axis=_axis(alt)), y2="high:Q", color=colour
        ),
        rows.mark_point(filled=True, size=70, opacity=0.95).encode(
            x=x, y=alt.Y("capacity:Q", scale=scale), color=colour, tooltip=tip, href="href:N"
        ),
    ]
    return _to_spec(alt.layer(*layers), 320)


def _ratio_spec() -> Spec:
    import altair as alt

    rows = _chart_of(alt, "rows")
    scale = alt.Scale(type="log", nice=False, padding=24)
    x = alt.X("ratio:Q", title="measured / bound", scale=scale, axis=_axis(alt, "~g"))
    tip = ["architecture:N", "parameters:Q", "bound:N", alt.Tooltip("ratio:Q", format=".3~f")]
    colour = alt.Color(
        "bound:N", title=None, legend=alt.Legend(orient="top", columns=1, labelLimit=320, symbolOpacity=1)
    )
    one = _chart_of(alt, "one").mark_rule(color=TEXT_COLOR, strokeWidth=2).encode(x="ratio:Q")
    points = rows.mark_point(filled=True, size=70, opacity=0.85).encode(
        x=x, y=alt.Y("architecture:N", title=None), color=colour, tooltip=tip, href="href:N"
    )
    return _to_spec(alt.layer(one, points), 26)  # per architecture; see `plot_height`


def _chart_of(alt: Any, name: str) -> Any:
    return alt.Chart(alt.NamedData(name=name))


def _axis(alt: Any, number_format: str = "~s") -> Any:
    """A logarithmic axis with clear grid lines at powers of ten and faint ones between."""
    is_decade = "abs(log(datum.value) / LN10 - round(log(datum.value) / LN10)) < 0.001"
    opacity = {"condition": {"test": is_decade, "value": 0.9}, "value": 0.25}
    return alt.Axis(tickCount=5, format=number_format, labelFlush=False, gridOpacity=opacity)


def _to_spec(chart: Any, height: Any) -> Spec:
    spec: Spec = chart.properties(height=height, width="container").to_dict(validate=False)
    return spec


def plot_height(spec: Spec, datasets: Datasets) -> int:
    """Height of a chart inside its axes; a chart with architectures as its vertical axis has one line for each."""
    lines = len({row["architecture"] for row in datasets["rows"]}) if "one" in datasets else 1
    return int(spec["height"]) * max(1, lines)


def reserved_height(spec: Spec, datasets: Datasets) -> int:
    """Maximum height of a chart with its axes and legend.

    The page reserves it until the chart is drawn, so that its content does not shift.
    """
    legend_lines = len({row["bound"] for row in datasets["rows"]}) if "one" in datasets else 0
    return plot_height(spec, datasets) + 60 + 13 * legend_lines


def render_svg(spec: Spec, datasets: Datasets) -> str:
    """A chart as SVG, which needs no script; the same data give the same bytes."""
    import vl_convert

    axis = {
        "labelColor": TEXT_COLOR,
        "titleColor": TEXT_COLOR,
        "gridColor": GRID_COLOR,
        "domainColor": TEXT_COLOR,
        "tickColor": TEXT_COLOR,
    }
    config = {
        "font": FONT,
        "background": None,
        "view": {"stroke": None},
        "axis": axis,
        "legend": {"labelColor": TEXT_COLOR},
    }
    full_spec = {
        **spec,
        "width": 620,
        "height": plot_height(spec, datasets),
        "datasets": datasets,
        "config": config,
        "background": None,
    }
    picture: str = vl_convert.vegalite_to_svg(json.dumps(full_spec, sort_keys=True), allowed_base_urls=[])
    return picture
