"""Gradients of all lanes: eager at first, compiled where the work ahead pays for it."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor
from torch.func import grad

from capbench.engine.stack import Batched, Named, Stack
from capbench.task import Problem

CompileMode = Literal["auto", "on", "off"]

COMPILE_SECONDS = 30.0
"""What compiling is taken to cost on a machine that has not seen the shape."""
SHARE_SAVED = 0.4
"""Share of the time that a compiled step is taken to save."""


class CompileFailed(UserWarning):
    """The step could not be compiled; training goes on without."""


class Gradients:
    """The gradient of each lane's loss. Lanes are independent, so the gradient of their sum holds them all."""

    def __init__(self, batched: Batched, mode: CompileMode) -> None:
        self._batched = batched
        self._mode = mode
        self._compiled: Callable[[Tensor, Named, Problem], Tensor] | None = None
        self.is_compiled = mode == "on" and batched.is_batched
        self.compile_seconds = 0.0
        self._shapes: set[torch.Size] = set()

    def consider(self, seconds_a_step: float, steps_left: int) -> None:
        """Switches to the compiled step where what it saves is worth twice what compiling costs."""
        if self._mode == "auto" and self._batched.is_batched:
            self.is_compiled |= seconds_a_step * steps_left * SHARE_SAVED > 2 * COMPILE_SECONDS

    def __call__(self, stack: Stack) -> Tensor:
        """(lanes, n_parameters)."""
        if not self.is_compiled:
            return self._eager(stack)
        is_new, started = stack.weights.shape not in self._shapes, time.perf_counter()
        try:
            # Here and not earlier: the compiler itself takes a second to import.
            self._compiled = self._compiled or torch.compile(self._pure, dynamic=False)
            gradient = self._compiled(stack.weights, stack.fixed, stack.problem)
        except Exception as error:  # noqa: BLE001 - no compiler here, or a module that it does not take
            self._mode, self.is_compiled = "off", False
            reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            warnings.warn(f"the step could not be compiled and runs eagerly: {reason}", CompileFailed, stacklevel=2)
            return self._eager(stack)
        if is_new:
            self._shapes.add(stack.weights.shape)
            self.compile_seconds += time.perf_counter() - started
        return gradient

    def _eager(self, stack: Stack) -> Tensor:
        leaves = {name: view.detach().requires_grad_() for name, view in stack.layout.split(stack.weights).items()}
        total = self._batched.losses(stack, leaves).sum()
        parts = torch.autograd.grad(total, list(leaves.values()), materialize_grads=True)
        return torch.cat([part.reshape(len(part), -1) for part in parts], dim=1)

    def _pure(self, weights: Tensor, fixed: Named, problem: Problem) -> Tensor:
        """The same as a function of tensors alone, which is what the compiler takes."""

        def total(flat: Tensor) -> Tensor:
            return self._batched.summed_loss(flat, fixed, problem)

        gradient: Tensor = grad(total)(weights)
        return gradient
