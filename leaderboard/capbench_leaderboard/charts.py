"""The charts: Vega-Lite specifications with named datasets, and the functions that fill the datasets."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cache

from capbench.contract.bound import FACTS
from capbench.documents.colours import UNSETTLED_COLOUR, architecture_colour
from capbench_leaderboard.bits_chart import bits_spec
from capbench_leaderboard.chart_style import (
    FONT,
    GRID_COLOR,
    TEXT_COLOR,
    ChartRow,
    Datasets,
    Spec,
    chart_of,
    log_axis,
    own_value,
    size_axis,
    to_spec,
)
from capbench_leaderboard.families import family_of, shape_of
from capbench_leaderboard.front_chart import front_spec
from capbench_leaderboard.ranking.entry import BoardEntry
from capbench_leaderboard.record_text import capacity_text, interval_text, kind_text, plain_line

MAX_CHART_RECORDS = 400
"""Maximum points per chart."""
HELD = "share of trials that hold"


def thin_out(entries: Sequence[BoardEntry]) -> Sequence[BoardEntry]:
    """As many records as a chart can show, evenly spaced in their order."""
    return entries[:: max(1, -(-len(entries) // MAX_CHART_RECORDS))]


def colour_of(entry: BoardEntry) -> str:
    """The colour of the record's architecture; grey where it is not settled."""
    return UNSETTLED_COLOUR if entry.is_unsettled else architecture_colour(plain_line(entry.result.architecture.name))


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
    metric, colour = f"mean {plain_line(entry.result.protocol.criterion.metric)}", colour_of(entry)
    points: list[ChartRow] = []
    for at, held, trials, value in entry.points:
        shared: ChartRow = {"at": at, "held": held, "trials": trials}
        if value is not None:
            points.append({**shared, "value": float(f"{value:.4g}"), "series": metric, "colour": TEXT_COLOR})
        points.append({**shared, "value": round(held / trials, 4), "series": HELD, "colour": colour})
    return {"points": points, "capacity": _capacity(entry), "bounds": _bounds(entry)}


def _capacity(entry: BoardEntry) -> list[ChartRow]:
    capacity = entry.result.capacity
    if capacity.kind not in ("largest_load", "least_budget") or not entry.points:
        return []
    low = capacity.ci_low if capacity.ci_low is not None else entry.points[0].at
    high = capacity.ci_high if capacity.ci_high is not None else entry.points[-1].at
    return [
        {
            "at": capacity.estimate,
            "low": low,
            "high": high,
            "name": f"capacity {capacity_text(capacity)}",
            "colour": colour_of(entry),
        }
    ]


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
                "elements": result.architecture.state_size,
                "capacity": float(f"{capacity.estimate:.5g}"),
                "low": float(f"{capacity.ci_low or capacity.estimate:.5g}"),
                "high": float(f"{capacity.ci_high or capacity.estimate:.5g}"),
                "architecture": plain_line(result.architecture.name),
                "shape": shape_of(family_of(result)),
                "colour": colour_of(entry),
                "settled": not entry.is_unsettled,
                "text": f"{capacity_text(capacity)} ({interval_text(capacity)})",
                "href": links.get(entry.path, ""),
            }
        )
    return {"rows": rows, "lines": [row for row in rows if row["settled"]]}


def state_data(entries: Iterable[BoardEntry], links: Mapping[str, str]) -> Datasets:
    """Capacity against the elements of the state, of the records whose facts are in a context."""
    return capacity_data([entry for entry in entries if entry.result.architecture.state_size], links)


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
    """The specifications by kind, without data."""
    return {
        "bits": bits_spec(),
        "capacity": _capacity_spec("parameters", "parameters"),
        "curve": _curve_spec(),
        "front": front_spec(),
        "ratio": _ratio_spec(),
        "state": _capacity_spec("elements", "elements of state"),
    }


