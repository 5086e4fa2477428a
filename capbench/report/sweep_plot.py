"""The plot of a sweep: a line with intervals over one field, a heat map over two."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import altair as alt

from capbench.documents.colours import architecture_colour
from capbench.documents.text import plain
from capbench.errors import BadSetting
from capbench.report.result_plot import check_plot_path, save_chart
from capbench.report.result_text import brief_capacity
from capbench.studies.sweep import ARCH, JOINT, Grid, Point

Row = dict[str, str | float]
MOST_FIELDS = 2
SHAPES = {"estimated": "circle", "at_least": "triangle-up", "below": "triangle-down"}
"""Marks of points: triangles point to where the capacity is, where only one side is known."""
SIGNS = {"estimated": "", "at_least": "≥ ", "below": "≤ "}
WORDS = {
    "arch": "architecture",
    "at": "load",
    "params": "parameters",
    "n_heads": "heads",
    "n_layers": "layers",
    "d_model": "width of the model",
    "d_qk": "query/key width of a head",
    "d_vo": "value/output width of a head",
    "d_mlp": "width of the MLP",
    "d_hidden": "hidden units",
    "n_items": "items",
    "d_item": "width of an item",
    "n_keys": "keys",
    "n_queries": "queries",
    "n_values": "values",
    "learning_rate": "learning rate",
}
"""What fields are in words, where their names alone are terse."""
BESIDE = 6
"""Pixels between the points of two architectures at the same value."""
LOG_AXIS_FACTOR = 8
"""Values that span more than this factor are drawn on a logarithmic axis."""


def check_sweep_plot(path: Path, grid: Grid) -> None:
    """Raises BadSetting for a path or a grid that cannot be plotted, before any training."""
    check_plot_path(path)
    fields = [name for name in grid if name != ARCH]
    if len(fields) > MOST_FIELDS:
        raise BadSetting(f"--plot takes a grid of one or two fields, got {len(fields)}: {', '.join(fields)}")
    if ARCH in grid and len(fields) == MOST_FIELDS:
        raise BadSetting(f"--plot takes several architectures over one field, got {len(fields)}: {', '.join(fields)}")


def save_sweep_plot(points: Sequence[Point], grid: Grid, fact: str, path: Path) -> None:
    """Writes the plot in the format that the suffix of the path names."""
    save_chart(sweep_chart(points, grid, fact), path)


def sweep_chart(points: Sequence[Point], grid: Grid, fact: str) -> alt.LayerChart:
    """A line over one field, one line per architecture where there are several, a heat map over two fields."""
    fields = {name: values for name, values in grid.items() if name != ARCH} or grid
    rows = [_row(point, fields) for point in points if point.result is not None]
    title = next(_title(point, fact) for point in points if point.result is not None)
    if len(fields) > 1:
        return _heat_map(alt.Chart(alt.InlineData(values=rows)), fields, title)
    return _lines(rows, fields, title)


def _lines(rows: Sequence[Row], fields: Grid, title: alt.Title) -> alt.LayerChart:
    """Points with their intervals, joined where the field is a number; triangles where only one side is known.

    Architectures stand a few pixels beside each other, so that no interval covers another.
    """
    architectures = list(dict.fromkeys(str(row["architecture"]) for row in rows))
    (name,) = fields
    x, y_title = _axis(name, fields[name]), title.text
    legend = alt.Legend(symbolOpacity=1) if len(architectures) > 1 else None
    scale = alt.Scale(domain=list(architectures), range=[architecture_colour(each) for each in architectures])
    colour = alt.Color("architecture:N", title=None, scale=scale, legend=legend)
    y = alt.Y("estimate:Q", title=y_title, scale=alt.Scale(zero=False, nice=True))
    shape = alt.Shape(
        "status:N", title=None, scale=alt.Scale(domain=list(SHAPES), range=list(SHAPES.values())), legend=None
    )
    is_joined = _numbers(fields[name]) is not None
    layers = []
    for i, architecture in enumerate(architectures):
        chart = alt.Chart(alt.InlineData(values=[row for row in rows if row["architecture"] == architecture]))
        beside = BESIDE * (i - (len(architectures) - 1) / 2)
        if is_joined:
            layers.append(chart.mark_line(opacity=0.6, xOffset=beside).encode(x=x, y=y, color=colour))
        intervals = chart.mark_rule(xOffset=beside)
        layers.append(intervals.encode(x=x, y=alt.Y("low:Q", title=y_title), y2="high:Q", color=colour))
        marks = chart.mark_point(filled=True, size=70, opacity=1, xOffset=beside)
        layers.append(marks.encode(x=x, y=y, shape=shape, color=colour, tooltip=["architecture:N", "answer:N"]))
    note = "vertical lines are 95 % intervals; a triangle points to where a value is of which only one side is known"
    heading = alt.Title(title.text, subtitle=[*title.subtitle, note])
    return alt.LayerChart(layer=layers).properties(width=520, height=300, title=heading)


def _heat_map(chart: alt.Chart, grid: Grid, heading: alt.Title) -> alt.LayerChart:
    across, down = grid
    title = heading.text
    x = alt.X("x:N", title=axis_title(across), sort=list(grid[across]), axis=alt.Axis(labelAngle=0))
    y = alt.Y("y:N", title=axis_title(down), sort=list(reversed(grid[down])))
    cells = chart.mark_rect().encode(
        x=x, y=y, color=alt.Color("estimate:Q", title=title, scale=alt.Scale(scheme="viridis")), tooltip=["answer:N"]
    )
    # A white outline keeps the numbers legible on every colour.
    outlined = chart.mark_text(color="black", stroke="white", strokeWidth=2.5, strokeOpacity=0.8).encode(
        x=x, y=y, text="short:N"
    )
    on_top = chart.mark_text(color="black").encode(x=x, y=y, text="short:N")
    size = {"width": 64 * len(grid[across]), "height": 40 * len(grid[down])}
    return alt.LayerChart(layer=[cells, outlined, on_top]).properties(**size, title=heading)


def axis_title(name: str) -> str:
    """The fields of an axis in words, followed by their names: heads (n_heads); a field without words by its name."""
    fields = [field.rpartition(".")[2] for field in name.split(JOINT)]
    words = [WORDS.get(field, field.replace("_", " ")) for field in fields]
    is_field = any(field in WORDS and "." in name for field in fields)
    names = f" ({', '.join(fields)})" if is_field else ""
    return plain(f"{' and '.join(words)}{names}")


def _axis(name: str, values: Sequence[str]) -> alt.X:
    """A numeric axis if all values are numbers, else a nominal one."""
    numbers = _numbers(values)
    if numbers is None:
        return alt.X("x:N", title=axis_title(name), sort=list(values))
    is_wide = min(numbers) > 0 and max(numbers) > LOG_AXIS_FACTOR * min(numbers)
    scale = alt.Scale(type="log" if is_wide else "linear", nice=False, padding=12)
    return alt.X("at:Q", title=axis_title(name), scale=scale, axis=alt.Axis(values=numbers, format="~s"))


def _numbers(values: Sequence[str]) -> list[float] | None:
    try:
        return [float(value) for value in values]
    except ValueError:
        return None


def _row(point: Point, fields: Grid) -> Row:
    assert point.result is not None
    capacity, values = point.result.capacity, [value for name, value in point.values if name in fields]
    numbers = _numbers(values[:1])
    return {
        "x": values[0],
        "y": values[-1],
        "at": numbers[0] if numbers else 0.0,
        "estimate": capacity.estimate,
        # An open interval is drawn without that side.
        "low": capacity.estimate if capacity.ci_low is None else capacity.ci_low,
        "high": capacity.estimate if capacity.ci_high is None else capacity.ci_high,
        "answer": brief_capacity(point.result),
        "status": capacity.status,
        "architecture": point.result.architecture.name,
        "short": f"{SIGNS[capacity.status]}{capacity.estimate:.3g}",
    }


def _title(point: Point, fact: str) -> alt.Title:
    """What is measured, in the task's word for a fact, and of what."""
    assert point.result is not None
    result = point.result
    measured = {
        "largest_load": f"capacity ({fact}s)",
        "least_budget": f"least {result.capacity.parameter}",
        "success_rate": "share of trials that hold",
        "overload": f"{fact}s held under overload",
    }[result.capacity.kind]
    pair = [result.task.name] + ([] if ARCH in dict(point.values) else [result.architecture.name])
    return alt.Title(plain(measured), subtitle=[plain(" × ".join(pair))])
