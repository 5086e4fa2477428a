"""Reductions: sums, largest elements, softmax, and running sums along axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Node

from capbench.engine.codegen.elementwise import EXPENSIVE, literal
from capbench.engine.codegen.kernels import (
    Arguments,
    Handler,
    Lowering,
    axis_of,
    dropped,
    loop_heads,
    new_value,
    place,
    product,
    storage_of,
    traced_tensor,
)
from capbench.engine.codegen.values import Body, CannotCompile, Index, Value, stored

REDUCTIONS = {
    "sum": ("0", "{acc} + {x}"),
    "prod": ("1", "{acc} * {x}"),
    "amax": ("-inf", "larger({acc}, {x})"),
    "amin": ("inf", "smaller({acc}, {x})"),
    "any": ("0", "{acc} | {x}"),
    "all": ("1", "{acc} & {x}"),
}
"""The start and the step of each reduction."""


def _reduced_axes(value: Value, dims: Any) -> list[int]:
    if dims is None or dims == []:
        return list(range(len(value.shape)))
    return [axis_of(value, dim) for dim in ([dims] if isinstance(dims, int) else dims)]


def lower_reduction(name: str) -> Handler:
    """One of the reductions that combine elements two by two."""

    def handle(lowering: Lowering, node: Node, a: Arguments) -> Value:
        value: Value = a["self"]
        axes = _reduced_axes(value, a.get("dim"))
        dtype = torch.bool if name in ("any", "all") else traced_tensor(node).dtype
        return reduce(lowering, value, axes, bool(a.get("keepdim", False)), name, dtype)

    return handle


def lower_mean(lowering: Lowering, node: Node, a: Arguments) -> Value:
    """The mean over some axes."""
    value: Value = a["self"]
    axes = _reduced_axes(value, a.get("dim"))
    total = reduce(lowering, value, axes, bool(a.get("keepdim", False)), "sum", traced_tensor(node).dtype)
    count = product([value.shape[axis] for axis in axes])

    def load(body: Body, at: Sequence[Index]) -> str:
        return body.let(total.c_type, f"{total.load(body, at)} / all_{total.c_type}({count})")

    return Value(total.shape, total.dtype, load, cost=EXPENSIVE)


def reduce(
    lowering: Lowering, value: Value, axes: Sequence[int], keepdim: bool, name: str, dtype: torch.dtype
) -> Value:
    """A reduction over some axes, as one kernel."""
    kept_shape = tuple(1 if axis in axes else size for axis, size in enumerate(value.shape))
    result = new_value(lowering, kept_shape, dtype)
    assert result.storage is not None
    start, step = REDUCTIONS[name]
    at, heads = loop_heads(kept_shape, "i")
    inner_shape = tuple(size if axis in axes else 1 for axis, size in enumerate(value.shape))
    inner_at, inner_heads = loop_heads(inner_shape, "j")
    body = Body()
    element = value.load(body, [i + j for i, j in zip(at, inner_at, strict=True)])
    lines = [
        *heads,
        f"{result.c_type} acc = {constant_text(start, result)};",
        *inner_heads,
        *body.lines,
        f"acc = {step.format(acc='acc', x=f'to_{result.c_type}({element})')};",
        "}" * len(inner_heads),
        f"{result.storage.array}[{place(at, result.storage.strides)}] = acc;",
        "}" * len(heads),
    ]
    lowering.emit(lines)
    return result if keepdim else dropped(result, axes)


def constant_text(number: str, like: Value) -> str:
    """A number as an element of a value's type."""
    return f"all_{like.c_type}({literal(float(number), like.dtype)})"


def lower_best(compare: str, returns: Sequence[str]) -> Handler:
    """The largest or smallest element along an axis, and the first place where it is."""

    def handle(lowering: Lowering, node: Node, a: Arguments) -> Any:
        value: Value = a["self"]
        dim = a.get("dim")
        if dim is None and returns[0] == "values":
            return reduce(
                lowering, value, range(len(value.shape)), False, "amax" if compare == ">" else "amin", value.dtype
            )
        if dim is None:
            value, dim = _flattened(lowering, value), 0
        axis = axis_of(value, dim) if value.shape else 0
        if not value.shape:
            raise CannotCompile("the largest of a single number")
        found = _emit_best(lowering, value, axis, compare)
        if not a.get("keepdim", False):
            found = {name: dropped(part, [axis]) for name, part in found.items()}
        if len(returns) == 1:
            return found[returns[0]]
        return [found[name] for name in returns]

    return handle


