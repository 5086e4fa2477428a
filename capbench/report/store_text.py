"""Stored runs and trials as text for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from capbench.documents.text import number, table
from capbench.store.queries import StoredRun, StoredTrial

MOST_ROWS = 200
"""Rows shown in a terminal; --json and export include all."""


def runs_text(runs: Sequence[StoredRun]) -> str:
    """One row per run, the latest last."""
    rows = [
        (
            run.result.run_id,
            run.created,
            run.result.task.name,
            run.result.architecture.name,
            run.result.capacity.kind.replace("_", " "),
            _answer(run),
            len(run.result.trials),
            run.result.protocol.preset,
        )
        for run in runs[-MOST_ROWS:]
    ]
    headers = ("run", "stored (UTC)", "task", "architecture", "measured", "answer", "trials", "preset")
    return _with_count(table(rows, headers), len(runs), "run")


def trials_text(trials: Sequence[StoredTrial]) -> str:
    """One row per trial, the latest last."""
    rows = [
        (
            each.trial.key[:12],
            each.created,
            each.task,
            each.architecture,
            each.trial.load,
            each.trial.seed,
            number(each.trial.learning_rate),
            each.trial.status.value.replace("_", " "),
            each.trial.reason if each.trial.error else "",
        )
        for each in trials[-MOST_ROWS:]
    ]
    headers = ("trial", "stored (UTC)", "task", "architecture", "load", "seed", "rate", "ended", "error")
    used = len(headers) if any(row[-1] for row in rows) else len(headers) - 1
    return _with_count(table([row[:used] for row in rows], headers[:used]), len(trials), "trial")


def pluralize(n: int, noun: str) -> str:
    """A number and its noun: 1 run, 2 runs."""
    return f"{n} {noun}{'' if n == 1 else 's'}"


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
