"""A training step of all lanes: forward, loss, backward and update, compiled as a whole or eager."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx  # tested with torch 2.13
from torch.utils._pytree import tree_structure, tree_unflatten

from capbench.contract.solver import GradientSolver
from capbench.engine.checks import is_out_of_memory
from capbench.engine.devices import counting_dtype
from capbench.engine.stack import Batched, Named, Stack, build_stack
from capbench.engine.trials import Setup, TrialGroup

BLOCK = {"cpu": 8, "cuda": 256}
"""Lanes per call of a compiled step. One size serves a whole search: when lanes end, blocks are left out, and a last
block that is not full is padded. On a CPU 8 lanes cost 11 to 22 % more per lane than 16 and waste half as much."""

Program = Callable[..., list[Tensor]]
"""A compiled step: takes the tensors of a block, returns its new weights and optimiser state."""
_programs: dict[object, Program] = {}
"""Compiled steps of this process, by setup and shapes; workers that are forked later have them too."""


class CompileFailed(UserWarning):
    """The step could not be compiled; training goes on without."""


def keep_compiled_steps(folder: Path) -> None:
    """Has torch's compiler cache its work in a folder, unless the user has chosen one. Call before it is imported."""
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(folder))


def block_of(device: torch.device) -> int:
    """Lanes per call of a compiled step on a device."""
    return BLOCK.get(device.type, BLOCK["cpu"])


class Step:
    """Changes weights and optimiser state of a stack in place.

    With `block`, the step is compiled for that many lanes and called block by block: the stack's lanes must be a
    multiple of it.
    """

    def __init__(self, batched: Batched, setup: Setup, block: int | None = None) -> None:
        solver = setup.solver.plugin
        assert isinstance(solver, GradientSolver)
        self._batched = batched
        self._setup = setup
        self._solver = solver
        self._steps = setup.training.steps
        self.block = block
        self.compile_seconds = 0.0

    def __call__(self, stack: Stack, state: Named, step: Tensor) -> None:
        """One step; `step` is a 0-d tensor, so that its number is data and not part of the compiled step."""
        if self.block is None:
            self._run_eager(stack, state, step)
            return
        for start in range(0, len(stack.weights), self.block):
            rows = slice(start, start + self.block)
            part, own_state = stack.kept(rows), {name: tensor[rows] for name, tensor in state.items()}
            program = self.prepare(part, own_state, step)
            if program is None:  # it could not be compiled; the blocks so far have not been touched
                self._run_eager(stack, state, step)
                return
            with torch.no_grad():
                changed = program(*_tensors(part, own_state, step))
                for tensor, value in zip((part.weights, *own_state.values()), changed, strict=True):
                    tensor.copy_(value)

    def _run_eager(self, stack: Stack, state: Named, step: Tensor) -> None:
        self._solver.update(stack.weights, self._gradient(stack), state, stack.learning_rate, step, self._steps)

    def prepare(self, block: Stack, state: Named, step: Tensor) -> Program | None:
        """The compiled step for a block of these shapes; None, with a warning, where it cannot be compiled."""
        tensors = _tensors(block, state, step)
        key = (self._setup.identity, *((tensor.shape, tensor.dtype, tensor.device) for tensor in tensors))
        if key not in _programs:
            started = time.perf_counter()
            try:
                _programs[key] = self._compile(block, state, step)
            except Exception as error:
                if is_out_of_memory(error):
                    raise
                self.block = None
                cause = getattr(error, "inner_exception", error)  # torch.compile wraps what its backend raises
                reason = str(cause).strip().splitlines()[0] if str(cause).strip() else type(cause).__name__
                warnings.warn(f"the step could not be compiled and runs eagerly: {reason}", CompileFailed, stacklevel=2)
                return None
            self.compile_seconds += time.perf_counter() - started
        return _programs[key]

    def _compile(self, block: Stack, state: Named, step: Tensor) -> Program:
        """Traces the step to tensor operations, which any module allows, and compiles these with full fusion."""
        tensors = _tensors(block, state, step)
        graph = make_fx(self._functional(block, state))(*(tensor.clone() for tensor in tensors))
        # With several threads, torch 2.13 starts them inside the innermost sum where an axis is shorter than a vector
        # of sixteen numbers, which takes many times as long; axes of 8 and 10 are common here.
        is_wide = torch.get_num_threads() > 1 and torch.backends.cpu.get_cpu_capability() == "AVX512"
        options: dict[str, Any] = {"cpp.vec_isa_ok": True}  # trying out every kind of vectors takes five seconds
        if is_wide and block.weights.device.type == "cpu":
            options["cpp.simdlen"] = 256
        program: Program = torch.compile(graph, dynamic=False, options=options)
        with torch.no_grad():
            program(*tensors)  # compiles; the results are dropped
        return program

    def _functional(self, stack: Stack, state: Named) -> Callable[..., list[Tensor]]:
        """The step as a function of the tensors that it reads, returning those that it changes."""
        structure = tree_structure((stack.weights, stack.fixed, stack.problem))
        n_inputs, names = structure.num_leaves, list(state)

        def step(*given: Tensor) -> list[Tensor]:
            weights, fixed, problem = tree_unflatten(list(given[:n_inputs]), structure)
            *old_state, rate, number = given[n_inputs:]
            own = replace(stack, weights=weights.clone(), fixed=fixed, problem=problem)
            copies = [tensor.clone() for tensor in old_state]
            own_state = dict(zip(names, copies, strict=True))
            self._solver.update(own.weights, self._gradient(own), own_state, rate, number, self._steps)
            if [*own_state] != names or any(a is not b for a, b in zip(own_state.values(), copies, strict=True)):
                raise TypeError(f"{self._solver.name} makes new tensors of its state, which are lost")
            return [own.weights, *copies]

        return step

    def _gradient(self, stack: Stack) -> Tensor:
        """(lanes, n_parameters). Lanes are independent, so the gradient of their summed losses holds them all."""
        leaves = {name: view.detach().requires_grad_() for name, view in stack.layout.split(stack.weights).items()}
        total = self._batched.losses(stack, leaves).sum()
        parts = torch.autograd.grad(total, list(leaves.values()), materialize_grads=True)
        return torch.cat([part.reshape(len(part), -1) for part in parts], dim=1)


def compile_step(group: TrialGroup, device: torch.device) -> float:
    """Compiles the step of a group ahead of its training; returns the seconds that this took."""
    block, solver = block_of(device), group.setup.solver.plugin
    assert isinstance(solver, GradientSolver)
    stack, _ = build_stack(group.part((group.trials * block)[:block]), device)
    batched = Batched(group.setup, stack)
    if not batched.is_batched:
        return 0.0
    step = Step(batched, group.setup, block)
    step.prepare(stack, solver.init(stack.weights), torch.zeros((), dtype=counting_dtype(device), device=device))
    return step.compile_seconds


def _tensors(stack: Stack, state: Named, step: Tensor) -> list[Tensor]:
    """The tensors that a step reads, those of the stack first and in the order of their tree."""
    problem = stack.problem  # by hand: walking a tree takes longer than a small step
    own = [stack.weights, *stack.fixed.values(), *problem.inputs, problem.targets, problem.mask]
    return [*own, *state.values(), stack.learning_rate, step]
