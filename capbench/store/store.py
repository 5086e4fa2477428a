"""The store: finished trials, one committed row each, looked up by key; and the runs made of them."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from platformdirs import user_data_path
from pydantic import ValidationError

from capbench.documents.result import Result, Trial
from capbench.errors import StoreDamaged, StoreUnavailable, UnknownName
from capbench.store.leases import Leases
from capbench.store.queries import StoredRun, StoredTrial, StoreQuery
from capbench.store.tables import migrate

KEYS_PER_QUERY = 500
LOCK_TIMEOUT_SECONDS = 120.0
"""How long a process waits while others write."""
REPAIR_REMEDY = "capbench doctor --repair sets it aside and saves what can be read"
# By parts of the error's message; the first that matches applies.
REMEDIES = (
    (("malformed", "not a database"), REPAIR_REMEDY),
    (("full", "disk I/O", "No space"), "make room on the disk, or set CAPBENCH_HOME to a folder on another"),
    (("locked", "busy"), "another process has locked it for two minutes: end that one, or set CAPBENCH_HOME elsewhere"),
    (("",), "set CAPBENCH_HOME to a folder you can write to"),
)
ADD_TRIAL = """
INSERT INTO trials VALUES (?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (key) DO UPDATE SET status = excluded.status, created = excluded.created, document = excluded.document
WHERE trials.status = 'failed'
"""

T = TypeVar("T")


def home() -> Path:
    """The folder of the store: $CAPBENCH_HOME, or the platform's folder for user data."""
    given = os.environ.get("CAPBENCH_HOME")
    return Path(given).expanduser() if given else user_data_path("capbench", appauthor=False)


def store_file(folder: Path) -> Path:
    """The file of a store."""
    return folder / "capbench.sqlite"


class Store:
    """Trials and runs in one SQLite file, and the leases of the processes that are training trials."""

    def __init__(self, folder: Path) -> None:
        self.path = store_file(folder)
        with translate_errors(self.path):
            folder.mkdir(parents=True, exist_ok=True)
        self._connect()

    def _connect(self) -> None:
        with translate_errors(self.path):
            self._db = sqlite3.connect(self.path, timeout=LOCK_TIMEOUT_SECONDS, isolation_level=None)
            retry_while_locked(self._open)

    def _open(self) -> None:
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=FULL")
        migrate(self._db, self.path)
        self._leases = Leases(self._db)

    def add_trials(self, trials: Iterable[Trial], task: str, architecture: str) -> None:
        """Commits trials in one transaction and ends their leases.

        Only a failed trial is ever replaced: any other would give the same result again.
        """
        rows = [(t.key, task, architecture, t.load, t.seed, t.status, _now(), t.model_dump_json()) for t in trials]
        with self._change() as db:
            db.executemany(ADD_TRIAL, rows)
            db.executemany("DELETE FROM claims WHERE key = ?", [(row[0],) for row in rows])

    def trials(self, keys: Iterable[str]) -> dict[str, Trial]:
        """The stored trials among `keys`."""
        wanted, found = list(keys), {}
        with translate_errors(self.path):
            for start in range(0, len(wanted), KEYS_PER_QUERY):
                part = wanted[start : start + KEYS_PER_QUERY]
                marks = ", ".join("?" * len(part))
                for key, text in self._db.execute(f"SELECT key, document FROM trials WHERE key IN ({marks})", part):
                    found[key] = Trial.model_validate_json(text)
        return found

    def add_run(self, result: Result) -> None:
        """Commits a run's document; replaces an earlier one of the same run unless nothing was trained this time."""
        on_conflict = "REPLACE" if result.timing.trials_trained else "IGNORE"
        row = (result.run_id, result.task.name, result.architecture.name, _now(), result.model_dump_json())
        with self._change() as db:
            db.execute(f"INSERT OR {on_conflict} INTO runs VALUES (?, ?, ?, ?, ?)", row)

    def run(self, run_id: str) -> Result | None:
        """The document of a run, None if it is not stored."""
        with translate_errors(self.path):
            found = self._db.execute("SELECT document FROM runs WHERE run_id = ?", (run_id,)).fetchone()
            return None if found is None else Result.model_validate_json(found[0])

    def find_run(self, start: str) -> Result:
        """The run whose id begins with `start`; raises UnknownName unless there is exactly one."""
        with translate_errors(self.path):
            query = "SELECT run_id, document FROM runs WHERE substr(run_id, 1, ?) = ?"
            found = dict(self._db.execute(query, (len(start), start)).fetchall())
            if len(found) != 1:
                what = "no run" if not found else f"{len(found)} runs"
                raise UnknownName(f"{what} with an id that begins with {start!r} (capbench results)")
            return Result.model_validate_json(next(iter(found.values())))

    def find_trials(self, selection: StoreQuery) -> list[StoredTrial]:
        """The selected trials, oldest first."""
        where, values = selection.where(with_status=True)
        query = f"SELECT task, architecture, created, document FROM trials WHERE {where} ORDER BY created, key"
        with translate_errors(self.path):
            rows = self._db.execute(query, values)
            return [StoredTrial(t, a, created, Trial.model_validate_json(text)) for t, a, created, text in rows]

    def find_runs(self, selection: StoreQuery) -> list[StoredRun]:
        """The selected runs, oldest first; the selection's status is ignored."""
        where, values = selection.where(with_status=False)
        query = f"SELECT created, document FROM runs WHERE {where} ORDER BY created, run_id"
        with translate_errors(self.path):
            rows = self._db.execute(query, values)
            return [StoredRun(created, Result.model_validate_json(text)) for created, text in rows]

    def delete_trials(self, keys: Iterable[str]) -> None:
        """Deletes trials."""
        with self._change() as db:
            db.executemany("DELETE FROM trials WHERE key = ?", [(key,) for key in keys])

    def delete_runs(self, run_ids: Iterable[str]) -> None:
        """Deletes runs; their trials stay."""
        with self._change() as db:
            db.executemany("DELETE FROM runs WHERE run_id = ?", [(run_id,) for run_id in run_ids])

    def import_rows(self, trials: Iterable[StoredTrial], runs: Iterable[StoredRun]) -> tuple[int, int]:
        """Adds trials and runs of another store in one transaction; returns how many of each were new."""
        before = self.counts()
        with self._change() as db:
            for each in trials:
                t = each.trial
                columns = (t.key, each.task, each.architecture, t.load, t.seed, t.status, each.created)
                db.execute(ADD_TRIAL, (*columns, t.model_dump_json()))
            for run in runs:
                r = run.result
                row = (r.run_id, r.task.name, r.architecture.name, run.created, r.model_dump_json())
                db.execute("INSERT OR IGNORE INTO runs VALUES (?, ?, ?, ?, ?)", row)
        after = self.counts()
        return after[0] - before[0], after[1] - before[1]

    def lease(self, keys: Iterable[str]) -> set[str]:
        """Leases those of the trials that no other process has leased, and returns them."""
        wanted = list(keys)
        with translate_errors(self.path):
            return retry_while_locked(lambda: self._leases.take(wanted))

    def leased_elsewhere(self, keys: Iterable[str]) -> set[str]:
        """Those of the trials that another process has leased."""
        with translate_errors(self.path):
            return self._leases.held_elsewhere(list(keys))

    def renew_leases(self) -> None:
        """Extends the leases of this process."""
        with translate_errors(self.path):
            retry_while_locked(self._leases.renew)

    def release_leases(self) -> None:
        """Gives up all leases of this process."""
        with translate_errors(self.path):
            retry_while_locked(self._leases.release)

    def drop_dead_leases(self) -> int:
        """Deletes the leases of processes that have ended, and returns their number."""
        with translate_errors(self.path):
            return retry_while_locked(self._leases.drop_dead)

    def counts(self) -> tuple[int, int]:
        """How many trials and runs are stored."""
        with translate_errors(self.path):
            (trials,) = self._db.execute("SELECT COUNT(*) FROM trials").fetchone()
            (runs,) = self._db.execute("SELECT COUNT(*) FROM runs").fetchone()
        return trials, runs

    def check_integrity(self) -> str:
        """Runs SQLite's check of the file, then reads every document; returns "ok" or what is wrong."""
        with translate_errors(self.path):
            (verdict,) = self._db.execute("PRAGMA integrity_check(1)").fetchone()
            if verdict == "ok":
                self.find_trials(StoreQuery())
                self.find_runs(StoreQuery())
        return str(verdict)

    def close(self) -> None:
        """Closes the file."""
        self._db.close()

    @contextmanager
    def closed(self) -> Iterator[None]:
        """A scope in which the file is closed: an open SQLite connection must not be inherited by a fork."""
        self.close()
        try:
            yield
        finally:
            self._connect()

    @contextmanager
    def _change(self) -> Iterator[sqlite3.Connection]:
        """A transaction: committed as a whole, or not at all."""
        with translate_errors(self.path):
            retry_while_locked(lambda: self._db.execute("BEGIN IMMEDIATE"))
            try:
                yield self._db
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:  # a full disk may have ended it already
                    self._db.execute("ROLLBACK")
                raise


def retry_while_locked(action: Callable[[], T]) -> T:
    """Retries while another process locks the file: SQLite's own timeout does not cover every kind of lock."""
    deadline = time.monotonic() + LOCK_TIMEOUT_SECONDS
    while True:
        try:
            return action()
        except sqlite3.OperationalError as error:
            is_busy = any(state in str(error) for state in ("locked", "busy"))
            if not is_busy or time.monotonic() > deadline:
                raise
            time.sleep(0.05)


@contextmanager
def translate_errors(path: Path) -> Iterator[None]:
    """Turns errors of the file system and of SQLite into one line with a remedy."""
    try:
        yield
    except ValidationError as error:
        raise StoreDamaged(f"the store {path} has a document that cannot be read; {REPAIR_REMEDY}") from error
    except (OSError, sqlite3.Error) as error:
        remedy = next(remedy for parts, remedy in REMEDIES if any(part in str(error) for part in parts))
        kind = StoreDamaged if remedy == REPAIR_REMEDY else StoreUnavailable
        raise kind(f"the store {path} cannot be used: {error}; {remedy}") from error


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
