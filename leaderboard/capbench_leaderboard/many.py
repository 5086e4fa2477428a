"""The same done to many things: in this process for a few, in several for thousands."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
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
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        yield from pool.map(function, things, chunksize=AT_ONCE)


def for_each(function: Callable[[T], None], things: Sequence[T]) -> None:
    """Calls the function with each."""
    for _ in map_many(function, things):
        pass
