"""A training step of all lanes: gradients and update in one, eager or compiled, without waiting for the host."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.func import functionalize, grad
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from capbench.engine.guard import is_out_of_memory
from capbench.engine.stack import Batched, Named, Stack
from capbench.engine.traced import traced
from capbench.solver import GradientSolver
from capbench.task import Problem

Program = Callable[..., Sequence[Tensor]]
"""Takes the tensors of a step and returns the new weights and optimiser state."""
TRACED_AFTER = 400
"""Steps of one shape after which an eager step is traced: by so many it would have paid. Lanes may leave any time, and
the next shape must be traced anew; so no more is ever lost than a trace costs."""
MOST_VECTOR_BITS = 256
"""Of a CPU's vectors in compiled steps: eight numbers."""


class CompileFailed(UserWarning):
    """The step could not be compiled; training goes on without."""


class Step:
    """Changes weights and optimiser state of a stack in place.

    Compiled, it runs over blocks of lanes of one fixed size: the shape stays the same when finished lanes leave, so
    that a pair is compiled once, and a block's tensors stay in the cache. Eager, its gradient is traced where
    lanes stay together for long.
    """

    def __init__(self, batched: Batched, solver: GradientSolver, steps: int, block: int | None) -> None:
        self._batched = batched
        self._solver = solver
        self._steps = steps
        self._block = block
        self._program: Program | None = None
        self._can_trace = batched.is_batched
        self._shapes: tuple[torch.Size, ...] = ()
        self._steps_of_shape = 0
        self._traced: Callable[..., Tensor] | None = None
        self.compile_seconds = 0.0

    @property
    def is_compiled(self) -> bool:
        """Whether the compiled function is in use."""
        return self._block is not None

    @property
    def lanes_a_block(self) -> int:
        """The stack must hold a multiple of this many lanes."""
        return self._block or 1

    def __call__(self, stack: Stack, state: Named, step: Tensor) -> None:
        """One step; `step` is a 0-d tensor, so that its number is data and not part of the program."""
        if self._block is None:
            self._run_eager(stack, state, step)
            return
        for part, part_state in _blocks(stack, state, self._block):
            self._run_compiled(part, part_state, step)

    def _run_eager(self, stack: Stack, state: Named, step: Tensor) -> None:
        gradient = self._traced_gradient(stack) if self._can_trace else self._gradient(stack)
        self._solver.update(stack.weights, gradient, state, stack.learning_rate, step, self._steps)

    def _run_compiled(self, stack: Stack, state: Named, step: Tensor) -> None:
        tensors = tree_leaves((stack.weights, state, stack.fixed, stack.problem, stack.learning_rate, step))
        if self._program is None:
            self._compile(stack, state, step)
        if self._program is None:  # it could not be compiled
            self._run_eager(stack, state, step)
        else:
            torch._foreach_copy_([stack.weights, *tree_leaves(state)], list(self._program(*tensors)))

    def _compile(self, stack: Stack, state: Named, step: Tensor) -> None:
        """Compiles the step and tries it once; where that fails, the step stays eager."""
        started = time.perf_counter()
        try:
            self._program = self._compiled(stack, state, step)
        except Exception as error:  # noqa: BLE001 - no compiler here, or a module that it does not take
            self._block = None
            reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            warnings.warn(f"the step could not be compiled and runs eagerly: {reason}", CompileFailed, stacklevel=2)
        else:
            self.compile_seconds = time.perf_counter() - started

    def _compiled(self, stack: Stack, state: Named, step: Tensor) -> Program:
        """The step as a compiled program.

        It is traced and not interpreted, so that no guard is checked at every call: what a guard would look for,
        vmap has refused already, and the shapes of a block never change.
        """
        import torch._inductor  # takes a second

        arguments = (stack.weights, state, stack.fixed, stack.problem, stack.learning_rate, step)
        tensors, structure = tree_flatten(arguments)

        def functional(*given: Tensor) -> list[Tensor]:
            weights, own_state, fixed, problem, rate, number = tree_unflatten(list(given), structure)
            weights, own_state = weights.clone(), {name: tensor.clone() for name, tensor in own_state.items()}
            self._pure(weights, own_state, fixed, problem, rate, number)
            return [weights, *tree_leaves(own_state)]

        graph, options = make_fx(functionalize(functional))(*tensors), compiler_options(stack.weights.device)
        program: Program = torch._inductor.compile(graph, tensors, options=options)
        program(*tensors)
        return program

    def _gradient(self, stack: Stack) -> Tensor:
        """(lanes, n_parameters). Lanes are independent, so the gradient of their summed losses holds them all."""
        leaves = {name: view.detach().requires_grad_() for name, view in stack.layout.split(stack.weights).items()}
        total = self._batched.losses(stack, leaves).sum()
        parts = torch.autograd.grad(total, list(leaves.values()), materialize_grads=True)
        return torch.cat([part.reshape(len(part), -1) for part in parts], dim=1)

    def _traced_gradient(self, stack: Stack) -> Tensor:
        """The same by the operations as they were written down for these shapes, once these have lasted."""
        tensors, structure = tree_flatten((stack.weights, stack.fixed, stack.problem))
        shapes = tuple(tensor.shape for tensor in tensors)
        if shapes != self._shapes:
            self._shapes, self._steps_of_shape, self._traced = shapes, 0, None
        self._steps_of_shape += 1
        if self._steps_of_shape <= TRACED_AFTER:
            return self._gradient(stack)
        if self._traced is None:

            def gradient(*given: Tensor) -> Tensor:
                weights, fixed, problem = tree_unflatten(list(given), structure)
                return self._gradient(replace(stack, weights=weights, fixed=fixed, problem=problem))

            try:
                self._traced = traced(gradient, tensors)
            except Exception as error:
                if is_out_of_memory(error):
                    raise
                self._can_trace = False  # it does what cannot be written down, and may train all the same
                return self._gradient(stack)
        with torch.no_grad():
            return self._traced(*tensors)

    def _pure(
        self, weights: Tensor, state: Named, fixed: Named, problem: Problem, learning_rate: Tensor, step: Tensor
    ) -> None:
        """A step as a function of tensors alone, which is what the compiler takes."""

        def total(flat: Tensor) -> Tensor:
            return self._batched.summed_loss(flat, fixed, problem)

        self._solver.update(weights, grad(total)(weights), state, learning_rate, step, self._steps)


def compiler_options(device: torch.device) -> dict[str, int]:
    """What the compiler is told for a device: on a CPU with vectors of sixteen numbers, to take vectors of eight.

    Where an axis is shorter than a vector, torch 2.13 has the threads share the innermost sum and start anew for each,
    which takes many times as long as one thread alone. Axes of 8 and 10 are common here; shorter ones still meet it.
    """
    if device.type != "cpu":
        return {}
    from torch._inductor.cpu_vec_isa import pick_vec_isa  # takes a second

    return {"cpp.simdlen": MOST_VECTOR_BITS} if pick_vec_isa().bit_width() > MOST_VECTOR_BITS else {}


def _blocks(stack: Stack, state: Named, n_lanes: int) -> Iterator[tuple[Stack, Named]]:
    """Views of a stack and its optimiser state, `n_lanes` lanes each."""
    if len(stack.weights) == n_lanes:
        yield stack, state
        return
    for start in range(0, len(stack.weights), n_lanes):
        rows = slice(start, start + n_lanes)
        yield stack.kept(rows), {name: tensor[rows] for name, tensor in state.items()}
