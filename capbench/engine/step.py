"""A training step of all lanes: gradients and update in one, eager or compiled, without waiting for the host."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_structure, tree_unflatten

from capbench.engine.guard import is_out_of_memory
from capbench.engine.program import Program, compiled, share_saved
from capbench.engine.stack import Batched, Named, Stack
from capbench.engine.traced import Traced, is_among, traced
from capbench.solver import GradientSolver

TRACED_AFTER = 400
"""Steps of one shape after which an eager step is traced: by so many it would have paid. Lanes may leave any time, and
the next shape must be traced anew; so no more is ever lost than a trace costs. Where no lane leaves before the end,
that end tells at once."""

OTHER_NUMBERS = "it does not come to the same numbers"


class CompileFailed(UserWarning):
    """The step could not be compiled; training goes on without."""


class Step:
    """Changes weights and optimiser state of a stack in place.

    Compiled, it runs over blocks of lanes of one fixed size: the shape stays the same when finished lanes leave, so
    that a pair is compiled once, and a block's tensors stay in the cache. `block` is that size, None where nothing is
    compiled, and `program` the compiled step once there is one. Eager, it is traced where lanes stay together for long;
    `is_steady` says that none leaves before the last step.
    """

    def __init__(
        self,
        batched: Batched,
        solver: GradientSolver,
        steps: int,
        block: int | None,
        program: Program | None = None,
        is_steady: bool = False,
    ) -> None:
        self._batched = batched
        self._solver = solver
        self._steps = steps
        self.block = block
        self.program = program
        self._last: Stack | None = None
        self._can_trace = batched.is_batched
        self._place: tuple[object, ...] = ()
        self._steps_there = 0
        self._traced_after = 0 if is_steady and steps > TRACED_AFTER else TRACED_AFTER
        self._traced: Traced | None = None
        self.compile_seconds = 0.0

    def n_compiled(self, n_lanes: int) -> int:
        """How many of so many lanes run in the compiled program: those that fill its blocks.

        A block is given up where it would leave one lane alone, which takes other kernels than two.
        """
        rest = n_lanes % self.block if self.block else n_lanes
        return n_lanes - rest - (self.block if self.block and rest == 1 else 0)

    def share_saved(self) -> float:
        """The share of the last step's time that compiling is taken to save; none where it cannot be traced."""
        assert self._last is not None
        try:
            return share_saved(self._gradient_of(self._last), _asked(self._last))
        except Exception as error:
            if is_out_of_memory(error):
                raise
            return 0.0

    def __call__(self, stack: Stack, state: Named, step: Tensor) -> None:
        """One step; `step` is a 0-d tensor, so that its number is data and not part of the program."""
        self._last, n_lanes = stack, len(stack.weights)
        n_compiled, block = self.n_compiled(n_lanes), self.block or n_lanes
        if n_compiled == n_lanes:
            self._traced = None  # its memory is wanted elsewhere
        for start in range(0, n_compiled, block):
            self._run_compiled(*_rows(stack, state, slice(start, start + block)), step)
        if n_compiled < n_lanes:
            self._run_eager(*_rows(stack, state, slice(n_compiled, n_lanes)), step)

    def _run_eager(self, stack: Stack, state: Named, step: Tensor) -> None:
        if self._can_trace and self._run_traced(stack, state, step):
            return
        self._solver.update(stack.weights, self._gradient(stack), state, stack.learning_rate, step, self._steps)

    def _run_compiled(self, stack: Stack, state: Named, step: Tensor) -> None:
        if self.program is None and self.block is not None:
            self._compile(stack, state, step)
        if self.program is None:  # it could not be compiled
            self._run_eager(stack, state, step)
        else:
            self.program(_touched(stack, state, step))

    def _compile(self, stack: Stack, state: Named, step: Tensor) -> None:
        """Compiles the step and tries it once; where that fails, the step stays eager."""
        started = time.perf_counter()
        try:
            self.program = self._compiled(stack, state, step)
        except Exception as error:  # noqa: BLE001 - no compiler here, or a module that it does not take
            self.block = None
            reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            warnings.warn(f"the step could not be compiled and runs eagerly: {reason}", CompileFailed, stacklevel=2)
        else:
            self.compile_seconds = time.perf_counter() - started

    def _compiled(self, stack: Stack, state: Named, step: Tensor) -> Program:
        """The whole step as a compiled program, tried on copies: on a CPU it must come to the eager step's numbers."""
        tensors = _touched(stack, state, step)
        whole = self._whole(stack, state, make_fx(self._gradient_of(stack))(*_asked(stack)))
        is_exact = stack.weights.device.type == "cpu"
        program = compiled(whole, tensors, is_exact)
        tried, eager = ([tensor.clone() for tensor in tensors] for _ in range(2))
        program([*tried])
        with torch.no_grad():
            whole(*eager)
        if is_exact and not _are_same(tried, eager):
            raise RuntimeError("compiled, " + OTHER_NUMBERS)
        return program

    def _gradient(self, stack: Stack) -> Tensor:
        """(lanes, n_parameters). Lanes are independent, so the gradient of their summed losses holds them all."""
        leaves = {name: view.detach().requires_grad_() for name, view in stack.layout.split(stack.weights).items()}
        total = self._batched.losses(stack, leaves).sum()
        parts = torch.autograd.grad(total, list(leaves.values()), materialize_grads=True)
        return torch.cat([part.reshape(len(part), -1) for part in parts], dim=1)

    def _run_traced(self, stack: Stack, state: Named, step: Tensor) -> bool:
        """The step by its operations as they were written down for these tensors; False before these have lasted."""
        tensors, changed = _touched(stack, state, step), [stack.weights, *state.values()]
        place = (*(tensor.shape for tensor in tensors), *(tensor.data_ptr() for tensor in changed))
        if place != self._place:
            self._place, self._steps_there, self._traced = place, 0, None
        self._steps_there += 1
        if self._steps_there <= self._traced_after:
            return False
        if self._traced is None:
            return self._trace(self._whole(stack, state, self._gradient_of(stack)), tensors, changed)
        with torch.no_grad():
            self._traced(tensors)
        return True

    def _trace(self, whole: Callable[..., None], tensors: list[Tensor], changed: list[Tensor]) -> bool:
        """Writes the step down and takes it; False, and nothing is changed, where that cannot be.

        On a CPU it must come to the eager step's numbers.
        """
        before = [tensor.clone() for tensor in changed]
        eager = [tensor.clone() if tensor.dim() == 0 or is_among(tensor, changed) else tensor for tensor in tensors]
        try:
            if tensors[0].device.type == "cpu":
                whole(*eager)
            program = traced(whole, tensors, changed)
            with torch.no_grad():
                program(tensors)
            if tensors[0].device.type == "cpu" and not _are_same(tensors, eager):
                raise RuntimeError("traced, " + OTHER_NUMBERS)
        except Exception as error:
            for tensor, former in zip(changed, before, strict=True):
                tensor.copy_(former)
            if is_out_of_memory(error):
                raise
            self._can_trace = False  # it does what cannot be written down, and may train all the same
            return False
        self._traced = program
        return True

    def _whole(self, stack: Stack, state: Named, gradient: Callable[..., Tensor]) -> Callable[..., None]:
        """Gradient and update as a function of the tensors that they touch."""
        n_asked, names = len(_asked(stack)), list(state)

        def step(*given: Tensor) -> None:
            asked, (*of_state, rate, number) = given[:n_asked], given[n_asked:]
            own_state = dict(zip(names, of_state, strict=True))
            self._solver.update(asked[0], gradient(*asked), own_state, rate, number, self._steps)
            if [*own_state] != names or any(a is not b for a, b in zip(own_state.values(), of_state, strict=True)):
                raise TypeError(f"{self._solver.name} makes new tensors of its state, which are lost")

        return step

    def _gradient_of(self, stack: Stack) -> Callable[..., Tensor]:
        """`_gradient` as a function of the tensors that it depends on, for tracing."""
        structure = tree_structure((stack.weights, stack.fixed, stack.problem))

        def gradient(*given: Tensor) -> Tensor:
            weights, fixed, problem = tree_unflatten(list(given), structure)
            return self._gradient(replace(stack, weights=weights, fixed=fixed, problem=problem))

        return gradient


def _asked(stack: Stack) -> list[Tensor]:
    """The tensors that a gradient depends on, the weights first."""
    problem = stack.problem  # by hand: a tree of tensors takes longer to walk than a small step to compute
    return [stack.weights, *stack.fixed.values(), *problem.inputs, problem.targets, problem.mask]


def _touched(stack: Stack, state: Named, step: Tensor) -> list[Tensor]:
    """The tensors that a step reads or changes, those of `_asked` first."""
    return [*_asked(stack), *state.values(), stack.learning_rate, step]


def _are_same(some: list[Tensor], others: list[Tensor]) -> bool:
    return all(torch.equal(one.nan_to_num(), other.nan_to_num()) for one, other in zip(some, others, strict=True))


def _rows(stack: Stack, state: Named, rows: slice) -> tuple[Stack, Named]:
    """Views of a stack and its optimiser state; themselves where these are all rows."""
    if rows.stop - rows.start == len(stack.weights):
        return stack, state
    return stack.kept(rows), {name: tensor[rows] for name, tensor in state.items()}
