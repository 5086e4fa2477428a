"""Leases: which process is training which trial, so that two processes on one store do not train it twice."""

from __future__ import annotations

import os
import platform
import sqlite3
import subprocess
import sys
import time
import uuid
from collections.abc import Collection, Iterable
from contextlib import suppress
from functools import cache
from pathlib import Path

LEASE_SECONDS = 120.0
"""An unrenewed lease expires after this; longer than any step, including compilation."""
RENEWAL_SECONDS = 10.0
NOT_RUNNING = "ZXx"
"""States of a process that has ended and is not yet removed from the table of processes."""


class Leases:
    """The trials leased by this process. A lease ends with its trial, with its owner, or after LEASE_SECONDS.

    They are rows of the table `claims`; to rename it would take a migration of every store.
    """

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._owner = uuid.uuid4().hex
        self._host = _machine()
        self._renewed = 0.0

    def take(self, keys: Iterable[str]) -> set[str]:
        """Leases those of the trials that no other process has leased, and returns them."""
        wanted = list(keys)
        self._db.execute("BEGIN IMMEDIATE")
        try:
            taken = {key for key in wanted if self._is_free(key)}
            process = (self._owner, self._host, os.getpid(), time.time() + LEASE_SECONDS, _started(os.getpid()) or "")
            self._db.executemany(
                "INSERT OR REPLACE INTO claims VALUES (?, ?, ?, ?, ?, ?)", [(key, *process) for key in taken]
            )
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
        found = self._db.execute("SELECT owner, host, pid, expires, started FROM claims WHERE key = ?", (key,))
        row = found.fetchone()
        if row is None:
            return True
        owner, host, pid, expires, started = row
        return owner == self._owner or expires < time.time() or (host == self._host and not _is_alive(pid, started))


@cache
def _machine() -> str:
    """This machine, and on Linux the space in which its process ids are counted: containers may share a name."""
    with suppress(OSError):
        return f"{platform.node()} {Path('/proc/self/ns/pid').readlink()}"
    return platform.node()


def _is_alive(pid: int, started: str) -> bool:
    """Whether the process that took a lease still runs: its id may by now belong to another, or to its remains."""
    now = _started(pid)
    return now is None or (now != "" and started in ("", now))


def _started(pid: int) -> str | None:
    """When a process of this machine was started, in words that no other start has; empty if none of this id runs.

    None where that cannot be known; leases are then known to be dead only when they run out.
    """
    if sys.platform == "linux" and Path("/proc/self/stat").exists():
        return _started_by_proc(pid)
    return None if os.name == "nt" else _started_by_ps(pid)


def _started_by_proc(pid: int) -> str | None:
    try:
        # After the name in brackets, which may hold anything: the state first, the start (in ticks) as the 20th field.
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None if _exists(pid) else ""  # a system may hide the processes of other users
    return "" if fields[0] in NOT_RUNNING else f"{boot} {fields[19]}"


def _started_by_ps(pid: int) -> str | None:
    try:
        shown = subprocess.run(
            ["ps", "-o", "stat=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False
        )
    except OSError:
        return None
    state, _, started = shown.stdout.strip().partition(" ")
    return "" if state[:1] in NOT_RUNNING else started.strip()


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # it belongs to another user
        return True
    return True
