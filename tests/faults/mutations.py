"""Mutated documents: a valid one with a few wrong bytes, or with a few values that are not what they should be."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

from tests.faults.hostile import HOSTILE

WRONG_VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 10**30, -(10**18), 1e300, -1e-300, 0.5, "", "8", [], {}, [[]], {"a": 1}, [None] * 50, *HOSTILE,
)  # fmt: skip
SNIPPETS = (
    b"NaN",
    b"-Infinity",
    b"1e999",
    b'"',
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b":",
    b"\x00",
    b"\xff",
    b"\\ud800",
    b"9" * 5000,
)


def mutated(document: str, chance: random.Random) -> bytes:
    """The document, changed in one of several ways, one to four times."""
    change = chance.choice((_bytes_changed, _bytes_changed, _values_changed, _values_changed, _values_changed, _nested))
    return change(document, chance)


def _bytes_changed(document: str, chance: random.Random) -> bytes:
    data = bytearray(document.encode())
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(data))
        chance.choice((_flip, _cut, _insert, _double))(data, at, chance)
    return bytes(data)


def _flip(data: bytearray, at: int, chance: random.Random) -> None:
    data[at] ^= 1 << chance.randrange(8)


def _cut(data: bytearray, at: int, chance: random.Random) -> None:
    del data[at : at + chance.choice((1, 5, 500, len(data)))]
    data.extend(b" ")


def _insert(data: bytearray, at: int, chance: random.Random) -> None:
    data[at:at] = chance.choice(SNIPPETS)


def _double(data: bytearray, at: int, chance: random.Random) -> None:
    data[at:at] = data[at : at + chance.randrange(1, 400)]


def _values_changed(document: str, chance: random.Random) -> bytes:
    value = json.loads(document)
    for _ in range(chance.randint(1, 3)):
        chance.choice(list(_places(value)))(chance)
    return json.dumps(value).encode()


def _places(value: Any) -> list[Callable[[random.Random], None]]:
    """A change for each place of a document: another value, no value, or one more."""
    found: list[Callable[[random.Random], None]] = []
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        found.append(lambda chance, key=key: _change(value, key, chance))
        found += _places(inner)
    return found


def _change(container: Any, key: Any, chance: random.Random) -> None:
    kind = chance.randrange(6)
    if kind == 0 and isinstance(container, dict):
        container.pop(key, None)
    elif kind == 1 and isinstance(container, dict):
        container[chance.choice(HOSTILE)] = chance.choice(WRONG_VALUES)
    elif isinstance(container, dict) or key < len(container):
        container[key] = chance.choice(WRONG_VALUES)


def _nested(document: str, chance: random.Random) -> bytes:
    depth = chance.choice((10, 1_000, 100_000))
    return document.replace('"params":{', '"params":{"deep":' + "[" * depth + "]" * depth + ",", 1).encode()


EXTREME_WHOLE = (-(2**63) + 1, -1, 0, 1, 2, 2**31, 2**53, 2**63 - 1)
EXTREME_NUMBERS = (-1e308, -1e15, -1.0, -1e-300, -0.0, 0.0, 5e-324, 1e-300, 0.5, 1.0, 1e15, 1e300, 1e308)


def plausible(document: str, chance: random.Random) -> bytes:
    """The document with up to eight values replaced by extreme ones of the same type: most of them pass reading."""
    value = json.loads(document)
    for _ in range(chance.randint(1, 8)):
        _change_somewhere(value, chance)
    return json.dumps(value).encode()


def _change_somewhere(value: Any, chance: random.Random) -> None:
    """Walks down at random, so that a field of the whole document is as likely as all its trials together."""
    key: Any = None
    while isinstance(value, dict | list) and value:
        container, key = value, chance.choice(list(value) if isinstance(value, dict) else range(len(value)))
        value = container[key]
        if isinstance(value, dict | list) and chance.random() < 0.1:
            break
    if key is not None:
        container[key] = _extreme(value, chance)


def _extreme(value: Any, chance: random.Random) -> Any:
    if chance.random() < 0.1:
        return None
    if isinstance(value, list):
        return chance.choice(([], value[:1], value + value, value[::-1], value[1:]))
    if isinstance(value, bool):
        return not value
    kinds = ((int, EXTREME_WHOLE), (float, EXTREME_NUMBERS), (str, HOSTILE))
    return chance.choice(next((found for kind, found in kinds if isinstance(value, kind)), ({},)))
