"""Kernels: loop nests in C, and the translation of a graph into them, one node after the other."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from capbench.engine.codegen.elementwise import elementwise, literal
from capbench.engine.codegen.recording import PART, Recorded
from capbench.engine.codegen.values import Body, CannotCompile, Index, Shape, Value, contiguous_strides, stored

CHEAP = 2
"""Operations per element up to which a value is computed again rather than stored: storing and loading cost as much."""
ARRAY = re.compile(r"\b(?:b|in|out)\d+\b")


@dataclass
class Kernel:
    """One loop nest in C, and the arrays that it uses."""

    lines: list[str]

    @property
    def arrays(self) -> list[str]:
        """Every array that it reads or writes."""
        return sorted(set(ARRAY.findall("\n".join(self.lines))))


@dataclass
class Lowered:
    """The kernels of a graph, in order, and the arrays between them."""

    kernels: list[Kernel] = field(default_factory=list)
    types: dict[str, str] = field(default_factory=dict)
    """The C type of the elements of every array."""
    sizes: dict[str, int] = field(default_factory=dict)
    """Elements of every array between kernels."""
    constants: list[str] = field(default_factory=list)
    """Definitions of arrays that are part of the program."""
    outputs: list[str] = field(default_factory=list)
    """The array of each output."""


class Lowering:
    """Translates the nodes of a graph in their order: each becomes a value, and kernels where it must be stored."""

    def __init__(self, recorded: Recorded, handlers: Mapping[str, Handler]) -> None:
        self._recorded = recorded
        self._handlers = handlers
        self._values: dict[Node, Any] = {}
        self.result = Lowered()

    def run(self) -> Lowered:
        """The kernels of the whole graph."""
        n_inputs = 0
        for node in self._recorded.graph.nodes:
            if node.op == "placeholder":
                self._values[node] = self._input(node, n_inputs)
                n_inputs += 1
            elif node.op == "get_attr":
                self._values[node] = self._constant(self._recorded.constants[str(node.target)])
            elif node.op == "output":
                for output in node.args[0]:
                    self._output(self._values[output])
            else:
                self._values[node] = self._shared(self._call(node), node)
        return self.result

    def _input(self, node: Node, number: int) -> Value:
        tensor = traced_tensor(node)
        shape = tuple(tensor.shape)
        value = stored(f"in{number}", shape, tensor.dtype, contiguous_strides(shape))
        self.result.types[f"in{number}"] = value.c_type
        return value

    def _constant(self, tensor: Tensor) -> Value:
        """A tensor inside the graph, which is the same for all lanes."""
        shape, array = tuple(tensor.shape), f"c{len(self.result.constants)}"
        types = {torch.float32: "float", torch.float64: "double", torch.int64: "int", torch.bool: "int"}
        if tensor.dtype not in types or tensor.numel() > 1 << 16:
            raise CannotCompile(f"a constant of type {tensor.dtype} and {tensor.numel()} elements")
        numbers = ", ".join(literal(number, tensor.dtype) for number in tensor.flatten().tolist())
        self.result.constants.append(f"static const {types[tensor.dtype]} {array}[] = {{{numbers}}};")
        return stored(array, shape, tensor.dtype, contiguous_strides(shape), uniform=True)

    def _output(self, value: Value) -> None:
        array = f"out{len(self.result.outputs)}"
        self.result.types[array] = value.c_type
        self.result.outputs.append(array)
        self._emit_copy(value, array)

    def _shared(self, value: Any, node: Node) -> Any:
        """The value of a node, stored where several others would each compute it again at some cost."""
        is_computed = isinstance(value, Value) and value.storage is None and not is_constant(node)
        return self.materialised(value) if is_computed and len(node.users) > 1 and value.cost > CHEAP else value

    def _call(self, node: Node) -> Any:
        arguments = [self._lookup(argument) for argument in node.args]
        options = {name: self._lookup(argument) for name, argument in node.kwargs.items()}
        if node.target is PART:
            return arguments[0][arguments[1]]
        target: Any = node.target
        name = target._schema.name.removeprefix("aten::").rstrip("_") if hasattr(target, "_schema") else str(target)
        named = {a.name: v for a, v in zip(target._schema.arguments, arguments, strict=False)} | options
        handler = self._handlers.get(name)
        if handler is not None:
            return handler(self, node, named)
        operands = [self.cheap(value, tuple(traced_tensor(node).shape)) for value in arguments]
        return elementwise(name, node, traced_tensor(node), operands, options)

    def _lookup(self, argument: Any) -> Any:
        if isinstance(argument, Node):
            return self._values[argument]
        if isinstance(argument, list | tuple):
            return [self._lookup(part) for part in argument]
        return argument

    def cheap(self, value: Any, shape: Shape) -> Any:
        """An operand, stored first where broadcasting would compute its elements several times."""
        if isinstance(value, Value) and value.storage is None and value.numel < product(shape):
            return self.materialised(value)
        return value

    def materialised(self, value: Value) -> Value:
        """The value with its elements in memory."""
        if value.storage is not None:
            return value
        array = self.new_array(value.c_type, value.numel)
        self._emit_copy(value, array)
        return stored(array, value.shape, value.dtype, contiguous_strides(value.shape))

    def copied(self, value: Value) -> Value:
        """The value in memory of its own, to be written into."""
        array = self.new_array(value.c_type, value.numel)
        self._emit_copy(value, array)
        return stored(array, value.shape, value.dtype, contiguous_strides(value.shape))

    def new_array(self, c_type: str, size: int) -> str:
        """Memory between kernels."""
        array = f"b{len(self.result.sizes)}"
        self.result.sizes[array], self.result.types[array] = size, c_type
        return array

    def _emit_copy(self, value: Value, array: str) -> None:
        strides = contiguous_strides(value.shape)

        def write(body: Body, at: Sequence[Index]) -> None:
            element = value.load(body, at)
            body.lines.append(f"{array}[{place(at, strides)}] = {element};")

        self.emit(loops(value.shape, write))

    def emit(self, lines: list[str]) -> None:
        """Adds a kernel."""
        self.result.kernels.append(Kernel(lines))


def place(at: Sequence[Index], strides: Sequence[int]) -> Index:
    """The place of an element in memory."""
    total = Index()
    for index, stride in zip(at, strides, strict=True):
        total += index.times(stride)
    return total


def loops(shape: Shape, write: Callable[[Body, Sequence[Index]], None], prefix: str = "i") -> list[str]:
    """A loop nest over all elements of a shape."""
    body = Body()
    at, heads = loop_heads(shape, prefix)
    write(body, at)
    return [*heads, *body.lines, "}" * len(heads)]


def loop_heads(shape: Shape, prefix: str) -> tuple[list[Index], list[str]]:
    """An index per axis and the heads of their loops; axes of size one have none."""
    at, heads = [], []
    for axis, size in enumerate(shape):
        if size == 0:
            raise CannotCompile("tensors without elements are not compiled")
        if size == 1:
            at.append(Index())
            continue
        name = f"{prefix}{axis}"
        at.append(Index(0, {name: 1}))
        heads.append(f"for (long {name} = 0; {name} < {size}; {name}++) {{")
    return at, heads


def traced_tensor(node: Node) -> Tensor:
    """The tensor that a node computed when it was traced."""
    value = node.meta.get("val")
    if not isinstance(value, Tensor):
        raise CannotCompile(f"{node.target} returns no tensor")
    return value


def is_constant(node: Node) -> bool:
    """Whether a node reads no other node."""
    return not any(isinstance(argument, Node) for argument in node.args)


def product(shape: Sequence[int]) -> int:
    """The number of elements of a shape."""
    total = 1
    for size in shape:
        total *= size
    return total


Arguments = dict[str, Any]
Handler = Callable[[Lowering, Node, Arguments], Any]


def axis_of(value: Value, dim: int) -> int:
    """An axis, counted from the first."""
    return dim + len(value.shape) if dim < 0 else dim


def storage_of(value: Value) -> Any:
    """Where a stored value is."""
    assert value.storage is not None
    return value.storage


def strided(value: Value, shape: Shape, strides: Shape, offset: int) -> Value:
    """A view of a stored value."""
    assert value.storage is not None
    return stored(value.storage.array, shape, value.dtype, strides, offset, value.storage.is_uniform)


def sliced(value: Value, axis: int, start: int, step: int, shape: Shape) -> Value:
    """Every `step`-th element along an axis."""
    if value.storage is not None:
        strides = list(value.storage.strides)
        offset = value.storage.offset + start * strides[axis]
        strides[axis] *= step
        return strided(value, shape, tuple(strides), offset)
    return value.reindexed(
        shape, lambda at: [i.times(step) + Index(start) if k == axis else i for k, i in enumerate(at)]
    )


def new_value(lowering: Lowering, shape: Shape, dtype: torch.dtype) -> Value:
    """A value in new memory, to be written into."""
    value = Value(shape, dtype, lambda body, at: "")
    array = lowering.new_array(value.c_type, value.numel)
    return stored(array, shape, dtype, contiguous_strides(shape))


def write_into(lowering: Lowering, target: Value, source: Value) -> None:
    """Copies a value into stored elements."""
    storage = target.storage
    assert storage is not None

    def write(body: Body, at: Sequence[Index]) -> None:
        element = source.load(body, at)
        body.lines.append(
            f"{storage.array}[{place(at, storage.strides) + Index(storage.offset)}] = to_{target.c_type}({element});"
        )

    lowering.emit(loops(target.shape, write))


def dropped(value: Value, axes: Sequence[int]) -> Value:
    """The value without axes of size one."""
    assert value.storage is not None
    kept = [axis for axis in range(len(value.shape)) if axis not in axes]
    shape = tuple(value.shape[axis] for axis in kept)
    return strided(value, shape, tuple(value.storage.strides[axis] for axis in kept), value.storage.offset)
