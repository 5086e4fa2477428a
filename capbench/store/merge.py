"""Merging stores: copies the trials and runs of another store into this one, each once; the other is not changed."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from capbench.documents.result import Result, Trial
from capbench.documents.strict_json import parse_strict
from capbench.errors import BadDocument
from capbench.store.queries import StoredRun, StoredTrial
from capbench.store.rows import RUN_COLUMNS, TRIAL_COLUMNS, Value, checked
from capbench.store.store import Store, store_file, translate_errors
from capbench.store.tables import SCHEMAS, stored_version

M = TypeVar("M", Trial, Result)


def merge(store: Store, source: Path) -> tuple[int, int]:
    """Copies another store, given as a file or its folder; returns how many trials and runs were new."""
    path = store_file(source) if source.is_dir() else source
    if not path.is_file():
        raise BadDocument(f"{source}: no store there; name a capbench.sqlite or its folder")
    # Without a log beside it no process is writing, and SQLite need not create one to read it.
    mode = "mode=ro" if Path(f"{path}-wal").exists() else "immutable=1"
    with translate_errors(path), closing(sqlite3.connect(f"{path.absolute().as_uri()}?{mode}", uri=True)) as db:
        version = stored_version(db, path)  # a damaged number must not pass for that of a store without checksums
        if version == 0:
            raise BadDocument(f"{path}: it has none of the tables of a store; name a capbench.sqlite or its folder")
        trials, runs = _trials(db, path, version), _runs(db, path, version)
    return store.import_rows(trials, runs)


def _trials(db: sqlite3.Connection, path: Path, version: int) -> list[StoredTrial]:
    rows = _rows(db, "trials", TRIAL_COLUMNS, version)
    return [StoredTrial(str(t), str(a), str(created), _read(Trial, text, path)) for _, t, a, *_, created, text in rows]


def _runs(db: sqlite3.Connection, path: Path, version: int) -> list[StoredRun]:
    rows = _rows(db, "runs", RUN_COLUMNS, version)
    return [StoredRun(str(created), _read(Result, text, path)) for *_, created, text in rows]


def _rows(db: sqlite3.Connection, table: str, columns: Sequence[str], version: int) -> Iterator[Sequence[Value]]:
    """The rows of a table; raises ChangedRow for one that does not fit its checksum, if the store has them."""
    has_checksums = "checksum" in SCHEMAS[version][table]
    names = (*columns, "checksum") if has_checksums else columns
    for row in db.execute(f"SELECT {', '.join(names)} FROM {table}"):
        yield checked(row) if has_checksums else row


def _read(model: type[M], text: Value, path: Path) -> M:
    """Validates a row strictly: the store may come from elsewhere."""
    try:
        return parse_strict(model, str(text))
    except ValidationError as error:
        raise BadDocument(f"{path}: holds an invalid {model.__name__.lower()}; nothing was merged") from error
    except ValueError as error:
        raise BadDocument(f"{path}: {error}; nothing was merged") from error
