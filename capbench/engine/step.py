"""A training step of a whole stack: forward, loss, backward and update of every lane."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.func import grad

from capbench.contract.solver import GradientSolver
from capbench.engine.stack import Batched, Named, Stack
from capbench.engine.trials import Setup


class Step:
    """Changes weights and optimiser state of a stack in place.

    With `is_compiled`, torch compiles it for the device: for GPUs, where the lane programs of a CPU do not run.
    """

    def __init__(self, batched: Batched, setup: Setup, is_compiled: bool = False) -> None:
        solver = setup.solver.plugin
        assert isinstance(solver, GradientSolver)
        self._batched = batched
        self._solver = solver
        self._steps = setup.training.steps
        self.is_compiled = is_compiled
        self._take: Callable[[Stack, Named, Tensor, Tensor], None] = (
            torch.compile(self._take_one, dynamic=False) if is_compiled else self._take_one
        )

    def __call__(self, stack: Stack, state: Named, numbers: Sequence[Tensor]) -> None:
        """One step per number: 0-d tensors, so that the number of a step is data and not part of a compiled step."""
        steps = torch.full_like(numbers[0], self._steps)
        for number in numbers:
            self._take(stack, state, number, steps)

    def _take_one(self, stack: Stack, state: Named, number: Tensor, steps: Tensor) -> None:
        self._solver.update(stack.weights, self._gradient(stack), state, stack.learning_rate, number, steps)

    def _gradient(self, stack: Stack) -> Tensor:
        """(lanes, n_parameters). Lanes are independent, so the gradient of their summed losses holds them all."""
        leaves = stack.layout.split(stack.weights)
        parts = grad(lambda own: self._batched.losses(stack, own).sum())(leaves)
        return torch.cat([parts[name].reshape(len(stack.weights), -1) for name in leaves], dim=1)
