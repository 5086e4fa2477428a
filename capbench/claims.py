"""Claims: who is training which trial now, so that two processes on one store do not train it twice."""

from __future__ import annotations

import os
import platform
import sqlite3
import time
import uuid
from collections.abc import Collection, Iterable
from contextlib import suppress

LASTS_SECONDS = 120.0
"""A claim that was not renewed for so long is free: longer than any step takes, compiling included."""
RENEWED_EVERY = 10.0


class Claims:
    """The trials that this process has taken on. A claim ends with its trial, its owner, or its time."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._owner = uuid.uuid4().hex
        self._host = platform.node()
        self._renewed = 0.0

    def take(self, keys: Iterable[str]) -> set[str]:
        """Claims those of the trials that nobody else is at work on, and says which they are."""
        wanted = list(keys)
        self._db.execute("BEGIN IMMEDIATE")
        try:
            taken = {key for key in wanted if self._is_free(key)}
            rows = [(key, self._owner, self._host, os.getpid(), time.time() + LASTS_SECONDS) for key in taken]
            self._db.executemany("INSERT OR REPLACE INTO claims VALUES (?, ?, ?, ?, ?)", rows)
            self._db.execute("COMMIT")
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        return taken

    def renew(self) -> None:
        """Says that this process is still at it; called often, it writes now and then."""
        if time.monotonic() - self._renewed < RENEWED_EVERY:
            return
        self._renewed = time.monotonic()
        self._db.execute("UPDATE claims SET expires = ? WHERE owner = ?", (time.time() + LASTS_SECONDS, self._owner))

    def release(self) -> None:
        """Gives up all that is left."""
        self._db.execute("DELETE FROM claims WHERE owner = ?", (self._owner,))

    def drop_dead(self) -> int:
        """Forgets claims whose owners are gone, and says how many there were."""
        dead = [key for (key,) in self._db.execute("SELECT key FROM claims").fetchall() if self._is_free(key)]
        self._db.executemany("DELETE FROM claims WHERE key = ?", [(key,) for key in dead])
        return len(dead)

    def others(self, keys: Collection[str]) -> set[str]:
        """Those of the trials that another process is at work on."""
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
        except PermissionError:  # it is there, and somebody else's
            return True
        return True
    return False
