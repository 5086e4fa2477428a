"""The trials of a result as a data frame, with whichever library is installed."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from capbench.errors import CapbenchError
from capbench.results import Result, Trial

LIBRARIES = ("polars", "pandas")


def trial_frame(result: Result) -> Any:
    """A row a trial: the first of the libraries that can be imported decides the type."""
    columns = trial_columns(result.trials)
    for library in LIBRARIES:
        try:
            return import_module(library).DataFrame(columns)
        except ModuleNotFoundError:
            continue
    raise CapbenchError("to_frame needs polars or pandas, and neither is installed; pip install 'capbench[frames]'")


Cell = str | float | None


def trial_columns(trials: tuple[Trial, ...]) -> dict[str, list[Cell]]:
    """Columns by name, as in an export: a trial's own fields, a column a metric, a column a thing found of the data."""
    columns: dict[str, list[Cell]] = {
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
