"""Equal-parameter comparison: the width at which an architecture has a given number of parameters."""

from __future__ import annotations

import re
from collections.abc import Collection

from torch import nn

from capbench.contract.architecture import Architecture
from capbench.contract.shapes import TOLERANCE, is_near
from capbench.contract.task import Task
from capbench.engine.stack import Layout
from capbench.engine.trials import seeded
from capbench.errors import BadSetting, UnsupportedSignature
from capbench.registry.settings import Configured

MAX_WIDTH = 1 << 16
COUNT = re.compile(r"(\d+(?:\.\d+)?)([kKmM]?)")
NEIGHBOURS = 32
"""Widths tried on each side of the crossing, because some may not be allowed."""


def count_parameters(task: Task, architecture: Architecture) -> int:
    """Number of trained parameters of a pair; building its module raises the reason if they do not fit."""
    return count_trained(build_module(task, architecture))


def build_module(task: Task, architecture: Architecture) -> nn.Module:
    """A fresh module of a pair; raises the reason if they do not fit."""
    with seeded(0):
        return architecture.build(task.signature)


def count_trained(module: nn.Module) -> int:
    """Number of trained parameters of a module."""
    return sum(shape.numel() for shape in Layout.of(module).shapes)


def parse_count(text: str) -> int:
    """A number of parameters from text such as 4096, 10k or 1.5M."""
    match = COUNT.fullmatch(text.strip())
    count = round(float(match[1]) * {"": 1, "k": 1_000, "m": 1_000_000}[match[2].lower()]) if match else 0
    if count < 1:
        raise BadSetting(f"--params takes a count such as 4096, 10k or 1.5M, got {text!r}")
    return count


def shapes_near(
    task: Task, architecture: Configured[Architecture], target: int, kept: Collection[str] = ()
) -> list[Configured[Architecture]]:
    """The shapes within 5 % of the target that an architecture offers, or else one by its width; the first is typical.

    The fields in `kept`, which the user has set, stay as they are.
    """
    plugin = architecture.plugin
    # Which fields the user has set is what the architecture sees in `model_fields_set`.
    offered = type(plugin).model_construct(_fields_set=set(kept), **dict(plugin)).shapes(task.signature, target)
    shapes = [architecture.replaced(**dict(each)) for each in offered]
    suitable = [each for each in shapes if _keeps(each.plugin, plugin, kept) and _is_near(task, each, target)]
    return suitable or [match_parameters(task, architecture, target, kept)]


def _keeps(shape: Architecture, plugin: Architecture, kept: Collection[str]) -> bool:
    """Whether a shape has the same values in some fields."""
    return all(getattr(shape, name) == getattr(plugin, name) for name in kept)


def _is_near(task: Task, architecture: Configured[Architecture], target: int) -> bool:
    """Whether an architecture can be built with about so many parameters."""
    try:
        return is_near(count_parameters(task, architecture.plugin), target)
    except UnsupportedSignature:
        return False


def match_parameters(
    task: Task, architecture: Configured[Architecture], target: int, kept: Collection[str] = ()
) -> Configured[Architecture]:
    """The architecture with a free width chosen so that its count is within 5 % of the target."""
    name = architecture.plugin.name
    widths = architecture.plugin.widths(task.signature)
    fields = [field for field in widths if field not in kept]
    if not fields and _is_near(task, architecture, target):
        return architecture
    if not widths and type(architecture.plugin).shapes is not Architecture.shapes:
        raise BadSetting(
            f"{name} has no shape within {TOLERANCE:.0%} of {target:,} parameters on {task.name}; choose another size, "
            "or set its fields with --set arch.FIELD=VALUE"
        )
    if not widths:
        raise BadSetting(
            f"{name} names no width that --params could change on {task.name}; use --set arch.FIELD=VALUE, or return "
            "field names from its method widths(signature)"
        )
    if not fields:
        raise BadSetting(
            f"--params changes {' or '.join(widths)} of {name} on {task.name} and no field that is set, got all of "
            f"them set, with {count_parameters(task, architecture.plugin):,} parameters for {target:,}; leave one unset"
        )
    tried = []
    for field in fields:
        nearest = _nearest(task, architecture, field, target)
        if nearest is None:
            continue
        candidate, count = nearest
        if is_near(count, target):
            return candidate
        tried.append(f"{field}={getattr(candidate.plugin, field)} gives {count:,}")
    raise BadSetting(
        f"{name} cannot come within {TOLERANCE:.0%} of {target:,} parameters on {task.name} "
        f"({'; '.join(tried) or 'no width is allowed'}); change another field with --set"
    )


def _nearest(
    task: Task, architecture: Configured[Architecture], field: str, target: int
) -> tuple[Configured[Architecture], int] | None:
    """The architecture with the allowed value of one field whose count is nearest to the target, and that count."""
    crossing = _crossing(task, architecture, field, target)
    values = range(max(1, crossing - NEIGHBOURS), min(MAX_WIDTH, crossing + NEIGHBOURS) + 1)
    counted = [(value, _count(task, architecture, field, value)) for value in values]
    allowed = [(value, count) for value, count in counted if count is not None]
    if not allowed:
        return None
    value, count = min(allowed, key=lambda pair: abs(pair[1] - target))
    return architecture.replaced(**{field: value}), count


def _crossing(task: Task, architecture: Configured[Architecture], field: str, target: int) -> int:
    """The largest value whose count is within the target, by doubling and bisection: counts grow with the width."""

    def fits(value: int) -> bool:
        count = _count_near(task, architecture, field, value)
        return count is None or count <= target

    low, high = 1, 2
    while high < MAX_WIDTH and fits(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _count_near(task: Task, architecture: Configured[Architecture], field: str, value: int) -> int | None:
    """The count at a value, or at the nearest lower value that is allowed."""
    for lower in range(value, max(0, value - NEIGHBOURS), -1):
        count = _count(task, architecture, field, lower)
        if count is not None:
            return count
    return None


def _count(task: Task, architecture: Configured[Architecture], field: str, value: int) -> int | None:
    """Parameters at one value of a field; None where the architecture does not allow it."""
    try:
        return count_parameters(task, architecture.replaced(**{field: value}).plugin)
    except (BadSetting, UnsupportedSignature):
        return None
