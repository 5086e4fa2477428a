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

from capbench.documents.conditions import check_fields
from capbench.documents.result import Result, Trial
from capbench.errors import StoreDamaged, StoreUnavailable, UnknownName
from capbench.store.leases import Leases
from capbench.store.queries import StoredRun, StoredTrial, StoreQuery
from capbench.store.rows import RUN_ROW, TRIAL_ROW, ChangedRow, Value, read_run, read_trial, run_row, trial_row
from capbench.store.tables import REPAIR_REMEDY, migrate

KEYS_PER_QUERY = 500
LOCK_TIMEOUT_SECONDS = 120.0
"""How long a process waits while others write."""
DAMAGE = (
    "malformed", "not a database", "corrupt", "no such table", "no such column", "Could not decode", "too big",
    "user-defined function", "unsupported file format",
)  # fmt: skip
"""Parts of what SQLite says about a damaged file."""
# By parts of the error's message; the first that matches applies.
REMEDIES = (
    (DAMAGE, REPAIR_REMEDY),
    (("full", "disk I/O", "No space"), "make room on the disk, or set CAPBENCH_HOME to a folder on another"),
    (("locked", "busy"), "another process has locked it for two minutes: end that one, or set CAPBENCH_HOME elsewhere"),
    (("",), "set CAPBENCH_HOME to a folder you can write to"),
)
ADD_TRIAL = """
INSERT INTO trials VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (key) DO UPDATE SET
    task = excluded.task, architecture = excluded.architecture, load = excluded.load, seed = excluded.seed,
    status = excluded.status, created = excluded.created, document = excluded.document, checksum = excluded.checksum
WHERE trials.status = 'failed'
"""
LATEST = "latest"
"""Names the run that was stored last, where a run is asked for by the start of its id."""

T = TypeVar("T")
Row = tuple[Value, ...]


def home() -> Path:
    """The folder of the store: $CAPBENCH_HOME, or the platform's folder for user data."""
    given = os.environ.get("CAPBENCH_HOME")
    return Path(given).expanduser() if given else user_data_path("capbench", appauthor=False)


