"""Deadlines: a plugin that hangs is given up after a while without a sign of progress."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from capbench.errors import TrialTimedOut


class Deadline:
    """An alarm that goes off when nothing has moved for a number of seconds.

    It uses the SIGALRM of the main thread, so it is absent on Windows and in other threads, and a hang
    inside a single call of C code is noticed only when that call returns.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        is_main = threading.current_thread() is threading.main_thread()
        self._can_ring = seconds > 0 and is_main and hasattr(signal, "setitimer")
        self._is_live = False

    def restart(self) -> None:
        """Something has moved: the time begins anew."""
        if self._is_live:
            # Again every second: a plugin's own `except Exception` may swallow the first alarm.
            signal.setitimer(signal.ITIMER_REAL, self._seconds, 1.0)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """A scope in which standing still raises TrialTimedOut."""
        if not self._can_ring:
            yield
            return
        former = signal.signal(signal.SIGALRM, self._ring)
        try:
            try:
                self._is_live = True
                self.restart()
                yield
            finally:
                self._is_live = False
        finally:  # reached even if the alarm rings in the line above
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, former)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """A scope whose time does not count: storing a trial is never cut short. The time begins anew after it."""
        was_live, self._is_live = self._is_live, False
        try:
            yield
        finally:
            self._is_live = was_live
            self.restart()

    def _ring(self, _signal: int, _frame: FrameType | None) -> None:
        if not self._is_live:
            return
        raise TrialTimedOut(f"no progress for {self._seconds:g} s; raise --trial-timeout if it is only slow")
