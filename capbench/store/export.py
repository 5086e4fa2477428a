"""Exports stored trials or runs as a table for other programs: CSV, JSON lines or Parquet."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from pydantic import JsonValue

from capbench.documents.files import write_whole
from capbench.errors import BadSetting
from capbench.store.queries import StoredRun, StoredTrial

ENDINGS = (".csv", ".jsonl", ".parquet")
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n")
"""A spreadsheet runs a text cell that begins with one of these as a formula."""

CsvValue = str | int | float | bool | None
Row = Mapping[str, CsvValue]


def check_export_path(path: Path) -> None:
    """Refuses a file that could not be written, before anything is read."""
    if path.suffix not in ENDINGS:
        raise BadSetting(f"export takes a file ending in {', '.join(ENDINGS)}, got {path.name!r}")
    if not path.absolute().parent.is_dir():
        raise BadSetting(f"export needs an existing folder, got {str(path.parent)!r}")
    if path.suffix == ".parquet":
        try:
            import polars  # noqa: F401 - only whether it is installed
        except ImportError as error:
            raise BadSetting("Parquet needs polars: pip install 'capbench[frames]', or export .csv") from error


def trial_rows(trials: Iterable[StoredTrial], runs: Sequence[StoredRun]) -> list[Row]:
    """One row per trial; where it belongs to a stored run, with that run's size, preset and fields."""
    described: dict[str, Row] = {}
    for run in runs:
        fields = _run_fields(run)
        described.update({trial.key: fields for trial in run.result.trials if trial.key not in described})
    return [_trial_row(each, described.get(each.trial.key, {})) for each in trials]


def run_rows(runs: Iterable[StoredRun]) -> list[Row]:
    """One row per run: its capacity, size and fields, without the trials."""
    return [_run_row(run) for run in runs]


def write_export(rows: Sequence[Row], path: Path) -> None:
    """Writes the rows in the format of the file's ending, whole or not at all."""
    content = {".csv": _as_csv, ".jsonl": _as_json_lines, ".parquet": _as_parquet}[path.suffix](rows)
    write_whole(path, content, remedy="name another file")


def _trial_row(stored: StoredTrial, run: Row) -> Row:
    trial = stored.trial
    return {
        "key": trial.key,
        "task": stored.task,
        "architecture": stored.architecture,
        "load": trial.load,
        "seed": trial.seed,
        "learning_rate": trial.learning_rate,
        "status": trial.status.value,
        "steps": trial.steps,
        "created": stored.created,
        "error": trial.error,
        **_prefixed("metric", trial.metrics),
        **_prefixed("data", trial.data),
        **run,
    }


def _run_row(run: StoredRun) -> Row:
    result, capacity = run.result, run.result.capacity
    return {
        "run_id": result.run_id,
        "task": result.task.name,
        "architecture": result.architecture.name,
        "solver": result.solver.name,
        "created": run.created,
        "mode": result.protocol.mode,
        "kind": capacity.kind,
        "estimate": capacity.estimate,
        "ci_low": capacity.ci_low,
        "ci_high": capacity.ci_high,
        "status": capacity.status,
        "bits": result.bits,
        "bits_per_parameter": result.bits_per_parameter,
        "learning_rate": result.rates.best if result.rates else None,
        "n_trials": len(result.trials),
        "wall_seconds": result.timing.wall_seconds,
        "device": result.environment.device,
        "command": result.command,
        **_prefixed("metric", result.metrics),
        **_run_fields(run),
    }


def _run_fields(run: StoredRun) -> Row:
    result = run.result
    return {
        "run_id": result.run_id,
        "preset": result.protocol.preset,
        "protocol": result.protocol.name,
        "n_parameters": result.n_parameters,
        **_prefixed("task", result.task.params),
        **_prefixed("arch", result.architecture.params),
    }


def _prefixed(prefix: str, fields: Mapping[str, JsonValue] | Mapping[str, float]) -> Row:
    """Fields with a prefix before their names; lists and objects as JSON."""
    return {
        f"{prefix}.{name}": value if isinstance(value, str | int | float | None) else json.dumps(value)
        for name, value in fields.items()
    }


def _columns(rows: Sequence[Row]) -> list[str]:
    """All columns, in the order in which they first appear."""
    return list(dict.fromkeys(name for row in rows for name in row))


def _as_csv(rows: Sequence[Row]) -> bytes:
    columns, text = _columns(rows), io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([_quote_formula(name) for name in columns])
    writer.writerows([_quote_formula(row.get(name)) for name in columns] for row in rows)
    return text.getvalue().encode()


def _quote_formula(cell: CsvValue) -> CsvValue:
    """Puts a quote mark before text that a spreadsheet would run as a formula."""
    return f"'{cell}" if isinstance(cell, str) and cell.lstrip(" ").startswith(FORMULA_STARTS) else cell


def _as_json_lines(rows: Sequence[Row]) -> bytes:
    return "".join(json.dumps(row, allow_nan=False) + "\n" for row in rows).encode()


def _as_parquet(rows: Sequence[Row]) -> bytes:
    import polars

    content, columns = io.BytesIO(), _columns(rows)
    series = {name: [row.get(name) for row in rows] for name in columns}
    polars.DataFrame({name: polars.Series(_unify_types(values)) for name, values in series.items()}).write_parquet(
        content
    )
    return content.getvalue()


def _unify_types(values: list[CsvValue]) -> list[CsvValue]:
    """A column unchanged if all its values are numbers or all texts, else as text: plugins may share a field's name."""
    kinds = {"number" if isinstance(v, int | float) and not isinstance(v, bool) else type(v).__name__ for v in values}
    if len(kinds - {"NoneType"}) > 1:
        return [None if value is None else str(value) for value in values]
    if any(isinstance(value, float) for value in values):
        return [float(value) if isinstance(value, int) else value for value in values]
    return values
