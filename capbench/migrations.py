"""Versions of the store: the tables of the present one, and how an older store becomes it, a copy kept."""

from __future__ import annotations

import sqlite3
import warnings
from collections.abc import Mapping
from datetime import UTC, datetime
from itertools import count
from pathlib import Path

from capbench.errors import StoreUnavailable

STORE_VERSION = 2
RESULTS_TABLES = (
    """CREATE TABLE IF NOT EXISTS trials (
        key TEXT PRIMARY KEY, task TEXT NOT NULL, architecture TEXT NOT NULL, load INTEGER NOT NULL,
        seed INTEGER NOT NULL, status TEXT NOT NULL, created TEXT NOT NULL, document TEXT NOT NULL
    ) STRICT""",
    """CREATE TABLE IF NOT EXISTS runs (
        run_id TEXT PRIMARY KEY, task TEXT NOT NULL, architecture TEXT NOT NULL, created TEXT NOT NULL,
        document TEXT NOT NULL
    ) STRICT""",
)
CLAIMS_TABLE = (
    """CREATE TABLE IF NOT EXISTS claims (
        key TEXT PRIMARY KEY, owner TEXT NOT NULL, host TEXT NOT NULL, pid INTEGER NOT NULL, expires REAL NOT NULL
    ) STRICT""",
)
STEPS: Mapping[int, tuple[str, ...]] = {1: RESULTS_TABLES, 2: CLAIMS_TABLE}
"""What leads to each version from the one before it; an empty file is version 0."""


class StoreUpgraded(UserWarning):
    """The store was of an older version and is now of this one."""


def bring_up_to_date(db: sqlite3.Connection, path: Path) -> None:
    """Makes the tables in a new file, upgrades an older store after a copy, refuses a newer one."""
    if _version(db, path) == STORE_VERSION:
        return
    db.execute("BEGIN IMMEDIATE")  # two processes may arrive at once: the second finds it done
    try:
        version = _version(db, path)
        copy = _copy(path, version) if 0 < version < STORE_VERSION else None
        for step in range(version + 1, STORE_VERSION + 1):
            for statement in STEPS[step]:
                db.execute(statement)
        db.execute(f"PRAGMA user_version={STORE_VERSION}")
        db.execute("COMMIT")
    except BaseException:
        db.execute("ROLLBACK")
        raise
    if copy is not None:
        note = f"the store {path} was upgraded from version {version} to {STORE_VERSION}; the old one is kept as {copy}"
        warnings.warn(note, StoreUpgraded, stacklevel=2)


def dated(path: Path, what: str) -> Path:
    """A name beside a store for a file that is kept: what it is, when it was put there; never one in use."""
    moment = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    names = (path.with_name(f"{path.stem}-{what}-{moment}-{n}{path.suffix}") for n in count(1))
    return next(name for name in names if not name.exists())


def _version(db: sqlite3.Connection, path: Path) -> int:
    (version,) = db.execute("PRAGMA user_version").fetchone()
    if version > STORE_VERSION:
        raise StoreUnavailable(
            f"the store {path} has version {version}, this capbench writes version {STORE_VERSION}; "
            "upgrade capbench, or point CAPBENCH_HOME elsewhere"
        )
    strange = {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if version == 0 and strange - {"trials", "runs"}:
        raise StoreUnavailable(f"{path} is another program's database; point CAPBENCH_HOME elsewhere")
    return int(version)


def _copy(path: Path, version: int) -> Path:
    """A copy of the store as it is, complete before it gets its name."""
    target = dated(path, f"v{version}")
    unfinished = target.with_suffix(".part")
    source, copied = sqlite3.connect(path), sqlite3.connect(unfinished)
    try:
        source.backup(copied)
    finally:
        source.close()
        copied.close()
    return unfinished.replace(target)
