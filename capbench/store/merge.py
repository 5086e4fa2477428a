"""Merging stores: copies the trials and runs of another store into this one, each once; the other is not changed."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from capbench.documents.result import Result, Trial
from capbench.documents.strict_json import parse_strict
from capbench.errors import BadDocument
from capbench.store.queries import StoredRun, StoredTrial
from capbench.store.store import Store, store_file, translate_errors
from capbench.store.tables import STORE_VERSION

M = TypeVar("M", Trial, Result)


def merge(store: Store, source: Path) -> tuple[int, int]:
    """Copies another store, given as a file or its folder; returns how many trials and runs were new."""
    path = store_file(source) if source.is_dir() else source
    if not path.is_file():
        raise BadDocument(f"{source}: no store there; name a capbench.sqlite or its folder")
    # Without a log beside it no process is writing, and SQLite need not create one to read it.
    mode = "mode=ro" if Path(f"{path}-wal").exists() else "immutable=1"
    with translate_errors(path), closing(sqlite3.connect(f"{path.absolute().as_uri()}?{mode}", uri=True)) as db:
        (version,) = db.execute("PRAGMA user_version").fetchone()
        if not 1 <= version <= STORE_VERSION:
            raise BadDocument(f"{path}: a store has version 1 to {STORE_VERSION}, got {version}; upgrade capbench")
        trials, runs = _trials(db, path), _runs(db, path)
    return store.import_rows(trials, runs)


def _trials(db: sqlite3.Connection, path: Path) -> list[StoredTrial]:
    rows = db.execute("SELECT task, architecture, created, document FROM trials")
    return [StoredTrial(t, a, created, _read(Trial, text, path)) for t, a, created, text in rows]


def _runs(db: sqlite3.Connection, path: Path) -> list[StoredRun]:
    rows = db.execute("SELECT created, document FROM runs")
    return [StoredRun(created, _read(Result, text, path)) for created, text in rows]


def _read(model: type[M], text: str, path: Path) -> M:
    """Validates a row strictly: the store may come from elsewhere."""
    try:
        return parse_strict(model, text)
    except ValidationError as error:
        raise BadDocument(f"{path}: holds an invalid {model.__name__.lower()}; nothing was merged") from error
    except ValueError as error:
        raise BadDocument(f"{path}: {error}; nothing was merged") from error