def existing_store() -> Store | None:
    """The user's store, if there is one; unlike opening it, this creates none."""
    return Store(home()) if store_file(home()).exists() else None


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
        rows = [trial_row(trial, task, architecture, _now()) for trial in trials]
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
                for row in self._db.execute(f"SELECT {TRIAL_ROW} FROM trials WHERE key IN ({marks})", part):
                    trial = read_trial(row).trial
                    found[trial.key] = trial
        return found

    def add_run(self, result: Result) -> None:
        """Commits a run's document; of the same run, an earlier one stays where nothing was trained this time.

        A new name or new tags replace those of the earlier one.
        """
        earlier = self.run(result.run_id)
        if earlier is not None:
            labels = {"name": result.name or earlier.name, "tags": result.tags or earlier.tags}
            result = (result if result.timing.trials_trained else earlier).model_copy(update=labels)
            if result == earlier:
                return
        with self._change() as db:
            db.execute("INSERT OR REPLACE INTO runs VALUES (?, ?, ?, ?, ?, ?)", run_row(result, _now()))

    def run(self, run_id: str) -> Result | None:
        """The document of a run, None if it is not stored."""
        with translate_errors(self.path):
            found = self._db.execute(f"SELECT {RUN_ROW} FROM runs WHERE run_id = ?", (run_id,)).fetchone()
            return None if found is None else read_run(found).result

    def find_run(self, start: str) -> Result:
        """The run whose id begins with `start`, or that has this name; `latest` is the one that was stored last.

        Raises UnknownName unless there is exactly one.
        """
        query = f"SELECT {RUN_ROW} FROM runs"
        with translate_errors(self.path):
            if start == LATEST:
                latest = "SELECT rowid FROM runs ORDER BY created DESC, rowid DESC LIMIT 1"
                found = self._db.execute(f"{query} WHERE rowid = ({latest})").fetchall()
            else:
                named = f"{query} WHERE json_valid(document) AND json_extract(document, '$.name') = ?"
                beginning = f"{query} WHERE substr(run_id, 1, ?) = ?"
                found = (
                    self._db.execute(named, (start,)).fetchall()
                    or self._db.execute(beginning, (len(start), start)).fetchall()
                )
            if len(found) != 1:
                what = "no run" if not found else f"{len(found)} runs"
                raise UnknownName(f"{what} with the name {start!r} or an id that begins with it (capbench results)")
            return read_run(found[0]).result

    def find_trials(self, selection: StoreQuery) -> list[StoredTrial]:
        """The selected trials, oldest first."""
        where, values = selection.where(with_status=True)
        query = f"SELECT {TRIAL_ROW} FROM trials WHERE {where} ORDER BY created, key"
        with translate_errors(self.path):
            return [read_trial(row) for row in self._db.execute(query, values)]

    def find_runs(self, selection: StoreQuery) -> list[StoredRun]:
        """The selected runs, oldest first; the selection's status is ignored.

        Raises BadSetting for a condition on a field that no run has.
        """
        where, values = selection.where(with_status=False)
        query = f"SELECT {RUN_ROW} FROM runs WHERE {where} ORDER BY created, run_id"
        with translate_errors(self.path):
            runs = [read_run(row) for row in self._db.execute(query, values)]
        for condition in selection.conditions:
            check_fields([run.result for run in runs], condition)
        return [run for run in runs if selection.selects(run.result)]

    def latest_trials(self, selection: StoreQuery, most: int) -> tuple[list[StoredTrial], int]:
        """The latest selected trials, oldest first, and how many are selected; only these are read."""
        where, values = selection.where(with_status=True)
        rows, n = self._latest("trials", TRIAL_ROW, "key", where, values, most)
        with translate_errors(self.path):
            return [read_trial(row) for row in rows], n

    def latest_runs(self, selection: StoreQuery, most: int) -> tuple[list[StoredRun], int]:
        """The latest selected runs, oldest first, and how many are selected; only these are read.

        A selection by what stands in the documents needs all of them.
        """
        if selection.is_of_runs:
            runs = self.find_runs(selection)
            return runs[-most:], len(runs)
        where, values = selection.where(with_status=False)
        rows, n = self._latest("runs", RUN_ROW, "run_id", where, values, most)
        with translate_errors(self.path):
            return [read_run(row) for row in rows], n

    def _latest(
        self, table: str, columns: str, key: str, where: str, values: list[str], most: int
    ) -> tuple[list[Row], int]:
        """The latest rows, oldest first, and the number of all that match."""
        # The inner query sorts keys and dates: sorting whole rows would read every document.
        latest = f"SELECT {key} FROM {table} WHERE {where} ORDER BY created DESC, {key} DESC LIMIT {most}"
        with translate_errors(self.path):
            query = f"SELECT {columns} FROM {table} WHERE {key} IN ({latest}) ORDER BY created, {key}"
            rows = self._db.execute(query, values).fetchall()
            (n,) = self._db.execute(f"SELECT COUNT(*) FROM {table} WHERE {where}", values).fetchone()
        return rows, n

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
                db.execute(ADD_TRIAL, trial_row(each.trial, each.task, each.architecture, each.created))
            for run in runs:
                db.execute("INSERT OR IGNORE INTO runs VALUES (?, ?, ?, ?, ?, ?)", run_row(run.result, run.created))
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
    except ChangedRow as error:
        raise StoreDamaged(f"the store {path} is damaged: {error}; {REPAIR_REMEDY}") from error
    except ValidationError as error:
        raise StoreDamaged(f"the store {path} has a document that cannot be read; {REPAIR_REMEDY}") from error
    except (OSError, sqlite3.Error) as error:
        remedy = next(remedy for parts, remedy in REMEDIES if any(part in str(error) for part in parts))
        kind = StoreDamaged if remedy == REPAIR_REMEDY else StoreUnavailable
        raise kind(f"the store {path} cannot be used: {error}; {remedy}") from error


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
