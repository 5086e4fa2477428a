"""Interrupts: the first Ctrl-C ends a run after its current evaluation, the second ends it at once."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

NOTICE = b"\nending after the current step; once more ends at once\n"


class Interrupt:
    """Whether the user, or the system, has asked for an end."""

    def __init__(self) -> None:
        self._is_requested = False
        self.is_repeated = False
        """Whether an end was asked for twice."""

    def check(self) -> None:
        """Raises KeyboardInterrupt if an end was asked for; called where nothing is half done."""
        if self._is_requested:
            raise KeyboardInterrupt

    def request(self) -> None:
        """Asks for an end without a signal."""
        self._is_requested = True

    def handle(self, _signal: int, _frame: FrameType | None) -> None:
        """The signal handler."""
        if self._is_requested:
            self.is_repeated = True
            raise KeyboardInterrupt
        self.request()
        os.write(2, NOTICE)  # not print: the signal may have come in the middle of one


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
