"""Recording: the operations of a function of tensors, as a graph, while it runs once on examples.

torch's own tracer does the same, but importing it takes two seconds, as long as all the rest of compiling.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.func import functionalize
from torch.fx import Graph, Node

from capbench.engine.codegen.values import CannotCompile
from capbench.engine.torch_private import (
    TorchDispatchMode,
    core_aten_decompositions,
    get_decompositions,
    storage_id,
    tree_leaves,
    tree_map,
)

ATEN = torch.ops.aten
DECOMPOSED = (
    ATEN.addmm,
    ATEN.native_layer_norm,
    ATEN.native_group_norm,
    ATEN._native_batch_norm_legit.no_stats,
    ATEN.linalg_vector_norm,
    ATEN.repeat,
)
"""Operations that torch keeps whole and that have no translation to C of their own."""


@dataclass
class Recorded:
    """A graph of operations, none of which changes a tensor in place, and the tensors that it found ready."""

    graph: Graph = field(default_factory=Graph)
    constants: dict[str, Tensor] = field(default_factory=dict)


def record(function: Callable[..., list[Tensor]], tensors: Sequence[Tensor]) -> Recorded:
    """The operations of a function. Raises CannotCompile where it depends on the values of tensors."""
    recorder = _Recorder(tensors)
    with recorder:
        results = functionalize(function)(*tensors)
    recorder.finish(results)
    return recorder.recorded


@cache
def _decompositions() -> dict[Any, Callable[..., Any]]:
    own: dict[Any, Callable[..., Any]] = {ATEN.var.correction: lambda *args, **options: _var_mean(*args, **options)[0]}
    own |= {ATEN.var_mean.correction: _var_mean}
    return {**core_aten_decompositions(), **get_decompositions(DECOMPOSED), **own}


def _var_mean(
    tensor: Tensor, dim: Sequence[int] | None = None, *, correction: float | None = None, keepdim: bool = False
) -> tuple[Tensor, Tensor]:
    """Variance and mean over some axes, by basic operations."""
    axes = [*(dim or range(tensor.dim()))]
    mean = tensor.mean(axes, keepdim=True)
    count = tensor.numel() // mean.numel() - (1 if correction is None else correction)
    return (tensor - mean).square().sum(axes, keepdim=keepdim) / count, mean if keepdim else mean.squeeze(axes)


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Runs operations, decomposed into basic ones, and adds each to the graph."""

    def __init__(self, inputs: Sequence[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.recorded = Recorded()
        self._nodes: dict[int, Node] = {}
        self._kept: list[Tensor] = []  # so that no two tensors have the same id
        self._sharing: dict[int, set[int]] = {}
        """Tensors by the memory that they share."""
        for number, tensor in enumerate(inputs):
            self._name(tensor, self.recorded.graph.placeholder(f"input_{number}"))

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Keeps torch from importing its compiler, which would take two seconds (torch 2.13)."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs one operation."""
        options = kwargs or {}
        with self:
            decomposition = _decompositions().get(func, func.decompose)
            result = decomposition(*args, **options)
        if result is not NotImplemented:
            return result
        if func._schema.is_mutable and len(self._sharing.get(_memory(args[0]), ())) > 1:
            raise CannotCompile(f"{func} changes a tensor in place that shares memory with another one")
        result = func(*args, **options)
        parts = tree_leaves(result)
        if not parts or not all(isinstance(part, Tensor) for part in parts):
            raise CannotCompile(f"{func} makes Python depend on the values of tensors")
        arguments, named = tree_map(self._reference, (tuple(args), options))
        node = self.recorded.graph.call_function(func, arguments, named)
        if isinstance(result, Tensor):
            self._name(result, node)  # a tensor that a decomposition changes in place has a new node from here on
        else:
            for number, part in enumerate(result):
                self._name(part, self.recorded.graph.call_function(_part, (node, number)))
        return result

    def finish(self, results: Sequence[Tensor]) -> None:
        """Adds the results, and drops what none of them needs."""
        self.recorded.graph.output([self._reference(result) for result in results])
        self.recorded.graph.eliminate_dead_code()

    def _name(self, tensor: Tensor, node: Node) -> None:
        node.meta["val"] = tensor
        self._nodes[id(tensor)] = node
        self._kept.append(tensor)
        self._sharing.setdefault(_memory(tensor), set()).add(id(tensor))

    def _reference(self, value: Any) -> Any:
        """The node of a tensor; a tensor that no operation made is a constant."""
        if not isinstance(value, Tensor):
            return value
        if id(value) not in self._nodes:
            name = f"constant_{len(self.recorded.constants)}"
            self.recorded.constants[name] = value.detach().clone()
            self._name(value, self.recorded.graph.create_node("get_attr", name))
        return self._nodes[id(value)]


def _memory(tensor: Tensor) -> int:
    return storage_id(tensor.untyped_storage())


def _part(parts: Sequence[Any], number: int) -> Any:
    return parts[number]


PART = _part
"""The node that takes one of several results."""
