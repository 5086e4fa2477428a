"""Rules for plugins of every kind: documented, quiet, and with a configuration that survives storage."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from io import StringIO
from typing import Any

from pydantic import ValidationError

from capbench.conformance.check import Check, Violation
from capbench.conformance.subject import Subject, call_every_method
from capbench.contract.plugin import Plugin


def documented(subject: Subject) -> None:
    """The class has a docstring and every field a description: `capbench describe` prints them."""
    cls = subject.cls
    if not (vars(cls).get("__doc__") or "").strip():
        raise Violation(
            f"a docstring for {cls.__name__}", "none", "say in one sentence what it is, below the class line"
        )
    undescribed = [name for name, field in cls.model_fields.items() if not field.description]
    if undescribed:
        raise Violation(
            "a description for every field",
            f"none for {', '.join(undescribed)}",
            f'{undescribed[0]}: … = Field(…, description="what it means")',
        )


def configuration(subject: Subject) -> None:
    """The plugin works without settings, its presets are valid, and a round trip through JSON does not change it."""
    cls = subject.cls
    for preset, values in {"default": {}, **cls.presets}.items():
        plugin = _configure(cls, preset, dict(values))
        text = plugin.model_dump_json()
        if cls.model_validate_json(text) != plugin:
            raise Violation(
                f"the same {cls.__name__} after a round trip through JSON",
                f"{text} reads back as a different configuration",
                "use fields that JSON can represent: numbers, strings, booleans, and tuples and Literals of them",
            )


def immutable(subject: Subject) -> None:
    """The configuration is frozen and hashable, and no function has a mutable default argument."""
    cls = subject.cls
    if not cls.model_config.get("frozen"):
        raise Violation(f"a frozen {cls.__name__}", "model_config sets frozen=False", "do not change model_config")
    plugin = cls()
    mutable = [name for name in cls.model_fields if not _is_hashable(getattr(plugin, name))]
    if mutable:
        value = getattr(plugin, mutable[0])
        raise Violation(
            "hashable fields, because they are part of the key under which trials are stored",
            f"{mutable[0]} is a mutable default, {type(value).__name__} {value!r}",
            f"use a tuple: {mutable[0]}: tuple[…, ...] = Field((…), description=…)",
        )
    for function, parameter, default in _mutable_arguments(cls):
        raise Violation(
            "no mutable default argument, which all models would share",
            f"{function}({parameter}={default!r})",
            f"use {parameter}=None and create a new {type(default).__name__} inside",
        )


def quiet(subject: Subject) -> None:
    """No method prints: stdout is reserved for capbench's output."""
    printed = StringIO()
    with redirect_stdout(printed):
        call_every_method(subject)
    if printed.getvalue():
        raise Violation(
            "no output", f"it prints {printed.getvalue()[:60]!r}", "remove the print, or use the logging module"
        )


CHECKS: tuple[Check[Subject], ...] = (documented, configuration, immutable, quiet)


def _configure(cls: type[Plugin], preset: str, values: dict[str, Any]) -> Plugin:
    try:
        return cls.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise Violation(
            f"{cls.__name__} to be valid with its {preset} settings",
            f"{'.'.join(map(str, first['loc']))}: {first['msg']}",
            "give every field a default, and keep presets within the fields' limits",
        ) from error


def _is_hashable(value: object) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


def _mutable_arguments(cls: type[Plugin]) -> Iterator[tuple[str, str, object]]:
    """Default arguments that are lists, dicts or sets, in the methods of all classes of the plugin's module."""
    module = sys.modules.get(cls.__module__)
    owners = [value for value in vars(module).values() if inspect.isclass(value)] if module else [cls]
    functions = [f for owner in owners if owner.__module__ == cls.__module__ for f in vars(owner).values()]
    for function in [f for f in functions if inspect.isfunction(f)]:
        for name, parameter in inspect.signature(function).parameters.items():
            if isinstance(parameter.default, list | dict | set):
                yield function.__qualname__, name, parameter.default
