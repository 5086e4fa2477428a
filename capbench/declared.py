"""Declared files: TOML that a person writes, checked field by field, refused in one line."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import TypeVar, get_args

from pydantic import BaseModel, ConfigDict, ValidationError

from capbench.errors import BadDocument, UnknownName


class Declared(BaseModel):
    """Base of what stands in a declared file: frozen, and closed to misspelt fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, strict=True)


D = TypeVar("D", bound=Declared)


def read_declared(source: str, path: Path, model: type[D]) -> D:
    """What a file declares, or one line that names the file (as `source`), the field and the fix."""
    try:
        return model.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except ValidationError as error:
        raise BadDocument(f"{source}: {_first(error, model)}") from error
    except (OSError, ValueError) as error:
        raise BadDocument(f"{source}: must be a readable TOML file: {error}") from error


def _first(error: ValidationError, model: type[Declared]) -> str:
    """The first thing wrong: the field, the rule, what was got, and for a misspelt field the nearest known one."""
    found = error.errors(include_url=False)
    # A misspelt field is often the reason why another is missing.
    first = next((each for each in found if each["type"] == "extra_forbidden"), found[0])
    field = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        known = _fields_at(model, first["loc"][:-1])
        return f"{field}: {UnknownName.among('field', str(first['loc'][-1]), known, ', '.join(known))}"
    if first["type"] == "missing":
        return f"{field}: is required; add it"
    reason = first["msg"].removeprefix("Value error, ")
    got = "" if first["type"] == "value_error" else f", got {first['input']!r}"
    return f"{field}: {reason}{got}" if field else f"{reason}{got}"


def _fields_at(model: type[Declared], place: tuple[int | str, ...]) -> list[str]:
    """The fields known at a place: of the model, or of the models in one of its lists."""
    for step in place:
        if isinstance(step, str) and step in model.model_fields:
            inner = get_args(model.model_fields[step].annotation)
            model = next((each for each in inner if isinstance(each, type) and issubclass(each, Declared)), model)
    return list(model.model_fields)
