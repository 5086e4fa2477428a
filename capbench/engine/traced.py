"""Tracing: the operations of a step written down once, to be called one after the other on tensors that stay put."""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.fx import Graph, Node
from torch.fx.experimental.proxy_tensor import make_fx

from capbench.engine.devices import release_memory

aten = torch.ops.aten
IN_PLACE = {aten.scatter_add.default: aten.scatter_add_.default, aten.index_put.default: aten.index_put_.default}
COPIES = frozenset({aten.clone.default, aten._to_copy.default})
FILLED = frozenset({
    aten.new_zeros.default, aten.new_ones.default, aten.new_full.default, aten.zeros_like.default,
    aten.ones_like.default, aten.full_like.default,
})  # fmt: skip
"""Of a tensor that they are given they take the form, and none of its numbers."""


class CannotTrace(Exception):
    """What is written down would not be what is done later."""


def traced(function: Callable[..., None], tensors: Sequence[Tensor], changed: Sequence[Tensor]) -> Traced:
    """A function that changes some of its tensors, for tensors of these shapes and those very ones to be changed.

    The same operations in the same order, so the same numbers, without asking vmap and autograd what comes next: in a
    small group that question takes a good part of a step. Raises CannotTrace where that cannot be promised:
    where shapes depend on numbers, or others of the tensors are changed.
    """
    copies = [tensor.clone() for tensor in tensors]  # tracing carries the function out
    graph = make_fx(function)(*copies).graph
    graph.eliminate_dead_code()
    for node in graph.nodes:
        _refuse_unsteady(node)
        if node.target in IN_PLACE and _is_own(node.args[0]):
            node.target = IN_PLACE[node.target]
    for place, tensor in enumerate(tensors):
        if is_among(tensor, changed):
            copies[place] = tensor
    release_memory()  # results have places of their own from now on
    with torch.no_grad():
        return Traced(graph, tensors, copies)


def is_among(tensor: Tensor, others: Sequence[Tensor]) -> bool:
    """Whether a tensor is one of these itself; equality would compare numbers."""
    return any(tensor is other for other in others)


class Traced:
    """Calls in their order. Every result has its place in memory from the start, so every view of it is made once.

    They work on tensors of their `own`: copies of those that are given, or these themselves where they are changed.
    """

    def __init__(self, graph: Graph, tensors: Sequence[Tensor], own: Sequence[Tensor]) -> None:
        self._calls: list[Callable[[], object]] = []
        self._values: dict[Node, Any] = {}
        self._memory = _Memory()
        self._roots = _roots(graph)
        self._changed = {self._roots[node.args[0]] for node in graph.nodes if _changes(node)}
        self._constant: set[Node] = set()
        self._lent: list[tuple[int, Tensor]] = []
        self._last = list(tensors)
        """The tensors of the last call."""
        places = iter(range(len(tensors)))
        ends = _ends(graph, self._roots)
        for node in graph.nodes:
            if node.op == "placeholder":
                place = next(places)
                self._receive(node, place, own[place])
            elif node.op == "get_attr":
                self._values[node] = getattr(graph.owning_module, node.target)
                if node in self._changed:
                    raise CannotTrace("it changes a tensor that it is not given")
                self._constant.add(node)
            elif node.op == "call_function":
                self._write_down(node)
            for root in ends[node]:
                self._memory.give_back(root)
        del self._values

    def __call__(self, tensors: Sequence[Tensor]) -> None:
        """Carries the function out. Those that it changes must be where they were; others may be new."""
        last = self._last
        for place, own in self._lent:
            given = tensors[place]
            if given is not last[place]:
                own.copy_(given)
                last[place] = given
        for call in self._calls:
            call()

    def _receive(self, node: Node, place: int, own: Tensor) -> None:
        self._values[node] = own
        if own is self._last[place]:
            return
        if node in self._changed:
            raise CannotTrace(f"it changes the tensor at place {place}")
        self._lent.append((place, own))

    def _write_down(self, node: Node) -> None:
        """Makes the place of a result, and the call that fills it unless it is there already."""
        args, kwargs = torch.fx.map_arg((node.args, node.kwargs), self._values.__getitem__)
        operation: Any = node.target
        call = partial(operation, *args, **kwargs)
        is_constant = self._constant.issuperset(node.all_input_nodes) or node.target in FILLED
        if _changes(node):
            self._values[node] = args[0]
            self._calls.append(call)
        elif self._roots[node] is not node:  # a view
            self._values[node] = call()
            self._constant.update([node] if is_constant else [])
        elif is_constant and node not in self._changed and _is_certain(node):
            self._values[node] = call()
            self._constant.add(node)
        else:
            self._values[node] = self._place(node)
            self._calls.append(_filling(operation, args, kwargs, self._values[node]))

    def _place(self, node: Node) -> Any:
        """Memory for what an operation returns."""
        form = node.meta["val"]
        if isinstance(form, Tensor):
            return self._memory.take(node, form)
        return tuple(each if each is None else self._memory.take(node, each) for each in form)


