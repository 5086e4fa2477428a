"""Values of a traced graph on their way to C: where each element is, or how it is computed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch

Shape = tuple[int, ...]
C_TYPES = {torch.float32: "vf", torch.float64: "vd", torch.int64: "vi", torch.bool: "vb"}
"""The C type of one element in all lanes, by the type of a tensor."""


class CannotCompile(Exception):
    """The step uses something that has no translation to C."""


@dataclass(frozen=True)
class Index:
    """An affine expression of loop variables: `constant + Σ factor · variable`."""

    constant: int = 0
    terms: Mapping[str, int] = field(default_factory=dict)

    def __add__(self, other: Index) -> Index:
        terms = dict(self.terms)
        for name, factor in other.terms.items():
            terms[name] = terms.get(name, 0) + factor
        return Index(self.constant + other.constant, {name: factor for name, factor in terms.items() if factor})

    def times(self, factor: int) -> Index:
        """The product with a number."""
        return Index(self.constant * factor, {name: own * factor for name, own in self.terms.items() if own * factor})

    def __str__(self) -> str:
        parts = [f"{factor}*{name}" for name, factor in self.terms.items()]
        return "+".join([*parts, str(self.constant)]) if self.constant or not parts else "+".join(parts)


def is_vector(index: Index) -> bool:
    """Whether an index differs between lanes: it then uses variables that hold one number per lane."""
    return any(name.startswith("t") for name in index.terms)


class Body:
    """The inside of a loop: local variables, each computed once."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._names: dict[str, str] = {}

    def let(self, c_type: str, expression: str) -> str:
        """A variable with the value of an expression."""
        if expression not in self._names:
            self._names[expression] = f"t{len(self._names)}"
            self.lines.append(f"const {c_type} {self._names[expression]} = {expression};")
        return self._names[expression]


Load = Callable[[Body, Sequence[Index]], str]
"""Writes what computes one element into a body, and returns the variable that holds it."""


@dataclass(frozen=True)
class Storage:
    """Elements in memory: a named array, read with an offset and strides."""

    array: str
    offset: int
    strides: Shape
    is_uniform: bool = False
    """Whether the array holds one number per element for all lanes."""


@dataclass(frozen=True)
class Value:
    """A tensor of the graph: stored, or computed where it is used."""

    shape: Shape
    dtype: torch.dtype
    load: Load
    storage: Storage | None = None
    cost: int = 0
    """Operations that computing an element takes; 0 where it is only loaded."""

    @property
    def c_type(self) -> str:
        """The C type of its elements."""
        if self.dtype not in C_TYPES:
            raise CannotCompile(f"tensors of type {self.dtype} are not compiled")
        return C_TYPES[self.dtype]

    @cached_property
    def numel(self) -> int:
        """Its number of elements."""
        return _product(self.shape)

    def reindexed(self, shape: Shape, index: Callable[[Sequence[Index]], Sequence[Index]]) -> Value:
        """A view: the element at an index is this value's element at another index."""
        return Value(shape, self.dtype, lambda body, at: self.load(body, index(at)), cost=self.cost)


def stored(
    array: str, shape: Shape, dtype: torch.dtype, strides: Shape, offset: int = 0, uniform: bool = False
) -> Value:
    """A value whose elements are in memory."""
    storage = Storage(array, offset, strides, uniform)
    c_type = C_TYPES.get(dtype, "")

    def load(body: Body, at: Sequence[Index]) -> str:
        place = Index(offset)
        for index, stride in zip(at, strides, strict=True):
            place += index.times(stride)
        if is_vector(place):
            return body.let(c_type, f"{'pick' if uniform else 'gather'}({array}, {vector_text(place)})")
        element = f"{array}[{place}]"
        return body.let(c_type, f"all_{c_type}({element})" if uniform else element)

    return Value(shape, dtype, load, storage)


def vector_text(index: Index) -> str:
    """An index as a vector of integers, one per lane."""
    common = Index(index.constant, {name: factor for name, factor in index.terms.items() if not name.startswith("t")})
    own = [f"{factor}*{name}" for name, factor in index.terms.items() if name.startswith("t")]
    return "+".join([*own, f"all_vi({common})"])


def contiguous_strides(shape: Shape) -> Shape:
    """The strides of a tensor whose elements follow one another."""
    strides = [1] * len(shape)
    for axis in range(len(shape) - 2, -1, -1):
        strides[axis] = strides[axis + 1] * shape[axis + 1]
    return tuple(strides)


def view_strides(shape: Shape, strides: Shape, wanted: Shape) -> Shape | None:
    """The strides of stored elements seen in another shape; None where they would have to be copied."""
    blocks: list[tuple[int, int]] = []  # axes that follow one another in memory, joined: (size, stride)
    for size, stride in zip(shape, strides, strict=True):
        if size == 1:
            continue
        if blocks and blocks[-1][1] == size * stride:
            blocks[-1] = (blocks[-1][0] * size, stride)
        else:
            blocks.append((size, stride))
    found: list[int] = []
    rest = list(reversed(blocks))
    left, stride = rest.pop(0) if rest else (1, 1)
    for size in reversed(wanted):
        if size == 1:
            found.append(0)
            continue
        if left == 1:
            if not rest:
                return None
            left, stride = rest.pop(0)
        if left % size:
            return None
        found.append(stride)
        left, stride = left // size, stride * size
    return tuple(reversed(found)) if left == 1 and not rest else None


def _product(shape: Shape) -> int:
    total = 1
    for size in shape:
        total *= size
    return total
