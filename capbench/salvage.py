"""Salvage: a torn store is set aside, never thrown away, and what can still be read of it goes into a new one."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from capbench.migrations import dated
from capbench.results import Result, Trial
from capbench.selection import StoredRun, StoredTrial
from capbench.store import Store, explained, store_file

COMPANIONS = ("", "-wal", "-shm")
"""What SQLite keeps beside a database, by the ending of the name."""
MOST_PROBES = 100_000
"""Rows looked for one by one between the readable ends of a table."""


@dataclass(frozen=True)
class Salvaged:
    """What became of a torn store."""

    set_aside: Path
    n_trials: int
    n_runs: int


def salvage(folder: Path) -> Salvaged:
    """Renames a torn store and copies every row that reads and validates into a new one."""
    torn = _set_aside(store_file(folder))
    trials, runs = _readable(torn)
    store = Store(folder)
    try:
        n_trials, n_runs = store.adopt(trials, runs)
    finally:
        store.close()
    return Salvaged(torn, n_trials, n_runs)


def _set_aside(path: Path) -> Path:
    target = dated(path, "torn")
    with explained(path):
        for ending in COMPANIONS:
            companion = Path(f"{path}{ending}")
            if companion.exists():
                companion.rename(f"{target}{ending}")
    return target


def _readable(torn: Path) -> tuple[list[StoredTrial], list[StoredRun]]:
    """All rows of a torn file that still make sense."""
    db = sqlite3.connect(torn, isolation_level=None)
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
    """Rows from the start up to the first damage, from the end down to the last, and one by one between."""
    seen: set[int] = set()
    for order in ("ASC", "DESC"):
        with suppress(sqlite3.Error):
            for number, *row in db.execute(f"SELECT rowid, {columns} FROM {table} ORDER BY rowid {order}"):
                if number in seen:
                    return
                seen.add(number)
                yield tuple(row)
    for number in range(1, min(max(seen, default=0), MOST_PROBES)):
        if number not in seen:
            with suppress(sqlite3.Error):
                yield from db.execute(f"SELECT {columns} FROM {table} WHERE rowid = ?", (number,))
