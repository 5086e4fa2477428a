"""The options of a run on the command line, generated from their one declaration in `measure.options`."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Literal, get_args, get_origin

import click
from annotated_types import Ge, Gt, Le
from click.core import ParameterSource
from pydantic.fields import FieldInfo

from capbench.cli import completion
from capbench.measure.options import RunOptions, check_options, flag_of, option_of

KEPT = "capbench.run_options"


def run_options(
    only: Collection[str] = tuple(RunOptions.model_fields), required: Collection[str] = ()
) -> Callable[[click.Command], click.Command]:
    """Adds options of a run to a command; `typed_options` returns what the user typed."""

    def add(command: click.Command) -> click.Command:
        fields = [(name, field) for name, field in RunOptions.model_fields.items() if name in only]
        command.params[:0] = [
            option for name, field in fields for option in _click_options(name, field, name in required)
        ]
        return command

    return add


def typed_options(ctx: click.Context, declared: RunOptions | None = None) -> RunOptions:
    """What a file declares, or the defaults, with what was typed on top."""
    return check_options({**(dict(declared) if declared else {}), **typed_values(ctx)})


def typed_values(ctx: click.Context) -> dict[str, Any]:
    """The options that the user typed, by field; where one was turned on and off, the last word counts."""
    values: dict[str, Any] = ctx.meta.get(KEPT, {})
    return values


def _click_options(name: str, field: FieldInfo, required: bool) -> list[click.Option]:
    """The option of a field, and the flag that turns it off if it has one."""
    negation = option_of(field).negation
    found = [_click_option(name, field, required)]
    if negation:
        helped = f"Turn {flag_of(name)} off where a file or a suite turns it on."
        flag = click.Option([f"no_{name}", negation], is_flag=True, expose_value=False, callback=_turn_off, help=helped)
        found.append(flag)
    return found


def _click_option(name: str, field: FieldInfo, required: bool) -> click.Option:
    option = option_of(field)
    settings: dict[str, Any] = {"metavar": option.metavar, "help": option.help, "required": required}
    if option.completes:
        settings["shell_complete"] = getattr(completion, option.completes)
    if option.bare:
        settings.update(is_flag=False, flag_value=option.bare)
    if field.annotation is bool:
        settings["is_flag"] = True
    elif isinstance(field.default, tuple):
        settings["multiple"] = True
    elif not field.is_required() and field.default is not None:
        settings.update(default=field.default, show_default=True)
    return click.Option([name, flag_of(name)], type=_click_type(field), expose_value=False, callback=_keep, **settings)


def _click_type(field: FieldInfo) -> click.ParamType[Any] | type:
    """The type that click checks: choices, numbers within their limits, or text."""
    if option_of(field).bare:
        return str
    annotation, limits = _without_none(field.annotation), list(field.metadata)
    if get_origin(annotation) is Literal:
        return click.Choice(get_args(annotation))
    if get_origin(annotation) is tuple:
        annotation = get_args(annotation)[0]
    if hasattr(annotation, "__metadata__"):  # the limits of an optional or repeated value are in its inner type
        inner = FieldInfo.from_annotation(annotation)
        annotation, limits = inner.annotation, [*limits, *inner.metadata]
    low = next((each for each in limits if isinstance(each, Ge | Gt)), None)
    high = next((each.le for each in limits if isinstance(each, Le)), None)
    if annotation not in (int, float) or (low is None and high is None):
        return annotation or str
    least = low.ge if isinstance(low, Ge) else low.gt if low else None
    range_type = click.IntRange if annotation is int else click.FloatRange
    return range_type(min=least, max=high, min_open=isinstance(low, Gt))  # type: ignore[arg-type]


def _without_none(annotation: Any) -> Any:
    """The type of an optional value."""
    types = [each for each in get_args(annotation) if each is not type(None)]
    return types[0] if type(None) in get_args(annotation) else annotation


def _keep(ctx: click.Context, option: click.Parameter, value: object) -> object:
    if ctx.get_parameter_source(str(option.name)) is not ParameterSource.DEFAULT:
        ctx.meta.setdefault(KEPT, {})[option.name] = value
    return value


def _turn_off(ctx: click.Context, flag: click.Parameter, value: bool) -> bool:
    if value:
        ctx.meta.setdefault(KEPT, {})[str(flag.name).removeprefix("no_")] = None
    return value
