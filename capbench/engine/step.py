"""A training step of a whole stack: forward, loss, backward and update of every lane."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.func import grad

from capbench.contract.solver import GradientSolver
from capbench.engine.cost import Cost
from capbench.engine.lane_program import check_close, eager_reason, filled_state
from capbench.engine.stack import Batched, Named, Stack
from capbench.engine.trials import Setup

Take = Callable[[Stack, Named, Tensor, Tensor], None]
"""One step: of a stack and the optimiser's state, with the number of the step and of all steps."""


class Step:
    """Changes weights and optimiser state of a stack in place.

    With `is_compiled`, torch compiles it for the device: for GPUs, where the lane programs of a CPU do not run. Where
    that fails, or computes something else than the eager step, it stays eager, with a warning.
    """

    def __init__(self, batched: Batched, setup: Setup, is_compiled: bool = False) -> None:
        solver = setup.solver.plugin
        assert isinstance(solver, GradientSolver)
        self._batched = batched
        self._solver = solver
        self._steps = setup.training.steps
        self.is_compiled = is_compiled
        self._take: Take | None = None if is_compiled else self._take_one
        self._compiling = Cost()

    def __call__(self, stack: Stack, state: Named, numbers: Sequence[Tensor]) -> None:
        """One step per number: 0-d tensors, so that the number of a step is data and not part of a compiled step."""
        steps = torch.full_like(numbers[0], self._steps)
        if self._take is None:
            self._take = self._compiled(stack, state, numbers[0], steps)
        for number in numbers:
            self._take(stack, state, number, steps)

    def move_cost(self, cost: Cost) -> None:
        """Counts what compiling took within the time of the steps as compiling."""
        cost.spend("steps", -self._compiling.compile_seconds)
        cost.add(self._compiling)
        self._compiling = Cost()

    def _compiled(self, stack: Stack, state: Named, number: Tensor, steps: Tensor) -> Take:
        """The step compiled for stacks of this shape; the eager one where that fails.

        Every step is compiled on its own, and as a whole: torch would otherwise run parts of it, or all of it after
        eight shapes, eagerly and without saying so.
        """
        take: Take = torch.compile(self._take_one, dynamic=False, fullgraph=True, isolate_recompiles=True)  # type: ignore[call-overload]
        try:
            with self._compiling.timed("compile"):
                self._check(take, stack, state, number, steps)
        except Exception as error:  # noqa: BLE001 - whatever a compiler raises, the eager step remains
            self._compiling.eager_reasons.add(eager_reason(error))
            self.is_compiled = False
            return self._take_one
        return take

    def _check(self, take: Take, stack: Stack, state: Named, number: Tensor, steps: Tensor) -> None:
        """Raises CannotCompile where a step does not do what the eager one does, on copies.

        The first step shows the gradient, in the state that it leaves; a later one shows what becomes of the weights.
        """
        stack = replace(stack, learning_rate=torch.ones_like(stack.learning_rate))
        for before in (state, filled_state(state)) if state else (state,):
            mine, eager = (_change(each, stack, before, number, steps) for each in (take, self._take_one))
            for name in state if before is state and state else ("weights",):
                check_close(mine[name], eager[name], "step")

    def _take_one(self, stack: Stack, state: Named, number: Tensor, steps: Tensor) -> None:
        self._solver.update(stack.weights, self._gradient(stack), state, stack.learning_rate, number, steps)

    def _gradient(self, stack: Stack) -> Tensor:
        """(lanes, n_parameters). Lanes are independent, so the gradient of their summed losses holds them all."""
        leaves = stack.layout.split(stack.weights)
        parts = grad(lambda own: self._batched.losses(stack, own).sum())(leaves)
        return torch.cat([parts[name].reshape(len(stack.weights), -1) for name in leaves], dim=1)


def _change(take: Take, stack: Stack, state: Named, number: Tensor, steps: Tensor) -> Named:
    """By how much a step changes each tensor of the state, and the weights; changes nothing itself."""
    after, state_after = stack.snapshot(), {name: tensor.clone() for name, tensor in state.items()}
    take(after, state_after, number, steps)
    changes = {name: state_after[name] - tensor for name, tensor in state.items()}
    return {**changes, "weights": after.weights - stack.weights}
