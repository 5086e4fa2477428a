"""The picture of --precision: bits stored per parameter against bits per weight, below what counting allows."""

from __future__ import annotations

import altair as alt

from capbench.documents.colours import architecture_colour
from capbench.documents.result import Capacity, Result
from capbench.documents.text import plain

PUBLISHED = {2.0: "2 (Allen-Zhu & Li)", 3.6: "3.6 (Morris et al.)"}
"""Bits per parameter that were found for trained language models, arXiv 2404.05405 and 2505.24832."""


def precision_chart(result: Result, fact: str) -> alt.LayerChart:
    """The capacity at each precision with its interval; the line is the counting floor: b bits cannot store more."""
    rows = precision_rows(result)
    low, high = min(row["weight_bits"] for row in rows), max(row["weight_bits"] for row in rows)
    x = alt.X("weight_bits:Q", title="bits per weight", scale=alt.Scale(type="log", base=2, nice=False, padding=14))
    y_title = "bits stored per parameter"
    y = alt.Y("stored:Q", title=y_title, scale=alt.Scale(type="log"))
    data, colour = alt.Chart(alt.InlineData(values=rows)), architecture_colour(result.architecture.name)
    counting = [{"weight_bits": bits, "stored": bits, "label": "counting floor"} for bits in (low, high)]
    published = [
        {"weight_bits": bits, "stored": stored, "label": label}
        for stored, label in PUBLISHED.items()
        for bits in (low, high)
    ]
    limits = alt.Chart(alt.InlineData(values=counting)).mark_line(color="#888888").encode(x=x, y=y)
    dashed = alt.Chart(alt.InlineData(values=published)).mark_line(color="#888888", strokeDash=[4, 4])
    ends = [row for row in (*counting, *published) if row["weight_bits"] == low]
    names = alt.Chart(alt.InlineData(values=ends)).mark_text(align="left", dy=-6, fontSize=10, color="#888888")
    tooltip = [
        "weight_bits:Q",
        alt.Tooltip("facts:Q", title=plain(f"{fact}s"), format=".4g"),
        "low_facts:Q",
        "high_facts:Q",
    ]
    layers = [
        limits,
        dashed.encode(x=x, y=y, detail="label:N"),
        names.encode(x=x, y=y, text="label:N"),
        data.mark_rule(color=colour).encode(x=x, y=alt.Y("low:Q", title=y_title), y2="high:Q"),
        data.mark_line(color=colour).encode(x=x, y=y),
        data.mark_point(filled=True, size=60, color=colour).encode(x=x, y=y, tooltip=tooltip),
    ]
    subtitle = f"weights rounded per tensor, symmetric; {result.n_parameters:,} parameters"
    title = alt.Title("capacity against precision", subtitle=plain(subtitle))
    return alt.LayerChart(layer=layers).properties(width=320, height=320, title=title)


def precision_rows(result: Result) -> list[dict[str, float]]:
    """A row per precision, in bits stored per parameter; precisions at which nothing is held are left out."""
    rows = []
    for point in result.precision:
        capacity, stored = point.capacity, point.bits_per_parameter
        if stored is None or stored <= 0 or capacity.status == "below":
            continue
        per_fact = stored / capacity.estimate
        low, high = _ends(capacity)
        rows.append(
            {
                "weight_bits": float(point.weight_bits),
                "stored": stored,
                "low": low * per_fact,
                "high": high * per_fact,
                "facts": capacity.estimate,
                "low_facts": low,
                "high_facts": high,
            }
        )
    return rows


def _ends(capacity: Capacity) -> tuple[float, float]:
    """The interval; an open end is drawn at the estimate."""
    low, high = capacity.ci_low, capacity.ci_high
    return (capacity.estimate if low is None else low), (capacity.estimate if high is None else high)
