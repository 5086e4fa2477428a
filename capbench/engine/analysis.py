"""Analysis: what a task says of a trained model's answers, and an architecture of its inside."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._pytree import tree_map

from capbench.architecture import Architecture
from capbench.engine.lanes import Pair
from capbench.engine.stack import Named, Stack
from capbench.signatures import Lookup
from capbench.task import Problem, Task


def analyse_lane(pair: Pair, stack: Stack, lane: int) -> dict[str, float]:
    """The analysis of one lane's model."""
    one = stack.kept(torch.tensor([lane], device=stack.weights.device))
    tensors, problem = tree_map(lambda tensor: tensor[0], ({**one.layout.split(one.weights), **one.fixed}, one.problem))
    return analyse(pair, stack.module, tensors, problem)


@torch.no_grad()
def analyse(pair: Pair, module: nn.Module, tensors: Named, problem: Problem) -> dict[str, float]:
    """What task and architecture say of a model with these parameters and buffers, worked out on the CPU."""
    tensors, problem = tree_map(lambda tensor: tensor.cpu(), (tensors, problem))
    task = pair.task.plugin
    outputs: Tensor = functional_call(module, tensors, _asked(task, problem))
    inside = _Inside(pair.architecture.plugin, module)
    held = {f"module.{name}": tensor for name, tensor in tensors.items()}
    return {**task.analyse(outputs, problem), **functional_call(inside, held, (problem,))}


def _asked(task: Task, problem: Problem) -> tuple[Tensor, ...]:
    """Every input there is on a lookup task, else those of the problem."""
    return (task.signature.grid(),) if isinstance(task.signature, Lookup) else problem.inputs


class _Inside(nn.Module):
    """An architecture's analysis as a call of a module, which is how weights are lent to one."""

    def __init__(self, architecture: Architecture, module: nn.Module) -> None:
        super().__init__()
        self._architecture = architecture
        self.module = module

    def forward(self, problem: Problem) -> dict[str, float]:
        """What the architecture says of the module."""
        return self._architecture.analyse(self.module, problem)
