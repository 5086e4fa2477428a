"""Reading JSON documents from elsewhere: limited in size, checked in full, refused in one line."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from capbench.documents.result import Result
from capbench.errors import BadDocument

MAX_BYTES = 16 * 2**20
MAX_DEPTH = 32
MAX_VALUES = 200_000
MAX_VALUES_IN_ONE = 10_000
"""Limit per list or object: bounds the validator's time."""
INTEGER_LIMIT = 2**63
NUMBER_LIMIT = 1e300
"""Sums of as many numbers as a document may hold stay finite."""
MAX_QUOTE = 80

M = TypeVar("M", bound=BaseModel)

# Matches a string to its end, closed or not, so that a scan never starts over and its time is linear.
STRING = re.compile(r'"(?:[^"\\]|\\.)*+"?', re.DOTALL)
NO_BRACKET = bytes(set(range(256)) - set(b"[]{}"))


def read_result(path: Path) -> Result:
    """Reads a result document; raises BadDocument with one line that says what is wrong and the remedy."""
    return read_document(path, Result)


def read_document(path: Path, model: type[M], remedy: str = "write it with `capbench run … --json`") -> M:
    """Reads a JSON file as a model: limited in size, depth and count, each key once, types not converted."""
    text = _read_text(path)
    try:
        return parse_strict(model, text)
    except ValidationError as error:
        raise BadDocument(f"{path}: {_first_error(error)}; {remedy}") from error
    except ValueError as error:
        raise BadDocument(f"{path}: {_short(str(error))}; {remedy}") from error


def parse_strict(model: type[M], text: str) -> M:
    """Parses JSON as a model, types not converted; raises ValueError, or pydantic's subclass of it."""
    check_json(text)
    return model.model_validate_json(text, strict=True)


def check_json(text: str) -> None:
    """Raises ValueError where a text is not JSON, is too deep or too long, repeats a key, or has a NaN or infinity."""
    _check_depth(text)
    value = json.loads(
        text,
        object_pairs_hook=_unique_keys,
        parse_constant=_refuse_constant,
        parse_float=_parse_float,
        parse_int=_parse_int,
    )
    # Values are separated by commas: with few of those there cannot be too many values.
    if text.count(",") >= MAX_VALUES_IN_ONE:
        _check_counts(value)


def _read_text(path: Path) -> str:
    """The text of a regular file; one that is too large is refused without reading it all."""
    try:
        if not path.is_file():
            raise BadDocument(f"{path}: no such file; name the JSON file of a result")
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise BadDocument(f"{path}: a document has at most {MAX_BYTES // 2**20} MiB; split it")
        return data.decode("utf-8")
    except (OSError, ValueError) as error:
        raise BadDocument(f"{path}: must be a readable file of UTF-8 text: {_short(str(error))}") from error


def _check_depth(text: str) -> None:
    """Refuses, before parsing, what would exhaust the stack of a recursive parser."""
    # Without a backslash every quote mark opens or closes a string, and splitting is much faster.
    outside = STRING.sub("", text) if "\\" in text else "".join(text.split('"')[::2])
    depth = 0
    for bracket in outside.encode().translate(None, NO_BRACKET):
        depth += 1 if bracket in b"[{" else -1
        if depth > MAX_DEPTH:
            raise ValueError(f"a document is nested at most {MAX_DEPTH} deep")


def _check_counts(value: Any) -> None:
    """Raises ValueError where a list, an object or the whole document has too many values."""
    n_values, queue = 0, [value]
    while queue:
        inner = queue.pop()
        children = inner.values() if isinstance(inner, dict) else inner if isinstance(inner, list) else ()
        if len(children) > MAX_VALUES_IN_ONE:
            raise ValueError(f"a list or object has at most {MAX_VALUES_IN_ONE:,} values, got {len(children):,}")
        n_values += len(children)
        if n_values > MAX_VALUES:
            raise ValueError(f"a document has at most {MAX_VALUES:,} values")
        queue.extend(children)


def _parse_int(text: str) -> int:
    value = int(text)
    if abs(value) >= INTEGER_LIMIT:
        raise ValueError(f"a whole number has at most 63 bits, got one of {value.bit_length()}")
    return value


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        ((repeated, _),) = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"each key may occur once, got {_short(repr(repeated))} twice")
    return found


def _refuse_constant(name: str) -> None:
    raise ValueError(f"numbers are finite, got {name}")


def _parse_float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"numbers are finite, got {_short(text)}")
    if abs(value) > NUMBER_LIMIT:
        raise ValueError(f"numbers are at most {NUMBER_LIMIT:g} in size, got {_short(text)}")
    return value


def _first_error(error: ValidationError) -> str:
    """The first error: the field, the rule, and what was got."""
    first = error.errors(include_url=False)[0]
    field = ".".join(str(part) for part in first["loc"]) or "the document"
    return f"{_short(field)}: {_short(first['msg'])}, got {_short(repr(first['input']))}"


def _short(text: str) -> str:
    return text if len(text) <= MAX_QUOTE else f"{text[: MAX_QUOTE - 1]}…"