def _curve_spec() -> Spec:
    import altair as alt

    x = alt.X("at:Q", title=None, scale=alt.Scale(type="log", nice=False, padding=12), axis=log_axis(alt))
    y = alt.Y("value:Q", title=None, scale=alt.Scale(domain=[0, 1]))
    legend = alt.Legend(orient="top", symbolType="stroke", symbolStrokeColor=TEXT_COLOR, symbolStrokeWidth=2)
    dashes = alt.StrokeDash("series:N", title=None, scale=alt.Scale(range=[[5, 3], [1, 0]]), legend=legend)
    colour = own_value(alt, "Color", "colour")
    capacity, bounds = chart_of(alt, "capacity"), chart_of(alt, "bounds")
    tip = [alt.Tooltip("at:Q", title="at"), "series:N", alt.Tooltip("value:Q", format=".3f"), "held:Q", "trials:Q"]
    points = chart_of(alt, "points")
    size = alt.Size("trials:Q", legend=None, scale=alt.Scale(domain=[1, 8], range=[35, 130], clamp=True))
    layers = [
        capacity.mark_rect(opacity=0.15).encode(x=alt.X("low:Q", title=None), x2="high:Q", color=colour),
        capacity.mark_rule(strokeWidth=2).encode(x=alt.X("at:Q", title=None), tooltip=["name:N"], color=colour),
        bounds.mark_rule(color=TEXT_COLOR, strokeDash=[5, 4], strokeWidth=1.5).encode(
            x=alt.X("at:Q", title=None), tooltip=["name:N"]
        ),
        *(
            marks.mark_text(angle=270, align="left", dx=6, dy=-6, fontSize=10, color=TEXT_COLOR).encode(
                x="at:Q", y=alt.value(280), text="name:N"
            )
            for marks in (bounds, capacity)
        ),
        points.mark_line(strokeWidth=2).encode(x=x, y=y, color=colour, strokeDash=dashes),
        points.mark_point(filled=True, opacity=1).encode(x=x, y=y, color=colour, size=size, tooltip=tip),
    ]
    return to_spec(alt.layer(*layers), 300)


def _capacity_spec(size: str, title: str) -> Spec:
    import altair as alt

    rows, lines = chart_of(alt, "rows"), chart_of(alt, "lines")
    x, scale = size_axis(alt, size, title), alt.Scale(type="log", nice=False, padding=14)
    y = alt.Y("capacity:Q", title="capacity (facts)", scale=scale, axis=log_axis(alt))
    colour, shape = own_value(alt, "Color", "colour"), own_value(alt, "Shape", "shape")
    tip = ["architecture:N", f"{size}:Q", alt.Tooltip("text:N", title="capacity")]
    layers = [
        lines.mark_line(strokeWidth=1.5, opacity=0.6).encode(x=x, y=y, color=colour, detail="architecture:N"),
        rows.mark_rule(strokeWidth=1.5, opacity=0.7).encode(
            x=x, y=alt.Y("low:Q", scale=scale), y2="high:Q", color=colour
        ),
        rows.mark_point(filled=True, size=60, opacity=1).encode(
            x=x, y=y, color=colour, shape=shape, tooltip=tip, href="href:N"
        ),
    ]
    return to_spec(alt.layer(*layers), 320)


def _ratio_spec() -> Spec:
    import altair as alt

    rows = chart_of(alt, "rows")
    scale = alt.Scale(type="log", nice=False, padding=24)
    x = alt.X("ratio:Q", title="measured / bound", scale=scale, axis=log_axis(alt, "~g"))
    tip = ["architecture:N", "parameters:Q", "bound:N", alt.Tooltip("ratio:Q", format=".3~f")]
    colour = alt.Color(
        "bound:N", title=None, legend=alt.Legend(orient="top", columns=1, labelLimit=320, symbolOpacity=1)
    )
    one = chart_of(alt, "one").mark_rule(color=TEXT_COLOR, strokeWidth=2).encode(x="ratio:Q")
    points = rows.mark_point(filled=True, size=70, opacity=0.85).encode(
        x=x, y=alt.Y("architecture:N", title=None), color=colour, tooltip=tip, href="href:N"
    )
    return to_spec(alt.layer(one, points), 26)  # per architecture; see `plot_height`


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
