"""Interrupts: the first Ctrl-C ends a run after its current evaluation, the second ends it at once."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

NOTICE = b"\nstopping after the current evaluation; press again to stop at once\n"


class Interrupt:
    """Whether a stop was requested."""

    def __init__(self) -> None:
        self._is_requested = False
        self.is_repeated = False
        """Whether a stop was requested twice."""

    def check(self) -> None:
        """Raises KeyboardInterrupt if a stop was requested; called where nothing is half done."""
        if self._is_requested:
            raise KeyboardInterrupt

    def request(self) -> None:
        """Requests a stop without a signal."""
        self._is_requested = True

    def handle(self, _signal: int, _frame: FrameType | None) -> None:
        """The signal handler."""
        if self._is_requested:
            self.is_repeated = True
            raise KeyboardInterrupt
        self.request()
        os.write(2, NOTICE)  # os.write: print is not signal-safe


@contextmanager
def deferred() -> Iterator[Interrupt]:
    """A scope in which SIGINT and SIGTERM wait for the next check; outside of the main thread it does nothing."""
    interrupt = Interrupt()
    if threading.current_thread() is not threading.main_thread():
        yield interrupt
        return
    former = {number: signal.signal(number, interrupt.handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield interrupt
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
