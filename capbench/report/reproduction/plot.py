"""The figures of a reproduction: lines with intervals, heat maps, points with a fitted curve."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

import altair as alt
import numpy as np
import vl_convert

from capbench.documents.expressions import expand_braces
from capbench.documents.text import number, plain
from capbench.errors import UserError
from capbench.report.result_plot import with_dark_style
from capbench.studies.fit import predict
from capbench.studies.reproduce.claim_text import short_name
from capbench.studies.reproduce.claims import TableClaim
from capbench.studies.reproduce.data import PointRecord, Reproduction
from capbench.studies.reproduce.figure import Figure
from capbench.studies.reproduce.fitting import fit_points, fit_sweeps
from capbench.studies.reproduce.judging import table_rows
from capbench.studies.reproduce.values import MeasuredValue, NotShown, evaluate_at, select_points, setting_at

Row = dict[str, str | float]
COLOURS = ("#4c78a8", "#f58518", "#54a24b", "#b279a2", "#e45756", "#72b7b2", "#9d755d", "#bab0ac")
WIDTH, HEIGHT = 480, 300
CURVE_POINTS = 60
GRADIENT = re.compile(r"gradient_\d+")


def figure_svg(figure: Figure, data: Reproduction) -> str:
    """The figure as SVG, for light and dark pages; the same data give the same bytes."""
    chart = {"lines": _lines, "heat_map": _heat_map, "points": _points}[figure.kind](figure, data)
    title = alt.Title(plain(figure.title), anchor="start", fontSize=13, subtitle=plain(_subtitle(figure)))
    svg = str(vl_convert.vegalite_to_svg(chart.properties(title=title).to_json()))
    return with_dark_style(_renumber_gradients(svg))


def _subtitle(figure: Figure) -> str:
    """The legend of dashed lines and crosses."""
    parts = [f"dashed: {', '.join(figure.bound)}"] if figure.bound else []
    return "; ".join([*parts, *(["crosses: published"] if figure.published else [])])


def _renumber_gradients(svg: str) -> str:
    """Numbers the gradients from 0: the converter keeps counting across figures of one process."""
    names = list(dict.fromkeys(GRADIENT.findall(svg)))
    return GRADIENT.sub(lambda match: f"gradient_{names.index(match[0])}", svg)


def _lines(figure: Figure, data: Reproduction) -> alt.LayerChart:
    """One line per sweep, quantity and value of the series; bounds dashed, published values as crosses."""
    rows = list(_rows(figure, data))
    names = list(dict.fromkeys(str(row["line"]) for row in rows))
    layers = [
        _marks(rows, figure, names, alt.Chart.mark_line, strokeWidth=1.5),
        _rules(rows, figure, names),
        _marks(rows, figure, names, alt.Chart.mark_point, filled=True, size=45, opacity=1),
    ]
    bounds = list(_bound_rows(figure, data))
    if bounds:
        layers.append(_marks(bounds, figure, names, alt.Chart.mark_line, strokeDash=[5, 4], strokeWidth=1.2))
    published = list(_published_rows(figure, data))
    if published:
        layers.append(_marks(published, figure, names, alt.Chart.mark_point, shape="cross", size=90, strokeWidth=1.5))
    return alt.LayerChart(layer=layers).properties(width=WIDTH, height=HEIGHT)


def _points(figure: Figure, data: Reproduction) -> alt.LayerChart:
    """Points with intervals, and the fitted curve through all of them."""
    rows = list(_rows(figure, data))
    names = list(dict.fromkeys(str(row["line"]) for row in rows))
    layers = [
        _rules(rows, figure, names),
        _marks(rows, figure, names, alt.Chart.mark_point, filled=True, size=60, opacity=1),
    ]
    curve = _curve_rows(figure, data)
    if curve:
        chart = alt.Chart(alt.InlineData(values=curve))
        layers.insert(0, chart.mark_line(color="#888888").encode(x=_x(figure, rows), y=_y(figure)))
    return alt.LayerChart(layer=layers).properties(width=WIDTH, height=HEIGHT)


def _in_order(values: Iterable[object]) -> list[str]:
    """The distinct values: numbers sorted, others in their order."""
    once = list(dict.fromkeys(values))
    numbers = [value for value in once if isinstance(value, int | float)]
    return [str(value) for value in (sorted(numbers) if len(numbers) == len(once) else once)]


def _heat_map(figure: Figure, data: Reproduction) -> alt.LayerChart:
    """Colour over two fields, with the numbers in the cells."""
    points = select_points(data.points(figure.sweeps[0]), figure.only)
    rows: list[Row] = [
        {
            "x": str(setting_at(point, figure.x)),
            "y": str(setting_at(point, figure.series)),
            "value": evaluate_at(point, figure.y[0]).value,
            "short": number(evaluate_at(point, figure.y[0]).value),
        }
        for point in points
    ]
    across, down = (_in_order(setting_at(point, name) for point in points) for name in (figure.x, figure.series))
    x = alt.X("x:N", title=plain(figure.x_title or short_name(figure.x)), sort=across, axis=alt.Axis(labelAngle=0))
    y = alt.Y("y:N", title=plain(figure.y_title or short_name(figure.series)), sort=down[::-1])
    chart = alt.Chart(alt.InlineData(values=rows))
    colour = alt.Color("value:Q", title=plain(short_name(figure.y[0])), scale=alt.Scale(scheme="viridis"))
    cells = chart.mark_rect().encode(x=x, y=y, color=colour)
    # A white outline keeps the numbers legible on every colour.
    outlined = chart.mark_text(color="black", stroke="white", strokeWidth=2.5, strokeOpacity=0.8).encode(
        x=x, y=y, text="short:N"
    )
    on_top = chart.mark_text(color="black").encode(x=x, y=y, text="short:N")
    size = {"width": 56 * len(across), "height": 36 * len(down)}
    return alt.LayerChart(layer=[cells, outlined, on_top]).properties(**size)


def _marks(rows: Sequence[Row], figure: Figure, names: Sequence[str], mark: object, **looks: object) -> alt.Chart:
    chart = mark(alt.Chart(alt.InlineData(values=list(rows))), **looks)  # type: ignore[operator]
    encoded: alt.Chart = chart.encode(x=_x(figure, rows), y=_y(figure), color=_colour(names))
    return encoded


def _rules(rows: Sequence[Row], figure: Figure, names: Sequence[str]) -> alt.Chart:
    """The intervals."""
    chart = alt.Chart(alt.InlineData(values=list(rows))).mark_rule(strokeWidth=1.5)
    encoded: alt.Chart = chart.encode(x=_x(figure, rows), y=_y(figure, "low:Q"), y2="high:Q", color=_colour(names))
    return encoded


def _x(figure: Figure, rows: Sequence[Row]) -> alt.X:
    scale = alt.Scale(type="log" if figure.log_x else "linear", nice=False, padding=12, zero=False)
    is_whole = all(float(row["x"]).is_integer() for row in rows)
    axis = alt.Axis(tickCount=8, format="~s", tickMinStep=1 if is_whole else 0)
    return alt.X("x:Q", title=plain(figure.x_title or short_name(figure.x)), scale=scale, axis=axis)


def _y(figure: Figure, column: str = "y:Q") -> alt.Y:
    scale = alt.Scale(type="log" if figure.log_y else "linear", zero=not figure.log_y)
    return alt.Y(column, title=plain(figure.y_title or ", ".join(map(short_name, figure.y))), scale=scale)


def _colour(names: Sequence[str]) -> alt.Color:
    scale = alt.Scale(domain=list(names), range=[COLOURS[i % len(COLOURS)] for i in range(len(names))])
    legend = alt.Legend(labelLimit=260, orient="bottom", columns=2) if len(names) > 1 else None
    return alt.Color("line:N", title=None, scale=scale, legend=legend)


def _drawn(figure: Figure, data: Reproduction) -> Iterator[tuple[str, PointRecord]]:
    """The points of a figure with the id of their sweep."""
    for sweep in figure.sweeps:
        for point in select_points(data.points(sweep), figure.only):
            yield sweep, point


def _rows(figure: Figure, data: Reproduction) -> Iterator[Row]:
    if figure.per:
        yield from _slope_rows(figure, data)
        return
    for expression in figure.y:
        for sweep, point in _drawn(figure, data):
            line = _line_name(figure, data, sweep, point, expression)
            yield from (_row(x, y, line) for x, y in _values(figure, point, expression))


def _values(figure: Figure, point: PointRecord, expression: str) -> Iterator[tuple[float, MeasuredValue]]:
    """x and y of a point; empty where its sweep does not have the quantity."""
    try:
        if figure.across:
            for x, expanded in zip(figure.across, expand_braces(expression, figure.across), strict=True):
                yield float(x), evaluate_at(point, expanded)
        else:
            yield evaluate_at(point, figure.x).value, evaluate_at(point, expression)
    except UserError:
        return


def _slope_rows(figure: Figure, data: Reproduction) -> Iterator[Row]:
    """The slope of y against a field, at each x."""
    points = [point for _, point in _drawn(figure, data)]
    try:
        found = fit_points(points, figure.x, figure.y[0], figure.per)
    except NotShown:
        return
    yield from (_row(x, MeasuredValue(y, None, None), "") for x, y in found)


def _row(x: float, y: MeasuredValue, line: str) -> Row:
    """One row; an open interval is drawn without that side."""
    low, high = (y.value if end is None else end for end in (y.low, y.high))
    return {"x": x, "y": y.value, "low": low, "high": high, "line": line}


def _bound_rows(figure: Figure, data: Reproduction) -> Iterator[Row]:
    for bound in figure.bound:
        for sweep, point in _drawn(figure, data):
            value = point.numbers.get(f"bound.{bound}")
            if value is not None:
                line = _line_name(figure, data, sweep, point, figure.y[0])
                yield {"x": evaluate_at(point, figure.x).value, "y": value, "line": line}


def _published_rows(figure: Figure, data: Reproduction) -> Iterator[Row]:
    """The published tables over the same sweeps and quantity, at the points that were run."""
    tables = [claim for claim in data.recipe.claims if isinstance(claim, TableClaim) and figure.published]
    for claim in tables:
        if claim.sweep not in figure.sweeps or claim.y not in figure.y:
            continue
        try:
            rows = table_rows(claim, data)
        except (NotShown, UserError):
            continue
        for row in rows:
            if row.point is not None:
                line = _line_name(figure, data, claim.sweep, row.point, claim.y)
                yield {"x": evaluate_at(row.point, figure.x).value, "y": row.published, "line": line}


def _curve_rows(figure: Figure, data: Reproduction) -> list[Row]:
    """The fitted curve over the range of the points; empty where there are too few."""
    try:
        report, fit = fit_sweeps(data, figure)
    except (NotShown, UserError):
        return []
    ends = min(x for x, _ in report.points), max(x for x, _ in report.points)
    at = np.geomspace(*ends, CURVE_POINTS) if figure.log_x else np.linspace(*ends, CURVE_POINTS)
    drawn = predict(fit, at)
    # Six digits, because the last ones of a fit depend on the processor, and the same data must give the same figure.
    return [{"x": float(f"{a:.6g}"), "y": float(f"{b:.6g}")} for a, b in zip(at, drawn, strict=True)]


def _line_name(figure: Figure, data: Reproduction, sweep: str, point: PointRecord, expression: str) -> str:
    """The label of a line: sweep, value of the series and quantity, whichever differ between lines."""
    parts = []
    if len(figure.sweeps) > 1 or not (figure.series or len(figure.y) > 1):
        parts.append(next(each.label for each in data.recipe.sweeps if each.id == sweep))
    if figure.series:
        parts.append(f"{short_name(figure.series)} = {setting_at(point, figure.series)}")
    if len(figure.y) > 1:
        parts.append(short_name(expression))
    return plain(", ".join(parts))
