"""A map over many items: in this process for a few, in several processes for thousands."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")

MIN_PARALLEL_ITEMS = 1000
"""Below this, starting processes (about a second each) costs more than it saves."""
CHUNK_SIZE = 50


class ProcessPool:
    """Starts processes at the first map that is large enough, and stops them at the end of the `with` block.

    Garbage collection is off in the meantime: records have no reference cycles, and scanning thousands takes long.
    """

    def __init__(self) -> None:
        self._pool: ProcessPoolExecutor | None = None
        self._had_gc = gc.isenabled()

    def __enter__(self) -> ProcessPool:
        gc.disable()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=kind is not None)
        if self._had_gc:
            gc.enable()

    def map(self, function: Callable[[T], R], items: Sequence[T]) -> Iterator[R]:
        """The function's results, in the order of the items."""
        if len(items) < MIN_PARALLEL_ITEMS:
            return map(function, items)
        if self._pool is None:
            # Spawned, not forked: a fork in a process with threads may hang.
            self._pool = ProcessPoolExecutor(mp_context=get_context("spawn"), initializer=gc.disable)
        return self._pool.map(function, items, chunksize=CHUNK_SIZE)
