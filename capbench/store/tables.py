"""The tables of the store, and the migration of an older store, of which a copy is kept."""

from __future__ import annotations

import sqlite3
import warnings
from collections.abc import Mapping
from datetime import UTC, datetime
from itertools import count
from pathlib import Path

from capbench.errors import StoreDamaged, StoreUnavailable
from capbench.store.rows import RUN_COLUMNS, TRIAL_COLUMNS, checksum

STORE_VERSION = 3
APPLICATION_ID = 0x63617062
"""Marks a file as a store of capbench, whatever else in it is damaged."""
REPAIR_REMEDY = "capbench doctor --repair sets it aside and saves what can be read"
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
# Holds the leases. It is called `claims` because another name would need a migration of every store.
LEASES_TABLE = (
    """CREATE TABLE IF NOT EXISTS claims (
        key TEXT PRIMARY KEY, owner TEXT NOT NULL, host TEXT NOT NULL, pid INTEGER NOT NULL, expires REAL NOT NULL
    ) STRICT""",
)
CHECKSUMS = (
    "ALTER TABLE trials ADD COLUMN checksum TEXT NOT NULL DEFAULT ''",
    "ALTER TABLE runs ADD COLUMN checksum TEXT NOT NULL DEFAULT ''",
    f"UPDATE trials SET checksum = row_checksum({', '.join(TRIAL_COLUMNS)})",
    f"UPDATE runs SET checksum = row_checksum({', '.join(RUN_COLUMNS)})",
    "ALTER TABLE claims ADD COLUMN started TEXT NOT NULL DEFAULT ''",
    f"PRAGMA application_id={APPLICATION_ID}",
)
STEPS: Mapping[int, tuple[str, ...]] = {1: RESULTS_TABLES, 2: LEASES_TABLE, 3: CHECKSUMS}
"""Statements that lead to each version from the one before; an empty file is version 0."""
LEASE_COLUMNS = ("key", "owner", "host", "pid", "expires")

Schema = dict[str, tuple[str, ...]]
"""The columns of each table."""

SCHEMAS: Mapping[int, Schema] = {
    0: {},
    1: {"trials": TRIAL_COLUMNS, "runs": RUN_COLUMNS},
    2: {"trials": TRIAL_COLUMNS, "runs": RUN_COLUMNS, "claims": LEASE_COLUMNS},
    3: {
        "trials": (*TRIAL_COLUMNS, "checksum"),
        "runs": (*RUN_COLUMNS, "checksum"),
        "claims": (*LEASE_COLUMNS, "started"),
    },
}
"""The tables of each version: they tell a damaged version number from a newer store."""


class StoreUpgraded(UserWarning):
    """An older store was upgraded to the present version."""


def migrate(db: sqlite3.Connection, path: Path) -> None:
    """Creates the tables in a new file, copies and upgrades an older store, refuses a newer one."""
    if stored_version(db, path) == STORE_VERSION:
        return
    db.create_function("row_checksum", -1, checksum, deterministic=True)
    db.execute("BEGIN IMMEDIATE")  # if two processes open it at once, the second finds it migrated
    try:
        version = stored_version(db, path)
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


def dated_name(path: Path, label: str) -> Path:
    """An unused file name beside a store, with a label and the present time."""
    moment = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    names = (path.with_name(f"{path.stem}-{label}-{moment}-{n}{path.suffix}") for n in count(1))
    return next(name for name in names if not name.exists())


def stored_version(db: sqlite3.Connection, path: Path) -> int:
    """The version of a store; raises for a newer one, for a damaged one, and for another program's database."""
    (version,), (application,) = (
        db.execute(f"PRAGMA {name}").fetchone() for name in ("user_version", "application_id")
    )
    schema = _schema(db)
    if version in SCHEMAS and schema == SCHEMAS[version]:
        return int(version)
    if version == 0 and schema.items() <= SCHEMAS[1].items():
        return 0
    if application != APPLICATION_ID and not schema.keys() & SCHEMAS[1].keys():
        raise StoreUnavailable(f"{path} is another program's database; point CAPBENCH_HOME elsewhere")
    if version > STORE_VERSION and schema not in SCHEMAS.values():
        raise StoreUnavailable(
            f"the store {path} has version {version}, this capbench writes version {STORE_VERSION}; "
            "upgrade capbench, or point CAPBENCH_HOME elsewhere"
        )
    raise StoreDamaged(f"the store {path} has version number {version} but not its tables; {REPAIR_REMEDY}")


def _schema(db: sqlite3.Connection) -> Schema:
    names = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    columns = {name: db.execute("SELECT name FROM pragma_table_info(?)", (name,)).fetchall() for name in names}
    return {name: tuple(column for (column,) in found) for name, found in columns.items()}


def _copy(path: Path, version: int) -> Path:
    """Copies the store; the copy is complete before it gets its name."""
    target = dated_name(path, f"v{version}")
    unfinished = target.with_suffix(".part")
    source, copy = sqlite3.connect(path), sqlite3.connect(unfinished)
    try:
        source.backup(copy)
    finally:
        source.close()
        copy.close()
    return unfinished.replace(target)
