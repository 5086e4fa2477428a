"""The plot of a sweep: a line with intervals over one field, a heat map over two."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import altair as alt

from capbench.errors import BadSetting
from capbench.report.result_plot import check_plot_path, save_chart
from capbench.report.result_text import brief_capacity
from capbench.studies.sweep import Grid, Point

Row = dict[str, str | float]
MOST_FIELDS = 2
LOG_AXIS_FACTOR = 8
"""Values that span more than this factor are drawn on a logarithmic axis."""


def check_sweep_plot(path: Path, grid: Grid) -> None:
    """Raises BadSetting for a path or a grid that cannot be plotted, before any training."""
    check_plot_path(path)
    if len(grid) > MOST_FIELDS:
        raise BadSetting(f"--plot takes a grid of one or two fields, got {len(grid)}: {', '.join(grid)}")


def save_sweep_plot(points: Sequence[Point], grid: Grid, path: Path) -> None:
    """Writes the plot in the format that the suffix of the path names."""
    save_chart(sweep_chart(points, grid), path)


def sweep_chart(points: Sequence[Point], grid: Grid) -> alt.LayerChart:
    """A line over one field, a heat map over two."""
    rows = [_row(point) for point in points if point.result is not None]
    title = next(_title(point) for point in points if point.result is not None)
    chart = alt.Chart(alt.InlineData(values=rows))
    return _line(chart, grid, title) if len(grid) == 1 else _heat_map(chart, grid, title)


def _line(chart: alt.Chart, grid: Grid, title: str) -> alt.LayerChart:
    (name,) = grid
    x = _axis(name, grid[name])
    y = alt.Y("estimate:Q", title=title)
    layers = [
        chart.mark_line(color="#888888").encode(x=x, y=y),
        chart.mark_rule(color="#4c78a8").encode(x=x, y=alt.Y("low:Q", title=title), y2="high:Q"),
        chart.mark_point(color="#4c78a8", filled=True, size=60, opacity=1).encode(x=x, y=y, tooltip=["answer:N"]),
    ]
    return alt.LayerChart(layer=layers).properties(width=480, height=300)


def _heat_map(chart: alt.Chart, grid: Grid, title: str) -> alt.LayerChart:
    across, down = grid
    x = alt.X("x:N", title=across, sort=list(grid[across]), axis=alt.Axis(labelAngle=0))
    y = alt.Y("y:N", title=down, sort=list(reversed(grid[down])))
    cells = chart.mark_rect().encode(
        x=x, y=y, color=alt.Color("estimate:Q", title=title, scale=alt.Scale(scheme="viridis")), tooltip=["answer:N"]
    )
    # A white outline keeps the numbers legible on every colour.
    outlined = chart.mark_text(color="black", stroke="white", strokeWidth=2.5, strokeOpacity=0.8).encode(
        x=x, y=y, text="short:N"
    )
    on_top = chart.mark_text(color="black").encode(x=x, y=y, text="short:N")
    size = {"width": 64 * len(grid[across]), "height": 40 * len(grid[down])}
    return alt.LayerChart(layer=[cells, outlined, on_top]).properties(**size)


def _axis(name: str, values: Sequence[str]) -> alt.X:
    """A numeric axis if all values are numbers, else a nominal one."""
    numbers = _numbers(values)
    if numbers is None:
        return alt.X("x:N", title=name, sort=list(values))
    is_wide = min(numbers) > 0 and max(numbers) > LOG_AXIS_FACTOR * min(numbers)
    scale = alt.Scale(type="log" if is_wide else "linear", nice=False, padding=12)
    return alt.X("at:Q", title=name, scale=scale, axis=alt.Axis(values=numbers, format="~s"))


def _numbers(values: Sequence[str]) -> list[float] | None:
    try:
        return [float(value) for value in values]
    except ValueError:
        return None


def _row(point: Point) -> Row:
    assert point.result is not None
    capacity, values = point.result.capacity, [value for _, value in point.values]
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
        "short": f"{capacity.estimate:.3g}",
    }


def _title(point: Point) -> str:
    assert point.result is not None
    result = point.result
    measured = {
        "largest_load": "capacity",
        "least_budget": f"least {result.capacity.parameter}",
        "success_rate": "share of trials that hold",
        "overload": "facts held under overload",
    }[result.capacity.kind]
    return f"{measured}: {result.task.name} × {result.architecture.name}"
