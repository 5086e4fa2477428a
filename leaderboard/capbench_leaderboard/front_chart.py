"""The picture of what capacity costs: capacity against training cost, with the Pareto front."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from capbench.documents.colours import UNSETTLED_COLOUR, architecture_colour
from capbench_leaderboard.chart_style import (
    TEXT_COLOR,
    ChartRow,
    Datasets,
    Spec,
    chart_of,
    log_axis,
    own_value,
    to_spec,
)
from capbench_leaderboard.families import family_of, shape_of
from capbench_leaderboard.ranking.entry import BoardEntry
from capbench_leaderboard.ranking.measures import has_capacity, pareto_front, training_cost
from capbench_leaderboard.record_text import capacity_text, plain_line

HEIGHT = 300


def front_data(entries: Sequence[BoardEntry], links: Mapping[str, str]) -> Datasets:
    """One point per record that says what it cost: opaque on the front, grey where it is not settled."""
    front = {entry.path for entry in pareto_front(entries)}
    drawn = [entry for entry in entries if has_capacity(entry) and training_cost(entry)]
    rows = [_row(entry, links, entry.path in front) for entry in drawn]
    best = {row["architecture"]: row for row in sorted(rows, key=_capacity_of) if row["front"]}
    return {
        "rows": rows,
        "others": [row for row in rows if not row["front"]],
        "front": [row for row in rows if row["front"]],
        "labels": list(best.values()),
    }


def _capacity_of(row: ChartRow) -> float:
    return float(row["capacity"] or 0)


def _row(entry: BoardEntry, links: Mapping[str, str], is_on_front: bool) -> ChartRow:
    result = entry.result
    name, unsettled = plain_line(result.architecture.name), entry.is_unsettled
    return {
        "cost": training_cost(entry),
        "capacity": float(f"{result.capacity.estimate:.5g}"),
        "parameters": result.n_parameters,
        "architecture": name,
        "shape": shape_of(family_of(result)),
        "colour": UNSETTLED_COLOUR if unsettled else architecture_colour(name),
        "text": capacity_text(result.capacity),
        "front": is_on_front,
        "href": links.get(entry.path, ""),
    }


def front_spec() -> Spec:
    """The specification, without data."""
    import altair as alt

    scale = alt.Scale(type="log", nice=False, padding=48)
    x = alt.X("cost:Q", title="training cost of one model (parameter updates)", scale=scale, axis=log_axis(alt))
    y = alt.Y(
        "capacity:Q", title="capacity (facts)", scale=alt.Scale(type="log", nice=False, padding=18), axis=log_axis(alt)
    )
    size = alt.Size("parameters:Q", legend=None, scale=alt.Scale(type="log", range=[40, 260], nice=False))
    colour, shape = own_value(alt, "Color", "colour"), own_value(alt, "Shape", "shape")
    tip = [
        "architecture:N",
        "parameters:Q",
        alt.Tooltip("text:N", title="capacity"),
        alt.Tooltip("cost:Q", format=".2~s"),
    ]
    shared = {"x": x, "y": y, "size": size, "color": colour, "shape": shape, "tooltip": tip, "href": "href:N"}
    front = chart_of(alt, "front")
    layers = [
        chart_of(alt, "others").mark_point(filled=True, opacity=0.28).encode(**shared),
        front.mark_point(filled=True, opacity=1).encode(**shared),
        chart_of(alt, "labels")
        .mark_text(dy=-14, fontSize=11, color=TEXT_COLOR)
        .encode(x=x, y=y, text="architecture:N"),
    ]
    return to_spec(alt.layer(*layers), HEIGHT)