class _Memory:
    """Places for results; one whose result nobody reads any more is used again."""

    def __init__(self) -> None:
        self._taken: dict[Node, list[Tensor]] = defaultdict(list)
        self._free: dict[tuple[int, torch.dtype, torch.device], list[Tensor]] = defaultdict(list)

    def take(self, node: Node, form: Tensor) -> Tensor:
        """Memory of the form, for a node."""
        size = 1 + sum((n - 1) * stride for n, stride in zip(form.shape, form.stride(), strict=True))
        size = size if form.numel() else 0
        free = self._free[size, form.dtype, form.device]
        block = free.pop() if free else torch.empty(size, dtype=form.dtype, device=form.device)
        self._taken[node].append(block)
        return block.as_strided(form.shape, form.stride())

    def give_back(self, node: Node) -> None:
        """What a node took is free."""
        for block in self._taken.pop(node, ()):
            self._free[block.numel(), block.dtype, block.device].append(block)


def _filling(operation: OpOverload, args: Any, kwargs: Any, place: Any) -> Callable[[], object]:
    """The call of an operation that leaves its result in a place."""
    if operation in COPIES:
        return partial(place.copy_, args[0])
    if operation is aten.new_zeros.default:
        return partial(place.zero_)
    places = place if isinstance(place, tuple) else (place,)
    into = _into(operation)
    if into is not None and None not in places:
        writing, names = into
        return partial(writing, *args, **kwargs, **dict(zip(names, places, strict=True)))

    def carried_over() -> None:
        result = operation(*args, **kwargs)
        for own, made in zip(places, result if isinstance(result, (tuple, list)) else (result,), strict=True):
            if own is not None:
                own.copy_(made)

    return carried_over


@cache
def _into(operation: OpOverload) -> tuple[OpOverload, list[str]] | None:
    """The same operation with its results left where one says, and the names under which one says it.

    None where there is no such operation, or a result is a list of tensors.
    """
    if any(str(each.type) != "Tensor" for each in operation._schema.returns):
        return None
    wanted = [(each.name, str(each.type)) for each in operation._schema.arguments]
    for name in operation.overloadpacket.overloads():
        other = getattr(operation.overloadpacket, name)
        places = [each.name for each in other._schema.arguments if each.is_out]
        rest = [(each.name, str(each.type)) for each in other._schema.arguments if not each.is_out]
        if rest == wanted and len(places) == len(operation._schema.returns):
            return other, places
    return None


def _roots(graph: Graph) -> dict[Node, Node]:
    """For each node the one that made the memory which its result is in."""
    roots: dict[Node, Node] = {}
    for node in graph.nodes:
        is_there = node.op == "call_function" and (_changes(node) or _is_view(node.target))
        roots[node] = roots[node.all_input_nodes[0]] if is_there and node.all_input_nodes else node
    return roots


def _ends(graph: Graph, roots: dict[Node, Node]) -> dict[Node, list[Node]]:
    """For each node those whose memory nobody reads after it."""
    last = {roots[read]: node for node in graph.nodes for read in (node, *node.all_input_nodes)}
    ends: dict[Node, list[Node]] = defaultdict(list)
    for root, node in last.items():
        ends[node].append(root)
    return ends


def _changes(node: Node) -> bool:
    """Whether an operation changes what it is given; only those that change their first tensor are understood."""
    if not (isinstance(node.target, OpOverload) and node.target._schema.is_mutable):
        return False
    written = [each.name for each in node.target._schema.arguments if each.alias_info and each.alias_info.is_write]
    if written != [node.target._schema.arguments[0].name] or not isinstance(node.args[0], Node):
        raise CannotTrace(f"{node.target} changes {', '.join(written)}")
    return True


def _is_view(target: object) -> bool:
    """Whether a result is in the memory of what was given; parts of several results are, too."""
    if not isinstance(target, OpOverload):
        return target is operator.getitem
    return target is aten._unsafe_view.default or any(each.alias_info for each in target._schema.returns)


def _refuse_unsteady(node: Node) -> None:
    """Raises where an operation is not one of torch's own, or the shape of its result depends on numbers."""
    if node.op != "call_function" or node.target is operator.getitem:
        return
    if not isinstance(node.target, OpOverload):
        raise CannotTrace(f"{node.target} is more than an operation")
    is_steady = torch.Tag.dynamic_output_shape not in node.target.tags
    if node.target is aten.index.Tensor:  # only where some elements are chosen by truths
        chosen = [each.meta["val"].dtype for each in node.all_input_nodes[1:]]
        is_steady = not {torch.bool, torch.uint8}.intersection(chosen)
    if not is_steady:
        raise CannotTrace(f"the shape of what {node.target} returns depends on numbers")


def _is_certain(node: Node) -> bool:
    return torch.Tag.nondeterministic_seeded not in node.target.tags  # type: ignore[union-attr]


def _is_own(node: Node) -> bool:
    """Whether these are zeros made for one operation alone, as autograd makes them: to be added to where they are."""
    return node.target is aten.new_zeros.default and len(node.users) == 1
