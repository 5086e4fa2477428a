"""Rules for plugins of every kind: documented, quiet, with a configuration that can be stored and read again."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from io import StringIO
from typing import Any

from pydantic import ValidationError

from capbench.conformance.exercise import exercise
from capbench.conformance.outcome import Check, Violation
from capbench.conformance.subject import Subject
from capbench.plugin import Plugin


def documented(subject: Subject) -> None:
    """The class has a docstring, and every field a description: `capbench describe` prints them."""
    cls = subject.cls
    if not (vars(cls).get("__doc__") or "").strip():
        raise Violation(f"a docstring of {cls.__name__}", "none", "say in a sentence what it is, under the class line")
    silent = [name for name, field in cls.model_fields.items() if not field.description]
    if silent:
        raise Violation(
            "a description of every field",
            f"none for {', '.join(silent)}",
            f'{silent[0]}: … = Field(…, description="what it means")',
        )


def configuration(subject: Subject) -> None:
    """The plugin works without settings, its presets are valid, and it is the same after a round trip through JSON."""
    cls = subject.cls
    for preset, values in {"default": {}, **cls.presets}.items():
        plugin = _instance(cls, preset, dict(values))
        text = plugin.model_dump_json()
        if cls.model_validate_json(text) != plugin:
            raise Violation(
                f"the same {cls.__name__} after a round trip through JSON",
                f"{text} reads back as something else",
                "use fields that JSON can hold: numbers, strings, booleans, tuples and Literals of them",
            )


def immutable(subject: Subject) -> None:
    """The configuration is frozen and hashable, and no function keeps a mutable default between calls."""
    cls = subject.cls
    if not cls.model_config.get("frozen"):
        raise Violation(f"a frozen {cls.__name__}", "model_config sets frozen=False", "leave model_config alone")
    plugin = cls()
    mutable = [name for name in cls.model_fields if not _is_hashable(getattr(plugin, name))]
    if mutable:
        value = getattr(plugin, mutable[0])
        raise Violation(
            "fields that can be hashed, as trials are stored by them",
            f"{mutable[0]} is a mutable default, {type(value).__name__} {value!r}",
            f"use a tuple: {mutable[0]}: tuple[…, ...] = Field((…), description=…)",
        )
    for place, parameter, default in _mutable_arguments(cls):
        raise Violation(
            "no mutable default argument, which all models would share",
            f"{place}({parameter}={default!r})",
            f"use {parameter}=None and make a new {type(default).__name__} inside",
        )


def quiet(subject: Subject) -> None:
    """Nothing is printed at work: stdout belongs to the answer."""
    printed = StringIO()
    with redirect_stdout(printed):
        exercise(subject)
    if printed.getvalue():
        raise Violation(
            "no output", f"it prints {printed.getvalue()[:60]!r}", "remove the print, or use the logging module"
        )


CHECKS: tuple[Check[Subject], ...] = (documented, configuration, immutable, quiet)


def _instance(cls: type[Plugin], preset: str, values: dict[str, Any]) -> Plugin:
    try:
        return cls.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise Violation(
            f"{cls.__name__} to be valid under its {preset} settings",
            f"{'.'.join(map(str, first['loc']))}: {first['msg']}",
            "give every field a default, and presets that keep to the fields' limits",
        ) from error


def _is_hashable(value: object) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


def _mutable_arguments(cls: type[Plugin]) -> Iterator[tuple[str, str, object]]:
    """Defaults that are lists, dicts or sets, in the functions and methods of the class's module."""
    module = sys.modules.get(cls.__module__)
    owners = [value for value in vars(module).values() if inspect.isclass(value)] if module else [cls]
    functions = [f for owner in owners if owner.__module__ == cls.__module__ for f in vars(owner).values()]
    for function in [f for f in functions if inspect.isfunction(f)]:
        for name, parameter in inspect.signature(function).parameters.items():
            if isinstance(parameter.default, list | dict | set):
                yield function.__qualname__, name, parameter.default
