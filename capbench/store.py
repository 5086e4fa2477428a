"""The store: every finished trial, one committed row each, found again by its key; and the runs made of them."""

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

from capbench.claims import Claims
from capbench.errors import StoreTorn, StoreUnavailable, UnknownName
from capbench.migrations import bring_up_to_date
from capbench.results import Result, Trial
from capbench.selection import Selection, StoredRun, StoredTrial

MOST_KEYS = 500
PATIENCE_SECONDS = 120.0
"""How long a process waits for others that write."""
TORN_REMEDY = "capbench doctor --repair sets it aside and saves what can be read"
REMEDIES = (
    (("malformed", "not a database"), TORN_REMEDY),
    (("full", "disk I/O", "No space"), "make room on the disk, or set CAPBENCH_HOME to a folder on another"),
    (("locked", "busy"), "another process has kept it for two minutes: end that, or set CAPBENCH_HOME elsewhere"),
    (("",), "set CAPBENCH_HOME to a folder you can write to"),
)
ADD_TRIAL = """
INSERT INTO trials VALUES (?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (key) DO UPDATE SET status = excluded.status, created = excluded.created, document = excluded.document
WHERE trials.status = 'failed'
"""

T = TypeVar("T")


def home() -> Path:
    """The folder of the store: $CAPBENCH_HOME, or the platform's place for data."""
    given = os.environ.get("CAPBENCH_HOME")
    return Path(given).expanduser() if given else user_data_path("capbench", appauthor=False)


def store_file(folder: Path) -> Path:
    """The one file of a store."""
    return folder / "capbench.sqlite"


