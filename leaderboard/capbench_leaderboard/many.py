"""The same done to many things: in this process for a few, in several for thousands."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")

MANY = 1000
"""Things from which on other processes pay: each takes a second to start."""
AT_ONCE = 50


def map_many(function: Callable[[T], R], things: Sequence[T]) -> Iterator[R]:
    """What the function gives for each, in their order."""
    if len(things) < MANY:
        yield from map(function, things)
        return
    # Spawned, not forked: a fork in a process with threads may hang.
    with ProcessPoolExecutor(mp_context=get_context("spawn"), initializer=gc.disable) as pool:
        yield from pool.map(function, things, chunksize=AT_ONCE)


@contextmanager
def uncollected() -> Iterator[None]:
    """No search for cycles meanwhile: records have none, and going through thousands of them takes its time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def for_each(function: Callable[[T], None], things: Sequence[T]) -> None:
    """Calls the function with each."""
    for _ in map_many(function, things):
        pass
