"""The store: every finished trial, one committed row each, found again by its key; and the runs made of them."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from platformdirs import user_data_path

from capbench.errors import StoreUnavailable
from capbench.results import Result, Trial

STORE_VERSION = 1
SCHEMA = """
CREATE TABLE IF NOT EXISTS trials (
    key TEXT PRIMARY KEY, task TEXT NOT NULL, architecture TEXT NOT NULL, load INTEGER NOT NULL,
    seed INTEGER NOT NULL, status TEXT NOT NULL, created TEXT NOT NULL, document TEXT NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS runs (
    run_id TEXT PRIMARY KEY, task TEXT NOT NULL, architecture TEXT NOT NULL, created TEXT NOT NULL,
    document TEXT NOT NULL
) STRICT;
"""
MOST_KEYS = 500


def home() -> Path:
    """The folder of the store: $CAPBENCH_HOME, or the platform's place for data."""
    given = os.environ.get("CAPBENCH_HOME")
    return Path(given).expanduser() if given else user_data_path("capbench", appauthor=False)


class Store:
    """Trials and runs in one SQLite file."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "capbench.sqlite"
        with _explained(self.path):
            folder.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(self.path, timeout=60, isolation_level=None)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=FULL")
            self._prepare()

    def _prepare(self) -> None:
        (version,) = self._db.execute("PRAGMA user_version").fetchone()
        if version > STORE_VERSION:
            raise StoreUnavailable(
                f"the store {self.path} has version {version}, this capbench writes version {STORE_VERSION}; "
                "upgrade capbench, or point CAPBENCH_HOME elsewhere"
            )
        if version < STORE_VERSION:
            self._db.executescript(SCHEMA)
            self._db.execute(f"PRAGMA user_version={STORE_VERSION}")

    def add_trial(self, trial: Trial, task: str, architecture: str) -> None:
        """Commits a trial. A trial that is there already is replaced: only a failed one is ever trained again."""
        row = (trial.key, task, architecture, trial.load, trial.seed, trial.status, _now(), trial.model_dump_json())
        with _explained(self.path):
            self._db.execute("INSERT OR REPLACE INTO trials VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)

    def trials(self, keys: Iterable[str]) -> dict[str, Trial]:
        """The stored trials among `keys`."""
        wanted, found = list(keys), {}
        with _explained(self.path):
            for start in range(0, len(wanted), MOST_KEYS):
                part = wanted[start : start + MOST_KEYS]
                marks = ", ".join("?" * len(part))
                for key, text in self._db.execute(f"SELECT key, document FROM trials WHERE key IN ({marks})", part):
                    found[key] = Trial.model_validate_json(text)
        return found

    def add_run(self, result: Result) -> None:
        """Commits a run's document; the same run again replaces it."""
        row = (result.run_id, result.task.name, result.architecture.name, _now(), result.model_dump_json())
        with _explained(self.path):
            self._db.execute("INSERT OR REPLACE INTO runs VALUES (?, ?, ?, ?, ?)", row)

    def counts(self) -> tuple[int, int]:
        """How many trials and runs are stored."""
        with _explained(self.path):
            (trials,) = self._db.execute("SELECT COUNT(*) FROM trials").fetchone()
            (runs,) = self._db.execute("SELECT COUNT(*) FROM runs").fetchone()
        return trials, runs

    def integrity(self) -> str:
        """SQLite's own verdict on the file: "ok", or what is wrong."""
        with _explained(self.path):
            (verdict,) = self._db.execute("PRAGMA integrity_check(1)").fetchone()
        return str(verdict)

    def close(self) -> None:
        """Lets go of the file."""
        self._db.close()


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Turns what the file system and SQLite say into one line with a remedy."""
    try:
        yield
    except (OSError, sqlite3.Error) as error:
        raise StoreUnavailable(
            f"the store {path} cannot be used: {error}; set CAPBENCH_HOME to a folder you can write to"
        ) from error


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
