"""Stored runs and trials as text for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from capbench.documents.text import number, pluralize, table
from capbench.store.queries import StoredRun, StoredTrial

MOST_ROWS = 200
"""Rows shown in a terminal; --json and export include all."""


def runs_text(runs: Sequence[StoredRun], n_runs: int | None = None, width: int | None = None) -> str:
    """One row per run, the latest last; `n_runs` says how many there are where these are the latest of them."""
    headers, *rows = run_rows(runs[-MOST_ROWS:])
    return _with_count(table(rows, [str(name) for name in headers], width), n_runs or len(runs), "run")


def run_rows(runs: Sequence[StoredRun]) -> list[tuple[object, ...]]:
    """Headers, then one row per run; without the names and tags where no run has any."""
    rows: list[tuple[object, ...]] = [
        (
            run.result.run_id,
            _minute(run.created),
            run.result.task.name,
            run.result.architecture.name,
            run.result.capacity.kind.replace("_", " "),
            _answer(run),
            len(run.result.trials),
            run.result.protocol.preset,
            run.result.name,
            " ".join(run.result.tags),
        )
        for run in runs
    ]
    headers = ("run", "stored (UTC)", "task", "architecture", "measured", "answer", "trials", "preset", "name", "tags")
    used = [i for i, header in enumerate(headers) if header not in ("name", "tags") or any(row[i] for row in rows)]
    return [tuple(row[i] for i in used) for row in (headers, *rows)]


def trials_text(trials: Sequence[StoredTrial], n_trials: int | None = None, width: int | None = None) -> str:
    """One row per trial, the latest last; `n_trials` says how many there are where these are the latest of them."""
    headers, *rows = trial_rows(trials[-MOST_ROWS:])
    return _with_count(table(rows, [str(name) for name in headers], width), n_trials or len(trials), "trial")


def trial_rows(trials: Sequence[StoredTrial]) -> list[tuple[object, ...]]:
    """Headers, then one row per trial; without the errors where no trial has one."""
    rows = [
        (
            each.trial.key[:12],
            _minute(each.created),
            each.task,
            each.architecture,
            each.trial.load,
            each.trial.seed,
            number(each.trial.learning_rate),
            each.trial.status.value.replace("_", " "),
            each.trial.reason if each.trial.error else "",
        )
        for each in trials
    ]
    headers = ("trial", "stored (UTC)", "task", "architecture", "load", "seed", "rate", "ended", "error")
    used = len(headers) if any(row[-1] for row in rows) else len(headers) - 1
    return [row[:used] for row in (headers, *rows)]


def _minute(created: str) -> str:
    """A stored time to the minute, without the zone, which the header names."""
    return created[:16].replace("T", " ")


def _answer(run: StoredRun) -> str:
    capacity = run.result.capacity
    sign = {"estimated": "", "at_least": "≥ ", "below": "≤ "}[capacity.status]
    shown = f"{capacity.estimate:.0%}" if capacity.kind == "success_rate" else number(capacity.estimate)
    return f"{sign}{shown}"


def _with_count(rows: str, n: int, noun: str) -> str:
    if n == 0:
        return f"no {noun}s"
    hidden = f"; the latest {MOST_ROWS} are shown" if n > MOST_ROWS else ""
    return f"{rows}\n\n{pluralize(n, noun)}{hidden}"
