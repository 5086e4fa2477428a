"""The C source of a traced function, for one number of slots or for any."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from capbench.engine.codegen.kernels import Lowered
from capbench.engine.codegen.lowering import lower
from capbench.engine.codegen.recording import Recorded
from capbench.engine.codegen.values import CannotCompile

LANES = 8
"""Models per vector: the floats of a 256-bit register."""
TOKEN = re.compile(r"[A-Za-z_]\w*|\d+(?:\.\d*)?(?:e[-+]?\d+)?[fL]?|\S|\s+")
TORCH_TYPES = {"vf": torch.float32, "vd": torch.float64, "vi": torch.int32, "vb": torch.int32}


DEPENDS_ON_SLOTS = "the step depends on the number of facts"


@dataclass(frozen=True)
class Size:
    """A number that may grow with the number of slots: `per_slot · slots + constant`."""

    per_slot: int
    constant: int

    def at(self, slots: int) -> int:
        """The number for so many slots."""
        return self.per_slot * slots + self.constant


@dataclass(frozen=True)
class Array:
    """Memory between the kernels of a function: its size in bytes, and the first and last kernel that uses it."""

    size: Size
    first: int
    last: int


@dataclass(frozen=True)
class FunctionSource:
    """One function in C, and the memory it needs."""

    name: str
    text: str
    arrays: tuple[Array, ...]


def function_source(name: str, graphs: Sequence[tuple[int, Recorded]]) -> FunctionSource:
    """The C source of a graph, traced at one number of slots or at three: it then serves any number."""
    slots = [n for n, _ in graphs]
    sources = [_source_at(name, lower(graph)) for _, graph in graphs]
    if len(sources) == 1:
        return sources[0]
    if len({len(source.arrays) for source in sources}) > 1:
        raise CannotCompile(DEPENDS_ON_SLOTS)
    text = _merged([source.text for source in sources], slots)
    arrays = tuple(
        Array(_fitted([array.size.constant for array in same], slots), same[0].first, same[0].last)
        for same in zip(*(source.arrays for source in sources), strict=True)
    )
    return FunctionSource(name, text, arrays)


def _source_at(name: str, lowered: Lowered) -> FunctionSource:
    """The C source of a graph at one number of slots."""
    kernels, calls = list[str](), list[str]()
    uses: dict[str, list[int]] = {}
    for number, kernel in enumerate(lowered.kernels):
        arrays = kernel.arrays
        for array in arrays:
            uses.setdefault(array, []).append(number)
        given = ", ".join(f"{lowered.types[array]} *__restrict__ {array}" for array in arrays)
        kernels.append("\n".join([f"KERNEL {name}_{number}(long n, {given}) {{", *kernel.lines, "}"]))
        calls.append(f"  {name}_{number}(n, {', '.join(arrays)});")
    own = [array for array in lowered.sizes if array in uses]
    inputs = [array for array in lowered.types if array.startswith(("in", "out")) and array in uses]
    pointers = [f"  {lowered.types[a]} *{a} = ({lowered.types[a]} *)tensors[{_position(a, lowered)}];" for a in inputs]
    pointers += [
        f"  {lowered.types[a]} *{a} = ({lowered.types[a]} *)(memory + places[{k}]);" for k, a in enumerate(own)
    ]
    head = f'extern "C" void lanes_{name}(long n, void **tensors, char *memory, const long *places) {{'
    text = "\n".join([*lowered.constants, *kernels, head, *pointers, *calls, "}"])
    constants = {match: f"{name}_{match}" for match in re.findall(r"\bc\d+\b", text)}
    text = re.sub(r"\bc\d+\b", lambda match: constants[match.group()], text)
    memory = tuple(Array(Size(0, lowered.sizes[a] * _bytes(lowered.types[a])), uses[a][0], uses[a][-1]) for a in own)
    return FunctionSource(name, text, memory)


def _position(array: str, lowered: Lowered) -> int:
    """Where a function finds the address of an array: inputs first, then outputs."""
    n_inputs = sum(name.startswith("in") for name in lowered.types)
    return int(array[2:]) if array.startswith("in") else n_inputs + int(array[3:])


def _bytes(c_type: str) -> int:
    return LANES * TORCH_TYPES[c_type].itemsize


def _merged(texts: Sequence[str], slots: Sequence[int]) -> str:
    """Sources of one function as one, their differing numbers written as expressions of the number of slots."""
    tokens = [TOKEN.findall(text) for text in texts]
    if len({len(own) for own in tokens}) > 1:
        raise CannotCompile(DEPENDS_ON_SLOTS)
    return "".join(same[0] if len({*same}) == 1 else _expression(same, slots) for same in zip(*tokens, strict=True))


def _expression(tokens: Sequence[str], slots: Sequence[int]) -> str:
    if not all(token.isdigit() for token in tokens):
        raise CannotCompile(DEPENDS_ON_SLOTS)
    size = _fitted([int(token) for token in tokens], slots)
    return f"({size.per_slot}*n+{size.constant})"


def _fitted(numbers: Sequence[int], slots: Sequence[int]) -> Size:
    """The line through numbers: two decide it, the others show that it is one and no curve."""
    per_slot = (numbers[1] - numbers[0]) // (slots[1] - slots[0])
    size = Size(per_slot, numbers[0] - per_slot * slots[0])
    if any(size.at(n) != number for n, number in zip(slots, numbers, strict=True)):
        raise CannotCompile(DEPENDS_ON_SLOTS)
    return size
