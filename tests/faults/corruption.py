"""Damage to the bytes of a store's file, as disks and interrupted copies do it."""

from __future__ import annotations

import random
from collections.abc import Callable

PAGE = 4096


def corrupted(data: bytes, chance: random.Random) -> bytes:
    """The file with one kind of damage."""
    damage: Callable[[bytearray, random.Random], None] = chance.choice(
        (_truncate, _flip, _zero, _swap, _random, _header)
    )
    changed = bytearray(data)
    damage(changed, chance)
    return bytes(changed)


def _truncate(data: bytearray, chance: random.Random) -> None:
    del data[chance.randrange(1, len(data)) :]


def _flip(data: bytearray, chance: random.Random) -> None:
    for _ in range(chance.choice((1, 1, 5, 50))):
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)


def _zero(data: bytearray, chance: random.Random) -> None:
    start = chance.randrange(len(data))
    size = min(chance.choice((1, 100, PAGE, 3 * PAGE)), len(data) - start)
    data[start : start + size] = bytes(size)


def _swap(data: bytearray, chance: random.Random) -> None:
    one, other = (chance.randrange(len(data) // PAGE) * PAGE for _ in range(2))
    data[one : one + PAGE], data[other : other + PAGE] = data[other : other + PAGE], data[one : one + PAGE]


def _random(data: bytearray, chance: random.Random) -> None:
    for _ in range(chance.choice((1, 1, 4))):
        start = chance.randrange(len(data) // PAGE) * PAGE
        data[start : start + PAGE] = chance.randbytes(PAGE)


def _header(data: bytearray, chance: random.Random) -> None:
    """The file's first hundred bytes: page size, version numbers, size in pages."""
    data[chance.randrange(100)] = chance.randrange(256)
