"""Deadlines: stop a plugin that makes no progress."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from capbench.errors import TrialTimedOut

TICKS = 20
"""Ticks per limit: a process suspended for an hour misses one tick, not an hour."""


class Deadline:
    """Raises if no progress is reported for `seconds`.

    It uses the SIGALRM of the main thread, so it does nothing on Windows and in other threads. A single call of C
    code, however long, counts as one tick when it returns; a C call that never returns is not detected.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        is_main = threading.current_thread() is threading.main_thread()
        self._is_available = seconds > 0 and is_main and hasattr(signal, "setitimer")
        self._is_live = False
        self._ticks = 0

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Raises TrialTimedOut in this scope if there is no progress."""
        if not self._is_available:
            yield
            return
        former = signal.signal(signal.SIGALRM, self._tick)
        try:
            try:
                self._ticks, self._is_live = 0, True
                signal.setitimer(signal.ITIMER_REAL, self._seconds / TICKS, self._seconds / TICKS)
                yield
            finally:
                self._is_live = False
        finally:  # reached even if the signal arrives in the line above
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, former)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Code in this scope is not interrupted; the timer restarts after it."""
        was_live, self._is_live = self._is_live, False
        try:
            yield
        finally:
            self._ticks, self._is_live = 0, was_live

    def _tick(self, _signal: int, _frame: FrameType | None) -> None:
        """Counts; raises at the last tick and at each one after it, should a plugin swallow the exception."""
        if not self._is_live:
            return
        self._ticks += 1
        if self._ticks >= TICKS:
            raise TrialTimedOut(f"no progress for {self._seconds:g} s; raise --trial-timeout if it is only slow")
