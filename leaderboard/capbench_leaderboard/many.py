"""The same done to many things: in this process for a few, in several for thousands."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")

MANY = 1000
"""Things from which on other processes pay: each takes a second to start."""
AT_ONCE = 50


class Workers:
    """Processes that are started when they first pay, and kept until the work is done.

    Meanwhile no process searches for cycles: records have none, and going through thousands takes its time.
    """

    def __init__(self) -> None:
        self._pool: ProcessPoolExecutor | None = None
        self._collected = gc.isenabled()

    def __enter__(self) -> Workers:
        gc.disable()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=kind is not None)
        if self._collected:
            gc.enable()

    def map(self, function: Callable[[T], R], things: Sequence[T]) -> Iterator[R]:
        """What the function gives for each, in their order."""
        if len(things) < MANY:
            return map(function, things)
        if self._pool is None:
            # Spawned, not forked: a fork in a process with threads may hang.
            self._pool = ProcessPoolExecutor(mp_context=get_context("spawn"), initializer=gc.disable)
        return self._pool.map(function, things, chunksize=AT_ONCE)
