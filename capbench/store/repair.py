"""Repair: a damaged store is renamed, never deleted, and its readable rows are copied into a new one."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from capbench.documents.result import Result, Trial
from capbench.errors import StoreDamaged
from capbench.store.queries import StoredRun, StoredTrial
from capbench.store.store import Store, store_file, translate_errors
from capbench.store.tables import dated_name

COMPANIONS = ("", "-wal", "-shm")
"""Endings of the files of a database: itself, and what SQLite keeps beside it."""
MAX_PROBES = 100_000
"""Rows tried one by one between the readable ends of a table."""


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
    """All rows of a damaged file that can be read and validated."""
    db = sqlite3.connect(damaged, isolation_level=None)
    db.text_factory = lambda raw: raw.decode("utf-8", "replace")
    trials, runs = [], []
    try:
        for task, architecture, created, text in _rows(db, "trials", "task, architecture, created, document"):
            with suppress(ValidationError):
                trials.append(StoredTrial(task, architecture, created, Trial.model_validate_json(text)))
        for created, text in _rows(db, "runs", "created, document"):
            with suppress(ValidationError):
                runs.append(StoredRun(created, Result.model_validate_json(text)))
    finally:
        db.close()
    return trials, runs


def _rows(db: sqlite3.Connection, table: str, columns: str) -> Iterator[tuple[str, ...]]:
    """Rows from the start up to the first damage, from the end back to the last, and one by one between them."""
    seen: set[int] = set()
    for order in ("ASC", "DESC"):
        with suppress(sqlite3.Error):
            for number, *row in db.execute(f"SELECT rowid, {columns} FROM {table} ORDER BY rowid {order}"):
                if number in seen:
                    return
                seen.add(number)
                yield tuple(row)
    for number in range(1, min(max(seen, default=0), MAX_PROBES)):
        if number not in seen:
            with suppress(sqlite3.Error):
                yield from db.execute(f"SELECT {columns} FROM {table} WHERE rowid = ?", (number,))
