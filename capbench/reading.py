"""Reading what strangers send: a result document is data, checked in full before anything is believed of it."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from pathlib import Path, PureWindowsPath
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from capbench.errors import BadDocument
from capbench.results import Result

MOST_BYTES = 16 * 2**20
MOST_DEPTH = 32
MOST_VALUES = 200_000
MOST_IN_ONE = 10_000
"""Values of one list or object: every wrong one costs the validator a message, so this bounds its time."""
LARGEST_WHOLE_NUMBER = 2**63
LONGEST_QUOTE = 80

M = TypeVar("M", bound=BaseModel)

# A string is always taken to its end, closed or not, so that a scan never starts over: linear in any input.
STRING = re.compile(r'"(?:[^"\\]|\\.)*+"?', re.DOTALL)
NO_BRACKET = bytes(set(range(256)) - set(b"[]{}"))


def read_result(path: Path) -> Result:
    """The result document in a file, or one line that says what is wrong with it and what would be right."""
    return read_document(path, Result)


def read_document(path: Path, model: type[M], remedy: str = "write it with `capbench run … --json`") -> M:
    """A JSON file as a model: bounded in size, depth and count, each key once, every field of its own type."""
    text = _text(path)
    try:
        check_json(text)
        return model.model_validate_json(text, strict=True)
    except ValidationError as error:
        raise BadDocument(f"{path}: {_first(error)}; {remedy}") from error
    except ValueError as error:
        raise BadDocument(f"{path}: {_short(str(error))}; {remedy}") from error


def check_json(text: str) -> None:
    """Raises ValueError where a text is not JSON of reasonable depth and count with each key once."""
    _check_depth(text)
    value = json.loads(
        text,
        object_pairs_hook=_each_key_once,
        parse_constant=_no_constant,
        parse_float=_finite,
        parse_int=_whole,
    )
    # Between two values stands a comma: with few of them there cannot be too many values anywhere.
    if text.count(",") >= MOST_IN_ONE:
        _check_counts(value)


def inside(folder: Path, name: str) -> Path:
    """The file of that name under a folder; a name that leads out of it is refused, by links too."""
    read = PureWindowsPath(name)  # splits at / and \, and knows drives
    path = folder.joinpath(*read.parts)
    if not read.parts or read.anchor or ".." in read.parts or not _lies_in(folder, path):
        raise BadDocument(f"a file named in a document must lie in the document's folder, got {_short(repr(name))}")
    return path


def _lies_in(folder: Path, path: Path) -> bool:
    try:
        return path.resolve().is_relative_to(folder.resolve())
    except (OSError, RuntimeError, ValueError):  # a loop of links, a NUL, a name too long
        return False


def _text(path: Path) -> str:
    """A regular file's text, refused beyond the largest size without reading it all."""
    try:
        if not path.is_file():
            raise BadDocument(f"{path}: no such file; name the JSON file of a result")
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
        if len(data) > MOST_BYTES:
            raise BadDocument(f"{path}: a document has at most {MOST_BYTES // 2**20} MiB; split it")
        return data.decode("utf-8")
    except (OSError, ValueError) as error:
        raise BadDocument(f"{path}: must be a readable file of UTF-8 text: {_short(str(error))}") from error


def _check_depth(text: str) -> None:
    """Before parsing: a parser that recurses would die of what this refuses."""
    # Without a backslash every quote opens or closes a string, and splitting is much quicker.
    outside = STRING.sub("", text) if "\\" in text else "".join(text.split('"')[::2])
    depth = 0
    for bracket in outside.encode().translate(None, NO_BRACKET):
        depth += 1 if bracket in b"[{" else -1
        if depth > MOST_DEPTH:
            raise ValueError(f"a document is nested at most {MOST_DEPTH} deep")


def _check_counts(value: Any) -> None:
    """Raises where a list or object, or the whole, has more values than a document needs."""
    n_values, queue = 0, [value]
    while queue:
        inner = queue.pop()
        children = inner.values() if isinstance(inner, dict) else inner if isinstance(inner, list) else ()
        if len(children) > MOST_IN_ONE:
            raise ValueError(f"a list or object has at most {MOST_IN_ONE:,} values, got {len(children):,}")
        n_values += len(children)
        if n_values > MOST_VALUES:
            raise ValueError(f"a document has at most {MOST_VALUES:,} values")
        queue.extend(children)


def _whole(text: str) -> int:
    value = int(text)
    if abs(value) >= LARGEST_WHOLE_NUMBER:
        raise ValueError(f"a whole number has at most 63 bits, got one of {value.bit_length()}")
    return value


def _each_key_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        ((twice, _),) = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"each key stands once, got {_short(repr(twice))} twice")
    return found


def _no_constant(name: str) -> None:
    raise ValueError(f"numbers are finite, got {name}")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"numbers are finite, got {_short(text)}")
    return value


def _first(error: ValidationError) -> str:
    """The first thing wrong: which field, the rule, and what stands there."""
    first = error.errors(include_url=False)[0]
    field = ".".join(str(part) for part in first["loc"]) or "the document"
    return f"{_short(field)}: {_short(first['msg'])}, got {_short(repr(first['input']))}"


def _short(text: str) -> str:
    return text if len(text) <= LONGEST_QUOTE else f"{text[: LONGEST_QUOTE - 1]}…"
