"""What all charts share: colours that read on white and on black, axes, and the step from a specification to SVG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

ChartRow = dict[str, str | float | int | bool | None]
Datasets = Mapping[str, Sequence[ChartRow]]
Spec = dict[str, Any]
"""A Vega-Lite specification: JSON written by altair and read by the browser."""

FONT = "Liberation Sans"
"""Comes with vl-convert, so that an SVG has the same bytes on every machine."""
TEXT_COLOR = "#737b86"
"""Readable on white and on black: a README is shown on both."""
GRID_COLOR = "#9aa2ad66"
"""Grid lines: a light shade of the text colour, half transparent."""
SIZE_LABEL = (
    "datum.value < 1000 ? format(datum.value, '~r') : datum.value < 1e6 ? format(datum.value / 1024, '.3~r') + 'k' "
    ": format(datum.value / 1048576, '.3~r') + 'M'"
)
"""Labels of a binary axis: 256, 512, 1k, 2k."""


def chart_of(alt: Any, name: str) -> Any:
    """A chart of a named dataset."""
    return alt.Chart(alt.NamedData(name=name))


def log_axis(alt: Any, number_format: str = "~s") -> Any:
    """A logarithmic axis with clear grid lines at powers of ten and faint ones between."""
    is_decade = "abs(log(datum.value) / LN10 - round(log(datum.value) / LN10)) < 0.001"
    opacity = {"condition": {"test": is_decade, "value": 0.9}, "value": 0.25}
    return alt.Axis(tickCount=5, format=number_format, labelFlush=False, gridOpacity=opacity)


def size_axis(alt: Any, field: str = "parameters", title: str = "parameters") -> Any:
    """The horizontal axis of sizes: logarithmic, with powers of two as ticks, as tiers are chosen."""
    axis = alt.Axis(tickCount=6, labelExpr=SIZE_LABEL, labelFlush=False, grid=False)
    return alt.X(f"{field}:Q", title=title, scale=alt.Scale(type="log", base=2, nice=False, padding=18), axis=axis)


def own_value(alt: Any, channel: str, field: str) -> Any:
    """An encoding whose values are in the data as they are drawn, without a scale or a legend."""
    return getattr(alt, channel)(f"{field}:N", scale=None, legend=None)


def to_spec(chart: Any, height: Any) -> Spec:
    """The specification of a chart as wide as its box."""
    spec: Spec = chart.properties(height=height, width="container").to_dict(validate=False)
    return spec
