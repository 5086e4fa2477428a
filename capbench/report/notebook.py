"""A result in a notebook: as HTML, and its trials as a data frame."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from html import escape
from importlib import import_module
from io import StringIO
from typing import Any

from capbench.documents.result import Result, Trial
from capbench.documents.text import plain
from capbench.errors import CapbenchError
from capbench.report.result_plot import success_chart
from capbench.report.result_text import answer_rows, bound_rows
from capbench.report.study_text import difference_rows, sweep_rows
from capbench.studies.sweep import Grid, Point

FRAME_LIBRARIES = ("polars", "pandas")
FrameValue = str | float | None


def result_html(result: Result, fact: str) -> str:
    """The answer with its interval, the curve, the bounds and the command, as HTML; all text is escaped."""
    bounds = [bound for bound in result.bounds if bound.value is not None]
    parts = [
        f"<h4>{_escaped(f'{result.task.name} × {result.architecture.name}')}</h4>",
        _table(answer_rows(result, fact), ()),
        _curve(result, fact),
        _table(bound_rows(bounds, fact)[1:], bound_rows(bounds, fact)[0]) if bounds else "",
        f"<p><code>{_escaped(result.command)}</code></p>",
    ]
    return f'<div class="capbench-run">{"".join(parts)}</div>'


def sweep_html(points: Sequence[Point], grid: Grid, fact: str) -> str:
    """The table of a sweep and the differences of its architectures, as HTML; all text is escaped."""
    tables = (sweep_rows(points, grid, fact), difference_rows(points, grid))
    return f'<div class="capbench-run">{"".join(_table(rows[1:], rows[0]) for rows in tables if rows)}</div>'


def table_html(rows: Sequence[Sequence[str]], note: str) -> str:
    """A table, headers first, and a sentence below it, as HTML; all text is escaped."""
    return f'<div class="capbench-run">{_table(rows[1:], rows[0])}<p>{_escaped(note)}</p></div>'


def trial_frame(result: Result) -> Any:
    """One row per trial, as a polars data frame or, without polars, a pandas one."""
    columns = trial_columns(result.trials)
    for library in FRAME_LIBRARIES:
        try:
            return import_module(library).DataFrame(columns)
        except ModuleNotFoundError:
            continue
    raise CapbenchError("to_frame needs polars or pandas, and neither is installed; pip install 'capbench[frames]'")


def trial_columns(trials: tuple[Trial, ...]) -> dict[str, list[FrameValue]]:
    """Columns by name, as in an export: the fields of a trial, then one column per metric and per data value."""
    columns: dict[str, list[FrameValue]] = {
        "load": [t.load for t in trials],
        "budget": [t.budget for t in trials],
        "seed": [t.seed for t in trials],
        "learning_rate": [t.learning_rate for t in trials],
        "status": [t.status.value for t in trials],
        "steps": [t.steps for t in trials],
    }
    for name in sorted({name for t in trials for name in t.metrics}):
        columns[f"metric.{name}"] = [t.metrics.get(name) for t in trials]
    for name in sorted({name for t in trials for name in t.data}):
        columns[f"data.{name}"] = [t.data.get(name) for t in trials]
    return {**columns, "error": [t.error for t in trials], "key": [t.key for t in trials]}


def _escaped(text: str) -> str:
    return escape(plain(text))


def _table(rows: Iterable[Sequence[str]], headers: Sequence[str]) -> str:
    head = "".join(f"<th>{_escaped(name)}</th>" for name in headers)
    body = "".join("<tr>" + "".join(f"<td>{_escaped(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table>{f'<thead><tr>{head}</tr></thead>' if headers else ''}<tbody>{body}</tbody></table>"


def _curve(result: Result, fact: str) -> str:
    """The curve as an embedded image: scripts in an image do not run, whatever a hostile name contains."""
    drawn = StringIO()
    success_chart(result, fact).save(drawn, format="svg")
    data = base64.b64encode(drawn.getvalue().encode()).decode()
    label = _escaped(f"share of trials that hold, against {result.protocol.parameter or f'{fact}s'}")
    return f'<img alt="{label}" style="max-width: 100%" src="data:image/svg+xml;base64,{data}">'