def _flattened(lowering: Lowering, value: Value) -> Value:
    value = lowering.copied(value)
    assert value.storage is not None
    return stored(value.storage.array, (value.numel,), value.dtype, (1,))


def _emit_best(lowering: Lowering, value: Value, axis: int, compare: str) -> dict[str, Value]:
    shape = tuple(1 if k == axis else size for k, size in enumerate(value.shape))
    values, indices = new_value(lowering, shape, value.dtype), new_value(lowering, shape, torch.int64)
    at, heads = loop_heads(shape, "i")
    inner = Index(0, {"j": 1})
    body, first = Body(), Body()
    start = value.load(first, at)
    element = value.load(body, [inner if k == axis else i for k, i in enumerate(at)])
    assert values.storage is not None
    assert indices.storage is not None
    where = place(at, values.storage.strides)
    lines = [
        *heads,
        f"{value.c_type} best;",
        "{",
        *first.lines,
        f"best = {start};",
        "}",
        "vi index = all_vi(0);",
        f"for (long j = 1; j < {value.shape[axis]}; j++) {{",
        *body.lines,
        f"const vb is_better = mask({element} {compare} best) | (is_nan({element}) & ~is_nan(best));",
        f"best = choose(is_better, {element}, best);",
        "index = choose(is_better, all_vi(j), index);",
        "}",
        f"{values.storage.array}[{where}] = best;",
        f"{indices.storage.array}[{where}] = index;",
        "}" * len(heads),
    ]
    lowering.emit(lines)
    return {"values": values, "indices": indices}


def lower_softmax(is_log: bool) -> Handler:
    """The softmax along an axis, or its logarithm."""

    def handle(lowering: Lowering, node: Node, a: Arguments) -> Value:
        value = lowering.materialised(a["self"])
        axis = axis_of(value, a["dim"])
        top = reduce(lowering, value, [axis], True, "amax", value.dtype)

        def shifted(body: Body, at: Sequence[Index]) -> str:
            own = [Index() if k == axis else i for k, i in enumerate(at)]
            return body.let(value.c_type, f"v_exp({value.load(body, at)} - {top.load(body, own)})")

        powers = Value(value.shape, value.dtype, shifted, cost=EXPENSIVE)
        if not is_log:
            powers = lowering.materialised(powers)
        total = reduce(lowering, powers, [axis], True, "sum", value.dtype)
        if not is_log:
            return _normalised(powers, total, axis, "{x} / {total}")

        def log_total(body: Body, at: Sequence[Index]) -> str:
            return body.let(value.c_type, f"v_log({total.load(body, at)}) + {top.load(body, at)}")

        whole = lowering.materialised(Value(total.shape, total.dtype, log_total))
        return _normalised(value, whole, axis, "{x} - {total}")

    return handle


def _normalised(value: Value, total: Value, axis: int, form: str) -> Value:
    def load(body: Body, at: Sequence[Index]) -> str:
        own = [Index() if k == axis else i for k, i in enumerate(at)]
        return body.let(value.c_type, form.format(x=value.load(body, at), total=total.load(body, own)))

    return Value(value.shape, value.dtype, load, cost=EXPENSIVE if "/" in form else 1)


def lower_cumsum(lowering: Lowering, node: Node, a: Arguments) -> Value:
    """Running sums along an axis."""
    value: Value = a["self"]
    axis, dtype = axis_of(value, a["dim"]), traced_tensor(node).dtype
    result = new_value(lowering, value.shape, dtype)
    at, heads = loop_heads(tuple(1 if k == axis else size for k, size in enumerate(value.shape)), "i")
    inner = [Index(0, {"j": 1}) if k == axis else i for k, i in enumerate(at)]
    body = Body()
    element = value.load(body, inner)
    lines = [
        *heads,
        f"{result.c_type} acc = {{}};",
        f"for (long j = 0; j < {value.shape[axis]}; j++) {{",
        *body.lines,
        f"acc += to_{result.c_type}({element});",
        f"{storage_of(result).array}[{place(inner, storage_of(result).strides)}] = acc;",
        "}",
        "}" * len(heads),
    ]
    lowering.emit(lines)
    return result
