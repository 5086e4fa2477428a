"""Leases: which process is training which trial, so that two processes on one store do not train it twice."""

from __future__ import annotations

import os
import platform
import sqlite3
import time
import uuid
from collections.abc import Collection, Iterable
from contextlib import suppress

LEASE_SECONDS = 120.0
"""An unrenewed lease expires after this; longer than any step, including compilation."""
RENEWAL_SECONDS = 10.0


class Leases:
    """The trials leased by this process. A lease ends with its trial, with its owner, or after LEASE_SECONDS.

    They are rows of the table `claims`; to rename it would take a migration of every store.
    """

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._owner = uuid.uuid4().hex
        self._host = platform.node()
        self._renewed = 0.0

    def take(self, keys: Iterable[str]) -> set[str]:
        """Leases those of the trials that no other process has leased, and returns them."""
        wanted = list(keys)
        self._db.execute("BEGIN IMMEDIATE")
        try:
            taken = {key for key in wanted if self._is_free(key)}
            rows = [(key, self._owner, self._host, os.getpid(), time.time() + LEASE_SECONDS) for key in taken]
            self._db.executemany("INSERT OR REPLACE INTO claims VALUES (?, ?, ?, ?, ?)", rows)
            self._db.execute("COMMIT")
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        return taken

    def renew(self) -> None:
        """Extends this process's leases; may be called often, since it writes at most every RENEWAL_SECONDS."""
        if time.monotonic() - self._renewed < RENEWAL_SECONDS:
            return
        self._renewed = time.monotonic()
        self._db.execute("UPDATE claims SET expires = ? WHERE owner = ?", (time.time() + LEASE_SECONDS, self._owner))

    def release(self) -> None:
        """Gives up all leases of this process."""
        self._db.execute("DELETE FROM claims WHERE owner = ?", (self._owner,))

    def drop_dead(self) -> int:
        """Deletes the leases that have run out or whose process has ended, and returns their number."""
        dead = [key for (key,) in self._db.execute("SELECT key FROM claims").fetchall() if self._is_free(key)]
        self._db.executemany("DELETE FROM claims WHERE key = ?", [(key,) for key in dead])
        return len(dead)

    def held_elsewhere(self, keys: Collection[str]) -> set[str]:
        """Those of the trials that another process has leased."""
        return {key for key in keys if not self._is_free(key)}

    def _is_free(self, key: str) -> bool:
        found = self._db.execute("SELECT owner, host, pid, expires FROM claims WHERE key = ?", (key,)).fetchone()
        if found is None:
            return True
        owner, host, pid, expires = found
        return owner == self._owner or expires < time.time() or (host == self._host and not _is_alive(pid))


def _is_alive(pid: int) -> bool:
    with suppress(ProcessLookupError):
        try:
            os.kill(pid, 0)
        except PermissionError:  # it exists and belongs to another user
            return True
        return True
    return False
