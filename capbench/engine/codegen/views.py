"""Operations that arrange elements: views, constants, and tensors put together from others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch.fx import Node

from capbench.engine.codegen.elementwise import constant, elementwise
from capbench.engine.codegen.kernels import (
    Arguments,
    Lowering,
    axis_of,
    new_value,
    sliced,
    strided,
    traced_tensor,
    write_into,
)
from capbench.engine.codegen.values import (
    Body,
    CannotCompile,
    Index,
    Shape,
    Value,
    contiguous_strides,
    stored,
    vector_text,
    view_strides,
)


def lower_same(_: Lowering, node: Node, a: Arguments) -> Value:
    """Operations that return their input: copies, since nothing is changed in place."""
    value: Value = a["self"]
    return value


def lower_copy(lowering: Lowering, node: Node, a: Arguments) -> Value:
    """Elements of another tensor, in the type and shape of this one."""
    return elementwise("_to_copy", node, traced_tensor(node), [lowering.cheap(a["src"], a["self"].shape)], {})


def lower_view(lowering: Lowering, node: Node, a: Arguments) -> Value:
    """The same elements in another shape: copied only where their strides do not allow it."""
    value: Value = a["self"]
    wanted = tuple(traced_tensor(node).shape)
    if value.storage is None and _without_ones(value.shape) == _without_ones(wanted):
        return _squeezed(value, wanted)
    value = lowering.materialised(value)
    strides = view_strides(value.shape, value.storage.strides, wanted) if value.storage else None
    if strides is None:
        value = lowering.copied(value)
        strides = contiguous_strides(wanted)
    assert value.storage is not None
    return stored(value.storage.array, wanted, value.dtype, strides, value.storage.offset, value.storage.is_uniform)


def _without_ones(shape: Shape) -> list[int]:
    return [size for size in shape if size != 1]


def _squeezed(value: Value, wanted: Shape) -> Value:
    """A value with axes of size one added or removed."""

    def index(at: Sequence[Index]) -> list[Index]:
        own = iter([i for i, size in zip(at, wanted, strict=True) if size != 1])
        return [Index() if size == 1 else next(own) for size in value.shape]

    return value.reindexed(wanted, index)


def lower_permute(lowering: Lowering, node: Node, a: Arguments) -> Value:
    """Axes in another order."""
    value: Value = a["self"]
    order = [axis_of(value, dim) for dim in a["dims"]]
    shape = tuple(value.shape[axis] for axis in order)
    if value.storage is not None:
        return strided(value, shape, tuple(value.storage.strides[axis] for axis in order), value.storage.offset)
    inverse = [order.index(axis) for axis in range(len(order))]
    return value.reindexed(shape, lambda at: [at[axis] for axis in inverse])


def lower_transpose(lowering: Lowering, node: Node, a: Arguments) -> Value:
    """Two axes exchanged."""
    value: Value = a["self"]
    order = [*range(len(value.shape))]
    one, other = axis_of(value, a["dim0"]), axis_of(value, a["dim1"])
    order[one], order[other] = other, one
    return lower_permute(lowering, node, {"self": value, "dims": order})


def lower_expand(lowering: Lowering, node: Node, a: Arguments) -> Value:
    """Axes of size one repeated."""
    value: Value = a["self"]
    shape = tuple(traced_tensor(node).shape)
    value = lowering.cheap(value, shape)
    n_new = len(shape) - len(value.shape)
    if value.storage is not None:
        own = zip(value.shape, value.storage.strides, shape[n_new:], strict=True)
        strides = (0,) * n_new + tuple(0 if size == 1 and wanted != 1 else stride for size, stride, wanted in own)
        return strided(value, shape, strides, value.storage.offset)
    return value.reindexed(
        shape, lambda at: [Index() if size == 1 else i for i, size in zip(at[n_new:], value.shape, strict=True)]
    )


def lower_slice(lowering: Lowering, node: Node, a: Arguments) -> Value:
    """A range along an axis."""
    value: Value = a["self"]
    axis, step, size = axis_of(value, a.get("dim", 0)), a.get("step", 1), value.shape[axis_of(value, a.get("dim", 0))]
    start = a.get("start") or 0
    start = max(0, min(size, start + size if start < 0 else start))
    return sliced(value, axis, start, step, tuple(traced_tensor(node).shape))


def lower_select(lowering: Lowering, node: Node, a: Arguments) -> Value:
    """One place along an axis."""
    value: Value = a["self"]
    axis = axis_of(value, a["dim"])
    number = a["index"] + value.shape[axis] if a["index"] < 0 else a["index"]
    shape = tuple(traced_tensor(node).shape)
    if value.storage is not None:
        strides = value.storage.strides
        offset = value.storage.offset + number * strides[axis]
        return strided(value, shape, (*strides[:axis], *strides[axis + 1 :]), offset)
    return value.reindexed(shape, lambda at: [*at[:axis], Index(number), *at[axis:]])


def lower_split(lowering: Lowering, node: Node, a: Arguments) -> list[Value]:
    """Ranges of given sizes along an axis."""
    value: Value = a["self"]
    axis = axis_of(value, a.get("dim", 0))
    parts, start = [], 0
    for size in a["split_sizes"]:
        shape = (*value.shape[:axis], size, *value.shape[axis + 1 :])
        parts.append(sliced(value, axis, start, 1, shape))
        start += size
    return parts


def lower_unsqueeze(lowering: Lowering, node: Node, a: Arguments) -> Value:
    """An axis of size one added."""
    value: Value = a["self"]
    shape = tuple(traced_tensor(node).shape)
    axis = a["dim"] + len(shape) if a["dim"] < 0 else a["dim"]
    if value.storage is not None:
        strides = value.storage.strides
        return strided(value, shape, (*strides[:axis], 0, *strides[axis:]), value.storage.offset)
    return value.reindexed(shape, lambda at: [*at[:axis], *at[axis + 1 :]])


def lower_squeeze(lowering: Lowering, node: Node, a: Arguments) -> Value:
    """Axes of size one removed."""
    value: Value = a["self"]
    dims = a.get("dim")
    dims = list(range(len(value.shape))) if dims is None else [dims] if isinstance(dims, int) else dims
    gone = {axis for axis in (axis_of(value, dim) for dim in dims) if value.shape[axis] == 1}
    kept = [axis for axis in range(len(value.shape)) if axis not in gone]
    shape = tuple(value.shape[axis] for axis in kept)
    if value.storage is not None:
        return strided(value, shape, tuple(value.storage.strides[axis] for axis in kept), value.storage.offset)
    return value.reindexed(
        shape, lambda at: [Index() if axis in gone else at[kept.index(axis)] for axis in range(len(value.shape))]
    )


def lower_flip(lowering: Lowering, node: Node, a: Arguments) -> Value:
    """Axes in reverse."""
    value: Value = a["self"]
    axes = {axis_of(value, dim) for dim in a["dims"]}
    return value.reindexed(
        value.shape,
        lambda at: [i.times(-1) + Index(value.shape[axis] - 1) if axis in axes else i for axis, i in enumerate(at)],
    )


def lower_full(lowering: Lowering, node: Node, a: Arguments) -> Value:
    """A tensor filled with one number; memory that is not set counts as zero."""
    tensor = traced_tensor(node)
    number: Any = a.get("fill_value", a.get("s", 0))
    if isinstance(number, Value):
        raise CannotCompile("a tensor filled with the value of another one")
    return constant(number, tuple(tensor.shape), tensor.dtype)


def lower_ones(lowering: Lowering, node: Node, a: Arguments) -> Value:
    """A tensor of ones."""
    tensor = traced_tensor(node)
    return constant(1, tuple(tensor.shape), tensor.dtype)


def lower_arange(lowering: Lowering, node: Node, a: Arguments) -> Value:
    """Whole numbers at equal distances."""
    tensor = traced_tensor(node)
    start, step = a.get("start", 0), a.get("step", 1)
    if not (isinstance(start, int) and isinstance(step, int)):
        raise CannotCompile("a range of fractions")
    value = Value(tuple(tensor.shape), tensor.dtype, lambda body, at: "")

    def load(body: Body, at: Sequence[Index]) -> str:
        return body.let(value.c_type, f"to_{value.c_type}({vector_text(at[0].times(step) + Index(start))})")

    return Value(value.shape, tensor.dtype, load)


def lower_cat(lowering: Lowering, node: Node, a: Arguments) -> Value:
    """Tensors one after the other along an axis."""
    tensor = traced_tensor(node)
    shape = tuple(tensor.shape)
    parts: list[Value] = [part for part in a["tensors"] if part.shape != (0,)]
    axis = a.get("dim", 0) + len(shape) if a.get("dim", 0) < 0 else a.get("dim", 0)
    result = new_value(lowering, shape, tensor.dtype)
    start = 0
    for part in parts:
        write_into(lowering, sliced(result, axis, start, 1, part.shape), part)
        start += part.shape[axis]
    return result


def lower_slice_scatter(lowering: Lowering, node: Node, a: Arguments) -> Value:
    """A copy with a range along an axis replaced."""
    value, source = a["self"], a["src"]
    axis, step, size = axis_of(value, a.get("dim", 0)), a.get("step", 1), value.shape[axis_of(value, a.get("dim", 0))]
    start = a.get("start") or 0
    start = max(0, min(size, start + size if start < 0 else start))
    result = lowering.copied(value)
    write_into(lowering, sliced(result, axis, start, step, source.shape), source)
    return result


def lower_select_scatter(lowering: Lowering, node: Node, a: Arguments) -> Value:
    """A copy with one place along an axis replaced."""
    value, source = a["self"], a["src"]
    axis = axis_of(value, a["dim"])
    number = a["index"] + value.shape[axis] if a["index"] < 0 else a["index"]
    result = lowering.copied(value)
    assert result.storage is not None
    strides = result.storage.strides
    target = strided(result, source.shape, (*strides[:axis], *strides[axis + 1 :]), number * strides[axis])
    write_into(lowering, target, source)
    return result


def _cut(value: Value, axis: int, before: int, after: int) -> Value:
    """A value without its first and last places along an axis."""
    shape = (*value.shape[:axis], value.shape[axis] - before - after, *value.shape[axis + 1 :])
    return sliced(value, axis, before, 1, shape) if before or after else value


def lower_pad(lowering: Lowering, node: Node, a: Arguments) -> Value:
    """A tensor with a border."""
    value: Value = a["self"]
    shape = tuple(traced_tensor(node).shape)
    pad = a["pad"]
    for k in range(len(pad) // 2):
        value = _cut(value, len(shape) - 1 - k, max(0, -pad[2 * k]), max(0, -pad[2 * k + 1]))
    pad = [max(0, size) for size in pad]
    result = lowering.copied(constant(a.get("value", 0) or 0, shape, value.dtype))
    target = result
    for k in range(len(pad) // 2):
        axis = len(shape) - 1 - k
        target = sliced(
            target, axis, pad[2 * k], 1, (*target.shape[:axis], value.shape[axis], *target.shape[axis + 1 :])
        )
    write_into(lowering, target, value)
    return result
