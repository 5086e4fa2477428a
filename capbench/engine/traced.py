"""Tracing: the operations behind an eager gradient, written down once and called one after the other from then on."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.fx import Node
from torch.fx.experimental.proxy_tensor import make_fx

aten = torch.ops.aten
VIEWS = frozenset({aten.view.default, aten._unsafe_view.default, aten.expand.default})
IN_PLACE = {aten.scatter_add.default: aten.scatter_add_.default, aten.index_put.default: aten.index_put_.default}


def traced(function: Callable[..., Tensor], tensors: Sequence[Tensor]) -> Callable[..., Tensor]:
    """The function for tensors of these shapes: the same numbers, without asking vmap and autograd what comes next.

    In a small group that question takes a good part of a step.
    """
    program = make_fx(function)(*tensors)
    for node in program.graph.nodes:
        if node.target in VIEWS and _form(node) == _form(node.args[0]):
            node.replace_all_uses_with(node.args[0])
            program.graph.erase_node(node)
        elif node.target in IN_PLACE and _is_own(node.args[0]):
            node.target = IN_PLACE[node.target]
    program.recompile()
    forward: Callable[..., Tensor] = program.forward  # a module's call would look for hooks first
    return forward


def _form(node: Node) -> tuple[object, ...]:
    value: Tensor = node.meta["val"]
    return value.shape, value.stride()


def _is_own(node: Node) -> bool:
    """Whether these are zeros made for one operation alone, as autograd makes them: to be added to where they are."""
    return node.target is aten.new_zeros.default and len(node.users) == 1
