"""Reading TOML files that a person writes: checked field by field, refused in one line."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Annotated, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from capbench.errors import BadDocument, UnknownName

StringTuple = Annotated[tuple[str, ...], Field(strict=False)]
"""A tuple of strings, which TOML gives as a list."""


class TomlModel(BaseModel):
    """Base of the parts of a TOML file: frozen, and closed to misspelt fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, strict=True)


D = TypeVar("D", bound=TomlModel)


def packaged_folder(package: str, name: str) -> Path:
    """A folder of TOML files that comes with a package."""
    return Path(str(files(package) / name))


def names_in_folder(folder: Path) -> list[str]:
    """The names of the TOML files in a folder, without their ending."""
    return sorted(path.stem for path in folder.glob("*.toml"))


def read_toml(source: str, path: Path, model: type[D]) -> D:
    """Reads a TOML file; raises BadDocument with one line that names the file (as `source`), the field and the fix."""
    try:
        return model.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except ValidationError as error:
        raise BadDocument(f"{source}: {_first_error(error, model)}") from error
    except (OSError, ValueError) as error:
        raise BadDocument(f"{source}: must be a readable TOML file: {error}") from error


def _first_error(error: ValidationError, model: type[TomlModel]) -> str:
    """The first error: the field, the rule, what was got, and for a misspelt field the nearest known one."""
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
    # Whole tables are not quoted: the message says which of their fields is meant.
    got = "" if isinstance(first["input"], dict | BaseModel) else f", got {first['input']!r}"
    return f"{field}: {reason}{got}" if field else f"{reason}{got}"


def _fields_at(model: type[TomlModel], location: tuple[int | str, ...]) -> list[str]:
    """The fields known at a location: of the model, of the models in one of its lists, or of the kind that is named."""
    models = [model]
    for step in location:
        found = [inner for outer in models for inner in _models_in(outer, step)]
        models = found or [each for each in models if _is_of_kind(each, step)] or models
    return list(dict.fromkeys(field for each in models for field in each.model_fields))


def _models_in(model: type[TomlModel], step: int | str) -> list[type[TomlModel]]:
    """The models in a field of a model."""
    field = model.model_fields.get(str(step))
    return [] if field is None else list(_models(field.annotation))


def _models(annotation: object) -> Iterator[type[TomlModel]]:
    if isinstance(annotation, type) and issubclass(annotation, TomlModel):
        yield annotation
    for part in get_args(annotation):
        yield from _models(part)


def _is_of_kind(model: type[TomlModel], step: int | str) -> bool:
    """Whether a step is the value of `kind` that selects this model among several."""
    return "kind" in model.model_fields and step in get_args(model.model_fields["kind"].annotation)
