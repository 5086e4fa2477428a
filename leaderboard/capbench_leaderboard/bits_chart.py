"""The picture of a task: bits per parameter against parameters, with intervals, bounds and constructed weights."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from capbench.documents.colours import UNSETTLED_COLOUR, architecture_colour
from capbench_leaderboard.chart_style import (
    TEXT_COLOR,
    ChartRow,
    Datasets,
    Spec,
    chart_of,
    own_value,
    size_axis,
    to_spec,
)
from capbench_leaderboard.families import family_of, family_order, shape_of
from capbench_leaderboard.ranking.entry import BoardEntry
from capbench_leaderboard.ranking.measures import (
    bits_per_parameter,
    bound_in_bits,
    constructed_in_bits,
    has_capacity,
    holds_in_weights,
)
from capbench_leaderboard.record_text import capacity_text, interval_text, kind_text, plain_line

HEIGHT = 340
LABEL_HEIGHT = 14
MAX_BOUND_LABELS = 10
EARLY = 0.8
"""A line that ends at less than this share of the largest size has its name where it ends."""
CONSTRUCTED = "constructed"
KINDS = {"guaranteed": [6, 3], CONSTRUCTED: [2, 2], "impossible beyond": [12, 3, 2, 3], "exact": [1, 0], "law": [1, 4]}
"""What is drawn beside the measured values, and its dashes."""
SHOWN_BEYOND = 1.5
"""Bounds beyond this many times the largest measured value are left out, so that measured values stay legible."""
ARROWS = {"at_least": "↑", "below": "↓"}


class BoundPoint(NamedTuple):
    """A bound at one size: its name, its kind and the architecture to which it applies."""

    name: str
    kind: str
    architecture: str
    parameters: int
    bits: float


def bits_data(entries: Iterable[BoardEntry], links: Mapping[str, str]) -> Datasets:
    """The rows of the picture; unsettled records are grey points without a line."""
    drawn = [entry for entry in entries if has_capacity(entry) and holds_in_weights(entry)]
    rows = sorted((_row(entry, links) for entry in drawn), key=_row_order)
    top = max((_top_of(row) for row in rows), default=1.0)
    bounds = [row for row in _bound_rows(drawn) if _bits_of(row) <= SHOWN_BEYOND * top]
    top = 1.04 * max([top, *map(_bits_of, bounds)])
    lines = [row for row in rows if row["settled"]]
    return {
        "rows": rows,
        "lines": lines,
        "arrows": [{**row, "arrow": ARROWS[str(row["status"])]} for row in rows if row["status"] in ARROWS],
        "bounds": bounds,
        "labels": _labels(lines, top),
        "bound_labels": _bound_labels(bounds, top),
        "frame": [{"bits": top, "parameters": row["parameters"]} for row in rows[:1]],
    }


def _row(entry: BoardEntry, links: Mapping[str, str]) -> ChartRow:
    result, bits, family = entry.result, bits_per_parameter(entry), family_of(entry.result)
    name = plain_line(result.architecture.name)
    return {
        "parameters": result.n_parameters,
        "bits": _rounded(bits.value),
        "low": _rounded(bits.value if bits.low is None else bits.low),
        "high": _rounded(bits.value if bits.high is None else bits.high),
        "architecture": name,
        "family": family,
        "shape": shape_of(family),
        "colour": UNSETTLED_COLOUR if entry.is_unsettled else architecture_colour(name),
        "settled": not entry.is_unsettled,
        "status": result.capacity.status,
        "text": f"{capacity_text(result.capacity)} ({interval_text(result.capacity)})"
        + (", not settled" if entry.is_unsettled else ""),
        "href": links.get(entry.path, ""),
    }


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")


def _row_order(row: ChartRow) -> tuple[tuple[int, str], str, int]:
    return family_order(str(row["family"])), str(row["architecture"]), _size_of(row)


def _size_of(row: ChartRow) -> int:
    return int(row["parameters"] or 0)


def _bits_of(row: ChartRow) -> float:
    return float(row["bits"] or 0)


def _top_of(row: ChartRow) -> float:
    return max(_bits_of(row), float(row["high"] or 0))


def _bound_rows(entries: Sequence[BoardEntry]) -> list[ChartRow]:
    """Bounds and constructed capacities; those that are the same for all architectures are one grey line."""
    by_name: dict[tuple[str, str], list[BoundPoint]] = defaultdict(list)
    for entry in entries:
        for point in _bound_points(entry):
            by_name[point.name, point.kind].append(point)
    return [row for _, points in sorted(by_name.items()) for row in _lines_of(points)]


def _bound_points(entry: BoardEntry) -> Iterable[BoundPoint]:
    name, size = plain_line(entry.result.architecture.name), entry.result.n_parameters
    for bound in entry.result.bounds:
        bits = bound_in_bits(entry, bound)
        if bits is not None and bits > 0:
            yield BoundPoint(plain_line(bound.id), kind_text(bound), name, size, _rounded(bits))
    constructed = constructed_in_bits(entry)
    if constructed:
        yield BoundPoint(CONSTRUCTED, CONSTRUCTED, name, size, _rounded(constructed))


def _lines_of(points: Sequence[BoundPoint]) -> list[ChartRow]:
    values, sizes = {point.bits for point in points}, [point.parameters for point in points]
    architectures = {point.architecture for point in points}
    if len(values) == 1 and len(architectures) > 1:
        ends = sorted({min(sizes), max(sizes)})
        points = [points[0]._replace(architecture="", parameters=size) for size in ends]
    return [
        {
            "name": point.name,
            "kind": point.kind,
            "architecture": point.architecture,
            "line": f"{point.name} {point.architecture}",
            "parameters": point.parameters,
            "bits": point.bits,
            "colour": architecture_colour(point.architecture) if point.architecture else TEXT_COLOR,
        }
        for point in sorted(points, key=lambda each: (each.architecture, each.parameters))
    ]


def _labels(lines: Sequence[ChartRow], top: float) -> list[ChartRow]:
    """The name of each line beside its last point; at the right end moved apart where lines end close together."""
    last = {row["architecture"]: row for row in lines}
    right = max((_size_of(row) for row in lines), default=0)
    early = [row for row in last.values() if _size_of(row) < EARLY * right]
    shown = sorted((row for row in last.values() if row not in early), key=_bits_of)[-(HEIGHT // LABEL_HEIGHT) :]
    heights = _spread([_bits_of(row) for row in shown], top * LABEL_HEIGHT / HEIGHT, top)
    return [
        {**_pick(row), "parameters": right, "bits": _rounded(height)}
        for row, height in zip(shown, heights, strict=True)
    ] + [_pick(row) for row in early]


def _pick(row: ChartRow) -> ChartRow:
    return {key: row[key] for key in ("architecture", "colour", "parameters", "bits")}


def _bound_labels(bounds: Sequence[ChartRow], top: float) -> list[ChartRow]:
    """What the lines of each bound are, at the first point of the first."""
    by_bound: dict[tuple[object, object], list[ChartRow]] = defaultdict(list)
    for row in bounds:
        by_bound[row["name"], row["kind"]].append(row)
    shown = sorted((_bound_label(rows) for rows in by_bound.values()), key=_bits_of)[:MAX_BOUND_LABELS]
    heights = _spread([_bits_of(row) for row in shown], top * LABEL_HEIGHT / HEIGHT, top)
    return [{**row, "bits": _rounded(height)} for row, height in zip(shown, heights, strict=True)]


def _bound_label(rows: Sequence[ChartRow]) -> ChartRow:
    first, names = min(rows, key=_size_of), {row["architecture"] for row in rows}
    bound = "" if first["kind"] == CONSTRUCTED else str(first["name"])
    whose = str(first["architecture"]) if len(names) == 1 else ""
    text = ", ".join(part for part in (bound, whose) if part)
    return {
        "label": f"{first['kind']}: {text}" if text else str(first["kind"]),
        "architecture": whose,
        "parameters": first["parameters"],
        "bits": first["bits"],
        "colour": first["colour"] if len(names) == 1 else TEXT_COLOR,
    }


def _spread(heights: Sequence[float], gap: float, top: float) -> list[float]:
    """Ascending heights moved until each is a gap above the one before, and the last not above the top."""
    found: list[float] = []
    for height in heights:
        found.append(max(height, found[-1] + gap) if found else height)
    ceiling = top
    for i in reversed(range(len(found))):
        found[i] = min(found[i], ceiling)
        ceiling = found[i] - gap
    return found


def bits_spec() -> Spec:
    """The specification, without data."""
    import altair as alt

    x, y = size_axis(alt), alt.Y("bits:Q", title="bits per parameter", scale=alt.Scale(zero=True, nice=False))
    colour, shape, fill = (
        own_value(alt, "Color", "colour"),
        own_value(alt, "Shape", "shape"),
        own_value(alt, "Fill", "colour"),
    )
    rows, lines, bounds = chart_of(alt, "rows"), chart_of(alt, "lines"), chart_of(alt, "bounds")
    dashes = alt.StrokeDash(
        "kind:N",
        title=None,
        scale=alt.Scale(domain=list(KINDS), range=list(KINDS.values())),
        legend=None,
    )
    tip = [
        "architecture:N",
        "parameters:Q",
        alt.Tooltip("bits:Q", title="bits per parameter"),
        alt.Tooltip("text:N", title="capacity"),
    ]
    bound_tip = ["name:N", "kind:N", "architecture:N", alt.Tooltip("bits:Q", title="bits per parameter")]
    layers = [
        chart_of(alt, "frame").mark_point(opacity=0).encode(x=x, y=y),
        lines.mark_area(opacity=0.1, line=False).encode(
            x=x, y=alt.Y("low:Q"), y2="high:Q", fill=fill, detail="architecture:N"
        ),
        bounds.mark_line(strokeWidth=1.5, opacity=0.9).encode(
            x=x, y=y, color=colour, strokeDash=dashes, detail="line:N"
        ),
        bounds.mark_point(shape="stroke", size=90, opacity=0.9, strokeWidth=1.5).encode(
            x=x, y=y, color=colour, tooltip=bound_tip
        ),
        lines.mark_line(strokeWidth=2).encode(x=x, y=y, color=colour, detail="architecture:N"),
        rows.mark_rule(strokeWidth=1.2, opacity=0.7).encode(x=x, y=alt.Y("low:Q"), y2="high:Q", color=colour),
        rows.mark_point(filled=True, size=60, opacity=1).encode(
            x=x, y=y, color=colour, shape=shape, tooltip=tip, href="href:N"
        ),
        chart_of(alt, "arrows")
        .mark_text(dy=-13, fontSize=15, fontWeight="bold")
        .encode(x=x, y=y, text="arrow:N", color=colour),
        chart_of(alt, "bound_labels")
        .mark_text(align="left", dx=4, dy=-7, fontSize=10.5)
        .encode(x=x, y=y, text="label:N", color=colour),
        chart_of(alt, "labels")
        .mark_text(align="left", dx=11, fontSize=12)
        .encode(x=x, y=y, text="architecture:N", color=colour),
    ]
    return to_spec(alt.layer(*layers), HEIGHT)
