"""Repair: a damaged store is renamed, never deleted, and its readable rows are copied into a new one."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from capbench.documents.result import Result, Trial
from capbench.errors import StoreDamaged
from capbench.store.queries import StoredRun, StoredTrial
from capbench.store.rows import (
    RUN_COLUMNS,
    TRIAL_COLUMNS,
    ChangedRow,
    Value,
    read_run,
    read_trial,
    run_row,
    trial_row,
)
from capbench.store.salvage import find_rows, read_pages
from capbench.store.store import Store, store_file, translate_errors
from capbench.store.tables import dated_name

COMPANIONS = ("", "-wal", "-shm")
"""Endings of the files of a database: itself, and what SQLite keeps beside it."""


@dataclass(frozen=True)
class RepairReport:
    """What was saved of a damaged store."""

    set_aside: Path
    n_trials: int
    n_runs: int


def repair_if_damaged(folder: Path) -> list[str]:
    """Repairs a store if it needs it, and returns lines that say what was done."""
    try:
        store = Store(folder)
        try:
            verdict = store.check_integrity()
            n_dead = store.drop_dead_leases() if verdict == "ok" else 0
        finally:
            store.close()
    except StoreDamaged as error:
        verdict, n_dead = str(error), 0
    if verdict == "ok":
        return [f"released {n_dead} leases of dead processes"] if n_dead else ["the store needs no repair"]
    saved = repair_store(folder)
    return [
        f"the store was damaged: {' '.join(verdict.split())}",
        f"the old file was kept as {saved.set_aside}",
        f"{saved.n_trials} trials and {saved.n_runs} runs were recovered into the new store; "
        "missing trials are trained again when needed",
    ]


def repair_store(folder: Path) -> RepairReport:
    """Renames a damaged store and copies every row that can be read and validated into a new one."""
    damaged = _set_aside(store_file(folder))
    trials, runs = _read_rows(damaged)
    store = Store(folder)
    try:
        n_trials, n_runs = store.import_rows(trials, runs)
    finally:
        store.close()
    return RepairReport(damaged, n_trials, n_runs)


def _set_aside(path: Path) -> Path:
    target = dated_name(path, "torn")
    with translate_errors(path):
        for ending in COMPANIONS:
            companion = Path(f"{path}{ending}")
            if companion.exists():
                companion.rename(f"{target}{ending}")
    return target


def _read_rows(damaged: Path) -> tuple[list[StoredTrial], list[StoredRun]]:
    """All unchanged rows in a damaged file; a failed trial before the one that replaced it."""
    trials: dict[tuple[Value, ...], StoredTrial] = {}
    runs: dict[tuple[Value, ...], StoredRun] = {}
    for row in find_rows(read_pages(damaged)):
        with suppress(ChangedRow, ValidationError):
            if len(row) in (len(TRIAL_COLUMNS), len(TRIAL_COLUMNS) + 1):
                trials[row] = _trial(row)
            elif len(row) in (len(RUN_COLUMNS), len(RUN_COLUMNS) + 1):
                runs[row] = _run(row)
    latest_first = sorted(runs.values(), key=lambda run: run.created, reverse=True)
    return sorted(trials.values(), key=lambda each: (each.created, each.trial.key)), latest_first


def _trial(row: tuple[Value, ...]) -> StoredTrial:
    """The trial of a row; one of an old store, which has no checksum, must agree with its own document."""
    if len(row) > len(TRIAL_COLUMNS):
        return read_trial(row)
    _, task, architecture, _, _, _, created, document = row
    found = StoredTrial(str(task), str(architecture), str(created), Trial.model_validate_json(str(document)))
    _check_same(trial_row(found.trial, found.task, found.architecture, found.created)[:6], row[:6])
    return found


def _run(row: tuple[Value, ...]) -> StoredRun:
    """The run of a row; one of an old store, which has no checksum, must agree with its own document."""
    if len(row) > len(RUN_COLUMNS):
        return read_run(row)
    found = StoredRun(str(row[3]), Result.model_validate_json(str(row[4])))
    _check_same(run_row(found.result, found.created)[:3], row[:3])
    return found


def _check_same(one: tuple[Value, ...], other: tuple[Value, ...]) -> None:
    if one != other:
        raise ChangedRow(f"the row {str(other[0])[:40]!r} does not agree with its document")
