"""The options of `capbench run`, lent to commands that make many runs."""

from __future__ import annotations

from collections.abc import Callable, Collection
from copy import copy
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from capbench.cli.run_command import run_command

if TYPE_CHECKING:
    from capbench.options import RunOptions

NOT_LENT = ("as_json", "plot", "profile")
"""What a command does with the answer is its own."""
KEPT = "capbench.run_words"


def lend_run_options(but: Collection[str] = ()) -> Callable[[click.Command], click.Command]:
    """Adds the options of a run to a command, but for some; `run_options` tells what was typed."""

    def lend(command: click.Command) -> click.Command:
        lent = (option for option in run_command.params if option.name not in {*NOT_LENT, *but})
        command.params.extend(_lent(option) for option in lent)
        return command

    return lend


def run_options(ctx: click.Context, declared: RunOptions | None) -> RunOptions:
    """What a file declares, or the defaults, with what was typed on top."""
    from capbench.errors import BadSetting
    from capbench.options import RunOptions

    words: dict[str, Any] = ctx.meta.get(KEPT, {})
    known = {field.name for field in fields(RunOptions)}
    typed = {name: value for name, value in words.items() if name in known and _is_typed(ctx, name)}
    if declared is None and not {"task", "arch"} <= set(typed):
        raise BadSetting("capbench sweep takes a .toml file, or --task and --arch")
    return replace(declared, **typed) if declared else RunOptions(**typed)


def _lent(option: click.Parameter) -> click.Parameter:
    """A copy that is never required and goes to the context instead of the function's arguments."""
    own = copy(option)
    own.required, own.expose_value, own.callback = False, False, _keep
    return own


def _keep(ctx: click.Context, option: click.Parameter, value: object) -> object:
    ctx.meta.setdefault(KEPT, {})[option.name] = value
    return value


def _is_typed(ctx: click.Context, name: str) -> bool:
    return ctx.get_parameter_source(name) is not ParameterSource.DEFAULT
