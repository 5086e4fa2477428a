"""Merging stores: the trials and runs of others joined to one's own, each once, and nothing of theirs changed."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from capbench.errors import BadDocument
from capbench.migrations import STORE_VERSION
from capbench.reading import check_json
from capbench.results import Result, Trial
from capbench.selection import StoredRun, StoredTrial
from capbench.store import Store, explained, store_file

M = TypeVar("M", Trial, Result)


def merge(store: Store, source: Path) -> tuple[int, int]:
    """Takes in another store, a file or its folder: how many trials and runs were new."""
    path = store_file(source) if source.is_dir() else source
    if not path.is_file():
        raise BadDocument(f"{source}: no store there; name a capbench.sqlite or the folder it lies in")
    # With no log beside it nobody is writing, and SQLite need not make one to read it.
    way = "mode=ro" if Path(f"{path}-wal").exists() else "immutable=1"
    with explained(path), closing(sqlite3.connect(f"{path.absolute().as_uri()}?{way}", uri=True)) as db:
        (version,) = db.execute("PRAGMA user_version").fetchone()
        if not 1 <= version <= STORE_VERSION:
            raise BadDocument(f"{path}: a store has version 1 to {STORE_VERSION}, got {version}; upgrade capbench")
        trials, runs = _trials(db, path), _runs(db, path)
    return store.adopt(trials, runs)


def _trials(db: sqlite3.Connection, path: Path) -> list[StoredTrial]:
    rows = db.execute("SELECT task, architecture, created, document FROM trials")
    return [StoredTrial(t, a, created, _read(Trial, text, path)) for t, a, created, text in rows]


def _runs(db: sqlite3.Connection, path: Path) -> list[StoredRun]:
    rows = db.execute("SELECT created, document FROM runs")
    return [StoredRun(created, _read(Result, text, path)) for created, text in rows]


def _read(model: type[M], text: str, path: Path) -> M:
    """A row as strictly read as a stranger's file, since it may be one."""
    try:
        check_json(text)
        return model.model_validate_json(text, strict=True)
    except ValidationError as error:
        raise BadDocument(f"{path}: holds a {model.__name__.lower()} that is not one; nothing was taken in") from error
    except ValueError as error:
        raise BadDocument(f"{path}: {error}; nothing was taken in") from error
