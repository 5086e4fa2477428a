"""Indexing: elements at places that the values of other tensors name, one per lane."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Node

from capbench.engine.codegen.elementwise import EXPENSIVE, constant
from capbench.engine.codegen.kernels import Arguments, Lowering, axis_of, loops, place, storage_of, traced_tensor
from capbench.engine.codegen.values import Body, CannotCompile, Index, Shape, Value, vector_text


def _vector(body: Body, index: str, size: int, how: str = "wrapped") -> Index:
    """An index of its own per lane, inside its axis; with `wrapped`, negative ones count from the end."""
    name = body.let("vi", f"{how}({index}, {size})")
    return Index(0, {name: 1})


def lower_gather(lowering: Lowering, node: Node, a: Arguments) -> Value:
    """Elements along an axis at the places that an index names."""
    value, index = a["self"], a["index"]
    axis = axis_of(value, a["dim"])

    def load(body: Body, at: Sequence[Index]) -> str:
        chosen = _vector(body, index.load(body, at), value.shape[axis], "inside")
        return str(value.load(body, [chosen if k == axis else i for k, i in enumerate(at)]))

    return Value(index.shape, value.dtype, load, cost=EXPENSIVE)


def lower_index(lowering: Lowering, node: Node, a: Arguments) -> Value:
    """Elements at the places that index tensors name."""
    value: Value = a["self"]
    indices: list[Value | None] = a["indices"]
    shape = tuple(traced_tensor(node).shape)
    axes = [axis for axis, index in enumerate(indices) if index is not None]
    if any(index is not None and index.dtype is torch.bool for index in indices):
        raise CannotCompile("selecting by a mask, whose result has no fixed shape")
    common = broadcast_shape([index.shape for index in indices if index is not None])
    first = axes[0] if axes == list(range(axes[0], axes[-1] + 1)) else 0
    rest = [axis for axis in range(len(value.shape)) if axis not in axes]

    def load(body: Body, at: Sequence[Index]) -> str:
        return value.load(body, _indexed(body, value, indices, at, first, len(common), rest))

    return Value(shape, value.dtype, load, cost=EXPENSIVE)


def _indexed(
    body: Body,
    value: Value,
    indices: Sequence[Value | None],
    at: Sequence[Index],
    first: int,
    n_common: int,
    rest: Sequence[int],
) -> list[Index]:
    """The index of the element of `value` that an index of the result selects."""
    common = at[first : first + n_common]
    own = [*at[:first], *at[first + n_common :]]
    found: list[Index] = []
    for axis in range(len(value.shape)):
        index = indices[axis] if axis < len(indices) else None
        if index is None:
            found.append(own[rest.index(axis)])
        else:
            tail = common[n_common - len(index.shape) :]
            at_index = [Index() if size == 1 else i for i, size in zip(tail, index.shape, strict=True)]
            found.append(_vector(body, index.load(body, at_index), value.shape[axis]))
    return found


def lower_embedding(lowering: Lowering, node: Node, a: Arguments) -> Value:
    """Rows of a table."""
    return lower_index(lowering, node, {"self": a["weight"], "indices": [a["indices"]]})


def lower_index_select(lowering: Lowering, node: Node, a: Arguments) -> Value:
    """Slices along an axis at the places that an index names."""
    value: Value = a["self"]
    axis = axis_of(value, a["dim"])
    indices: list[Value | None] = [*([None] * axis), a["index"]]
    return lower_index(lowering, node, {"self": value, "indices": indices})


def lower_scatter(lowering: Lowering, node: Node, a: Arguments) -> Value:
    """A copy with elements replaced at the places that an index names."""
    value, index = a["self"], a["index"]
    source: Any = a.get("src", a.get("value"))
    if a.get("reduce"):
        raise CannotCompile("scatter with a reduction")
    axis = axis_of(value, a["dim"])
    if not isinstance(source, Value):
        source = constant(source, index.shape, value.dtype)
    others = [k for k in range(len(value.shape)) if k != axis]
    if index.shape[axis] == 1 and all(index.shape[k] == value.shape[k] for k in others):
        return _one_hot(lowering, value, index, source, axis)
    return _put(lowering, value, index, source, axis, "put")


def lower_scatter_add(lowering: Lowering, node: Node, a: Arguments) -> Value:
    """A copy with elements added at the places that an index names."""
    value: Value = a["self"]
    return _put(lowering, value, a["index"], a["src"], axis_of(value, a["dim"]), "put_sum")


def _one_hot(lowering: Lowering, value: Value, index: Value, source: Value, axis: int) -> Value:
    """One element per row replaced: computed where it is used, by comparing its place with the index."""
    index, source = lowering.cheap(index, value.shape), lowering.cheap(source, value.shape)

    def load(body: Body, at: Sequence[Index]) -> str:
        own = [Index() if k == axis else i for k, i in enumerate(at)]
        chosen, new, old = index.load(body, own), source.load(body, own), value.load(body, at)
        return body.let(value.c_type, f"choose(mask({chosen} == {vector_text(at[axis])}), {new}, {old})")

    return Value(value.shape, value.dtype, load, cost=1 + value.cost + source.cost)


def _put(lowering: Lowering, value: Value, index: Value, source: Value, axis: int, how: str) -> Value:
    result = lowering.copied(value)
    storage = storage_of(result)

    def write(body: Body, at: Sequence[Index]) -> None:
        element, chosen = source.load(body, at), _vector(body, index.load(body, at), value.shape[axis], "inside")
        where = place([chosen if k == axis else i for k, i in enumerate(at)], storage.strides)
        _put_line(body, how, storage.array, where, element)

    lowering.emit(loops(index.shape, write))
    return result


def _put_line(body: Body, how: str, array: str, where: Index, element: str) -> None:
    body.lines.append(f"{how}({array}, {vector_text(where)}, {element});")


def lower_index_put(lowering: Lowering, node: Node, a: Arguments) -> Value:
    """A copy with elements replaced, or added, at the places that index tensors name."""
    value, source = a["self"], a["values"]
    indices: list[Value | None] = a["indices"]
    if any(index is not None and index.dtype is torch.bool for index in indices):
        raise CannotCompile("selecting by a mask, whose result has no fixed shape")
    axes = [axis for axis, index in enumerate(indices) if index is not None]
    common = broadcast_shape([index.shape for index in indices if index is not None])
    first = axes[0] if axes == list(range(axes[0], axes[-1] + 1)) else 0
    rest = [axis for axis in range(len(value.shape)) if axis not in axes]
    own = [value.shape[axis] for axis in rest]
    shape = (*own[:first], *common, *own[first:])
    result = lowering.copied(value)
    storage = storage_of(result)

    def write(body: Body, at: Sequence[Index]) -> None:
        tail = at[len(at) - len(source.shape) :]
        element = source.load(body, [Index() if n == 1 else i for i, n in zip(tail, source.shape, strict=True)])
        where = place(_indexed(body, value, indices, at, first, len(common), rest), storage.strides)
        _put_line(body, "put_sum" if a.get("accumulate") else "put", storage.array, where, element)

    lowering.emit(loops(shape, write))
    return result


def broadcast_shape(shapes: Sequence[Shape]) -> Shape:
    """The shape that tensors of these shapes are broadcast to."""
    n_axes = max(len(shape) for shape in shapes)
    padded = [(1,) * (n_axes - len(shape)) + shape for shape in shapes]
    return tuple(max(sizes) for sizes in zip(*padded, strict=True))
