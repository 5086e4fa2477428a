"""The charts: three specifications, each drawn from named data, and the rows of data that go into them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from capbench.bound import FACTS
from capbench_leaderboard.entry import Entry
from capbench_leaderboard.wording import capacity_text, interval_text, kind_text, shown

Datum = dict[str, str | float | int | None]
Datasets = Mapping[str, Sequence[Datum]]
Spec = dict[str, Any]
"""A Vega-Lite specification: JSON, made by altair and read by the browser."""

FONT = "Liberation Sans"
"""Comes with vl-convert, so that a picture has the same bytes on every machine."""
INK = "#737b86"
"""Readable on white and on black: a README is seen on both."""
FAINT = "#9aa2ad66"
"""The grid of a picture: the same ink, seen through."""
BLUE, ORANGE = "#3b74b8", "#d9731a"
MOST_DRAWN = 400
"""A chart with more records than this says nothing more."""


def thinned(entries: Sequence[Entry]) -> Sequence[Entry]:
    """As many records as a chart can show, evenly spaced in their order."""
    return entries[:: max(1, -(-len(entries) // MOST_DRAWN))]


def is_worth_drawing(datasets: Datasets) -> bool:
    """Whether there is anything to see: one point is better read than drawn."""
    return len(datasets["rows"]) > 1


def charted_text(entries: Sequence[Entry]) -> str:
    """What a chart of these records shows: whose suite, and how many where not all are drawn."""
    suite = entries[0].result.suite if entries else None
    name = f"suite {shown(suite.name)} {suite.version}" if suite else "outside a suite"
    n_drawn = len(thinned(entries))
    return name if n_drawn == len(entries) else f"{name}; {n_drawn:,} of {len(entries):,} records"


def curve_data(entry: Entry) -> Datasets:
    """Accuracy and share of successes at each load, the capacity with its interval, and the bounds on facts."""
    metric = f"mean {shown(entry.result.protocol.criterion.metric)}"
    points: list[Datum] = []
    for at, held, trials, value in entry.points:
        shared: Datum = {"at": at, "held": held, "trials": trials}
        points.append({**shared, "value": round(held / trials, 4), "series": "share of trials that hold"})
        if value is not None:
            points.append({**shared, "value": float(f"{value:.4g}"), "series": metric})
    return {"points": points, "capacity": _capacity(entry), "bounds": _bounds(entry)}


def _capacity(entry: Entry) -> list[Datum]:
    capacity = entry.result.capacity
    if capacity.kind not in ("largest_load", "least_budget") or not entry.points:
        return []
    low = capacity.ci_low if capacity.ci_low is not None else entry.points[0].at
    high = capacity.ci_high if capacity.ci_high is not None else entry.points[-1].at
    return [{"at": capacity.estimate, "low": low, "high": high, "name": f"capacity {capacity_text(capacity)}"}]


def _bounds(entry: Entry) -> list[Datum]:
    """Bounds on the number of facts, where that is the axis."""
    if entry.result.protocol.parameter:
        return []
    return [
        {"at": b.value, "name": f"{shown(b.id)}: {kind_text(b)}"}
        for b in sorted(entry.result.bounds, key=lambda b: b.id)
        if b.quantity == FACTS and b.value is not None and b.value >= 1
    ]


def capacity_data(entries: Iterable[Entry], links: Mapping[str, str]) -> Datasets:
    """Capacity against parameters: one point a record."""
    rows: list[Datum] = []
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
                "architecture": shown(result.architecture.name),
                "said": f"{capacity_text(capacity)} ({interval_text(capacity)})",
                "href": links.get(entry.path, ""),
            }
        )
    return {"rows": rows}


def ratio_data(entries: Iterable[Entry], links: Mapping[str, str]) -> Datasets:
    """Measured over bound: one point a record and bound; laws have no such ratio."""
    rows: list[Datum] = [
        {
            "architecture": shown(entry.result.architecture.name),
            "ratio": float(f"{bound.ratio:.5g}"),
            "bound": f"{shown(bound.id)} ({kind_text(bound)})",
            "parameters": entry.result.n_parameters,
            "href": links.get(entry.path, ""),
        }
        for entry in entries
        for bound in entry.result.bounds
        if bound.ratio is not None and bound.ratio > 0
    ]
    return {"rows": rows, "one": [{"ratio": 1}]}


@cache
def specifications() -> dict[str, Spec]:
    """The three charts, without their data."""
    return {"curve": _curve_spec(), "capacity": _capacity_spec(), "ratio": _ratio_spec()}


def _curve_spec() -> Spec:
    import altair as alt

    x = alt.X("at:Q", title=None, scale=alt.Scale(type="log", nice=False, padding=12), axis=_axis(alt))
    y = alt.Y("value:Q", title=None, scale=alt.Scale(domain=[0, 1]))
    series = alt.Color("series:N", title=None, scale=alt.Scale(range=[BLUE, ORANGE]), legend=alt.Legend(orient="top"))
    capacity, bounds = _named(alt, "capacity"), _named(alt, "bounds")
    tip = [alt.Tooltip("at:Q", title="at"), "series:N", alt.Tooltip("value:Q", format=".3f"), "held:Q", "trials:Q"]
    points = _named(alt, "points")
    size = alt.Size("trials:Q", legend=None, scale=alt.Scale(domain=[1, 8], range=[35, 130], clamp=True))
    layers = [
        capacity.mark_rect(fill=ORANGE, fillOpacity=0.15).encode(x=alt.X("low:Q", title=None), x2="high:Q"),
        capacity.mark_rule(color=ORANGE, strokeWidth=2).encode(x=alt.X("at:Q", title=None), tooltip=["name:N"]),
        bounds.mark_rule(color=INK, strokeDash=[5, 4], strokeWidth=1.5).encode(
            x=alt.X("at:Q", title=None), tooltip=["name:N"]
        ),
        *(
            marks.mark_text(angle=270, align="left", dx=6, dy=-6, fontSize=10, color=colour).encode(
                x="at:Q", y=alt.value(280), text="name:N"
            )
            for marks, colour in ((bounds, INK), (capacity, ORANGE))
        ),
        points.mark_line(strokeWidth=2).encode(x=x, y=y, color=series),
        points.mark_point(filled=True, opacity=1).encode(x=x, y=y, color=series, size=size, tooltip=tip),
    ]
    return _finished(alt.layer(*layers), 300)


def _capacity_spec() -> Spec:
    import altair as alt

    rows = _named(alt, "rows")
    x = alt.X("parameters:Q", title="parameters", scale=alt.Scale(type="log", nice=False, padding=24), axis=_axis(alt))
    scale = alt.Scale(type="log", nice=False, padding=14)
    legend = alt.Legend(symbolOpacity=1, orient="right")
    colour = alt.Color("architecture:N", title=None, scale=alt.Scale(scheme="tableau10"), legend=legend)
    tip = ["architecture:N", "parameters:Q", alt.Tooltip("said:N", title="capacity")]
    layers = [
        rows.mark_line(strokeWidth=1.5, opacity=0.5).encode(x=x, y=alt.Y("capacity:Q", scale=scale), color=colour),
        rows.mark_rule(strokeWidth=1.5, opacity=0.7).encode(
            x=x, y=alt.Y("low:Q", scale=scale, title="capacity (facts)", axis=_axis(alt)), y2="high:Q", color=colour
        ),
        rows.mark_point(filled=True, size=70, opacity=0.95).encode(
            x=x, y=alt.Y("capacity:Q", scale=scale), color=colour, tooltip=tip, href="href:N"
        ),
    ]
    return _finished(alt.layer(*layers), 320)


def _ratio_spec() -> Spec:
    import altair as alt

    rows = _named(alt, "rows")
    scale = alt.Scale(type="log", nice=False, padding=24)
    x = alt.X("ratio:Q", title="measured / bound", scale=scale, axis=_axis(alt, "~g"))
    tip = ["architecture:N", "parameters:Q", "bound:N", alt.Tooltip("ratio:Q", format=".3~f")]
    colour = alt.Color(
        "bound:N", title=None, legend=alt.Legend(orient="top", columns=1, labelLimit=320, symbolOpacity=1)
    )
    one = _named(alt, "one").mark_rule(color=INK, strokeWidth=2).encode(x="ratio:Q")
    points = rows.mark_point(filled=True, size=70, opacity=0.85).encode(
        x=x, y=alt.Y("architecture:N", title=None), color=colour, tooltip=tip, href="href:N"
    )
    return _finished(alt.layer(one, points), 26)  # for each architecture; see `height`


def _named(alt: Any, name: str) -> Any:
    return alt.Chart(alt.NamedData(name=name))


def _axis(alt: Any, form: str = "~s") -> Any:
    """A logarithmic axis whose grid is plain at powers of ten and faint between them."""
    is_decade = "abs(log(datum.value) / LN10 - round(log(datum.value) / LN10)) < 0.001"
    opacity = {"condition": {"test": is_decade, "value": 0.9}, "value": 0.25}
    return alt.Axis(tickCount=5, format=form, labelFlush=False, gridOpacity=opacity)


def _finished(chart: Any, height: Any) -> Spec:
    spec: Spec = chart.properties(height=height, width="container").to_dict(validate=False)
    return spec


def height(spec: Spec, datasets: Datasets) -> int:
    """How tall a chart is inside its axes: a line for each architecture, where that is its vertical axis."""
    lines = len({row["architecture"] for row in datasets["rows"]}) if "one" in datasets else 1
    return int(spec["height"]) * max(1, lines)


def room(spec: Spec, datasets: Datasets) -> int:
    """How tall a chart is with its axes and its legend, at the most.

    It is kept free until the chart is drawn, so that nothing moves under a reader's pointer.
    """
    named_above = len({row["bound"] for row in datasets["rows"]}) if "one" in datasets else 0
    return height(spec, datasets) + 60 + 13 * named_above


def svg(spec: Spec, datasets: Datasets) -> str:
    """A chart as a picture that needs no script; the same data give the same bytes."""
    import vl_convert

    axis = {
        "labelColor": INK,
        "titleColor": INK,
        "gridColor": FAINT,
        "domainColor": INK,
        "tickColor": INK,
    }
    config = {"font": FONT, "background": None, "view": {"stroke": None}, "axis": axis, "legend": {"labelColor": INK}}
    whole = {
        **spec,
        "width": 620,
        "height": height(spec, datasets),
        "datasets": datasets,
        "config": config,
        "background": None,
    }
    picture: str = vl_convert.vegalite_to_svg(json.dumps(whole, sort_keys=True), allowed_base_urls=[])
    return picture
