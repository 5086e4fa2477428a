"""The picture of what capacity costs: capacity against training cost, with the Pareto front."""

from __future__ import annotations

import math
import sys
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
LABEL_WIDTH, LABEL_HEIGHT = 0.15, 0.07
"""What the name of an architecture takes of the plot, as shares of the ranges of the axes."""


def front_data(entries: Sequence[BoardEntry], links: Mapping[str, str]) -> Datasets:
    """One point per record that says what it cost: opaque on the front, grey where it is not settled."""
    front = {entry.path for entry in pareto_front(entries)}
    drawn = [entry for entry in entries if has_capacity(entry) and training_cost(entry)]
    rows = [_row(entry, links, entry.path in front) for entry in drawn]
    front_rows = [row for row in rows if row["front"]]
    return {
        "rows": rows,
        "others": [row for row in rows if not row["front"]],
        "front": front_rows,
        "labels": _labels(front_rows, _log_range(rows, "cost"), _log_range(rows, "capacity")),
    }


def _labels(rows: Sequence[ChartRow], width: float, height: float) -> list[ChartRow]:
    """One row per label, at the largest model of each architecture; names that would overlap share a label."""
    largest = {row["architecture"]: row for row in sorted(rows, key=lambda row: _log(row, "capacity"))}
    labels: list[ChartRow] = []
    for row in reversed(largest.values()):
        near = (label for label in labels if _overlap(label, row, width, height))
        if label := next(near, None):
            label["architecture"] = f"{label['architecture']}, {row['architecture']}"
        else:
            labels.append({**row})
    return labels


def _overlap(one: ChartRow, other: ChartRow, width: float, height: float) -> bool:
    across = abs(_log(one, "cost") - _log(other, "cost")) / width
    up = abs(_log(one, "capacity") - _log(other, "capacity")) / height
    return across < LABEL_WIDTH and up < LABEL_HEIGHT


def _log_range(rows: Sequence[ChartRow], field: str) -> float:
    values = [_log(row, field) for row in rows] or [0.0]
    return max(values) - min(values) or 1.0


def _log(row: ChartRow, field: str) -> float:
    return math.log(max(float(row[field] or 0), sys.float_info.min))


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