class Store:
    """Trials and runs in one SQLite file, and the claims of processes that are at work on it."""

    def __init__(self, folder: Path) -> None:
        self.path = store_file(folder)
        with explained(self.path):
            folder.mkdir(parents=True, exist_ok=True)
        self._connect()

    def _connect(self) -> None:
        with explained(self.path):
            self._db = sqlite3.connect(self.path, timeout=PATIENCE_SECONDS, isolation_level=None)
            patiently(self._open)

    def _open(self) -> None:
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=FULL")
        bring_up_to_date(self._db, self.path)
        self._claims = Claims(self._db)

    def add_trials(self, trials: Iterable[Trial], task: str, architecture: str) -> None:
        """Commits trials, all at once, and ends their claims.

        Only a failed one is ever replaced: another cannot come out otherwise.
        """
        rows = [(t.key, task, architecture, t.load, t.seed, t.status, _now(), t.model_dump_json()) for t in trials]
        with self._change() as db:
            db.executemany(ADD_TRIAL, rows)
            db.executemany("DELETE FROM claims WHERE key = ?", [(row[0],) for row in rows])

    def trials(self, keys: Iterable[str]) -> dict[str, Trial]:
        """The stored trials among `keys`."""
        wanted, found = list(keys), {}
        with explained(self.path):
            for start in range(0, len(wanted), MOST_KEYS):
                part = wanted[start : start + MOST_KEYS]
                marks = ", ".join("?" * len(part))
                for key, text in self._db.execute(f"SELECT key, document FROM trials WHERE key IN ({marks})", part):
                    found[key] = Trial.model_validate_json(text)
        return found

    def add_run(self, result: Result) -> None:
        """Commits a run's document; the same run again replaces it, unless nothing was trained for it."""
        word = "REPLACE" if result.timing.trials_trained else "IGNORE"
        row = (result.run_id, result.task.name, result.architecture.name, _now(), result.model_dump_json())
        with self._change() as db:
            db.execute(f"INSERT OR {word} INTO runs VALUES (?, ?, ?, ?, ?)", row)

    def run(self, run_id: str) -> Result | None:
        """The document of a run, with the environment and the cost of its training."""
        with explained(self.path):
            found = self._db.execute("SELECT document FROM runs WHERE run_id = ?", (run_id,)).fetchone()
            return None if found is None else Result.model_validate_json(found[0])

    def run_like(self, start: str) -> Result:
        """The one run whose id begins so."""
        with explained(self.path):
            query = "SELECT run_id, document FROM runs WHERE substr(run_id, 1, ?) = ?"
            found = dict(self._db.execute(query, (len(start), start)).fetchall())
            if len(found) != 1:
                what = "no run" if not found else f"{len(found)} runs"
                raise UnknownName(f"{what} with an id that begins with {start!r} (capbench results)")
            return Result.model_validate_json(next(iter(found.values())))

    def find_trials(self, selection: Selection) -> list[StoredTrial]:
        """The selected trials, oldest first."""
        where, values = selection.where(with_status=True)
        query = f"SELECT task, architecture, created, document FROM trials WHERE {where} ORDER BY created, key"
        with explained(self.path):
            rows = self._db.execute(query, values)
            return [StoredTrial(t, a, created, Trial.model_validate_json(text)) for t, a, created, text in rows]

    def find_runs(self, selection: Selection) -> list[StoredRun]:
        """The selected runs, oldest first; a status does not select among runs."""
        where, values = selection.where(with_status=False)
        query = f"SELECT created, document FROM runs WHERE {where} ORDER BY created, run_id"
        with explained(self.path):
            rows = self._db.execute(query, values)
            return [StoredRun(created, Result.model_validate_json(text)) for created, text in rows]

    def delete_trials(self, keys: Iterable[str]) -> None:
        """Forgets trials for good."""
        with self._change() as db:
            db.executemany("DELETE FROM trials WHERE key = ?", [(key,) for key in keys])

    def delete_runs(self, run_ids: Iterable[str]) -> None:
        """Forgets runs for good; their trials stay."""
        with self._change() as db:
            db.executemany("DELETE FROM runs WHERE run_id = ?", [(run_id,) for run_id in run_ids])

    def adopt(self, trials: Iterable[StoredTrial], runs: Iterable[StoredRun]) -> tuple[int, int]:
        """Takes in trials and runs of another store, in one commit, and says how many were new."""
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

    def claim(self, keys: Iterable[str]) -> set[str]:
        """Those of the trials that nobody else is at work on, claimed for this process."""
        wanted = list(keys)
        with explained(self.path):
            return patiently(lambda: self._claims.take(wanted))

    def claimed_elsewhere(self, keys: Iterable[str]) -> set[str]:
        """Those of the trials that another process is at work on."""
        with explained(self.path):
            return self._claims.others(list(keys))

    def renew_claims(self) -> None:
        """Says that this process is still at work."""
        with explained(self.path):
            patiently(self._claims.renew)

    def release_claims(self) -> None:
        """Gives up what this process had claimed and not done."""
        with explained(self.path):
            patiently(self._claims.release)

    def drop_dead_claims(self) -> int:
        """Forgets the claims of processes that are gone."""
        with explained(self.path):
            return patiently(self._claims.drop_dead)

    def counts(self) -> tuple[int, int]:
        """How many trials and runs are stored."""
        with explained(self.path):
            (trials,) = self._db.execute("SELECT COUNT(*) FROM trials").fetchone()
            (runs,) = self._db.execute("SELECT COUNT(*) FROM runs").fetchone()
        return trials, runs

    def integrity(self) -> str:
        """SQLite's own verdict on the file, then that of reading every document: "ok", or what is wrong."""
        with explained(self.path):
            (verdict,) = self._db.execute("PRAGMA integrity_check(1)").fetchone()
            if verdict == "ok":
                self.find_trials(Selection())
                self.find_runs(Selection())
        return str(verdict)

    def close(self) -> None:
        """Lets go of the file."""
        self._db.close()

    @contextmanager
    def closed(self) -> Iterator[None]:
        """A scope in which the file is let go of: SQLite must not be carried open into a forked process."""
        self.close()
        try:
            yield
        finally:
            self._connect()

    @contextmanager
    def _change(self) -> Iterator[sqlite3.Connection]:
        """A transaction: all of it is committed, or none."""
        with explained(self.path):
            patiently(lambda: self._db.execute("BEGIN IMMEDIATE"))
            try:
                yield self._db
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:  # a full disk may have ended it already
                    self._db.execute("ROLLBACK")
                raise


def patiently(action: Callable[[], T]) -> T:
    """Does it again while others hold the file: SQLite's own patience does not cover every kind of lock."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return action()
        except sqlite3.OperationalError as error:
            is_busy = any(word in str(error) for word in ("locked", "busy"))
            if not is_busy or time.monotonic() > deadline:
                raise
            time.sleep(0.05)


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turns what the file system and SQLite say into one line with a remedy."""
    try:
        yield
    except ValidationError as error:
        raise StoreTorn(f"the store {path} has a document that cannot be read; {TORN_REMEDY}") from error
    except (OSError, sqlite3.Error) as error:
        remedy = next(remedy for words, remedy in REMEDIES if any(word in str(error) for word in words))
        kind = StoreTorn if remedy == TORN_REMEDY else StoreUnavailable
        raise kind(f"the store {path} cannot be used: {error}; {remedy}") from error


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
