"""Variants: a task with one of its choices made otherwise, for bounds that speak of no task as it comes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, get_args, get_origin

from capbench.errors import BadSetting
from capbench.settings import Configured
from capbench.task import Task


def variants(task: Configured[Task]) -> Iterator[Configured[Task]]:
    """The task with each yes-or-no or named choice changed, one at a time, where it allows that."""
    for name, field in type(task.plugin).model_fields.items():
        for value in _choices(field.annotation):
            if value == getattr(task.plugin, name):
                continue
            try:
                yield task.replaced(**{name: value})
            except BadSetting:
                continue


def _choices(annotation: object) -> tuple[object, ...]:
    if annotation is bool:
        return (False, True)
    return get_args(annotation) if get_origin(annotation) is Literal else ()
