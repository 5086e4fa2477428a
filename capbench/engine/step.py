"""A training step of all lanes: forward, loss, backward and update, compiled as a whole or eager."""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from torch import Tensor
from torch.utils._pytree import tree_structure, tree_unflatten

from capbench.contract.solver import GradientSolver
from capbench.contract.task import Problem
from capbench.engine.batches import Batches
from capbench.engine.checks import is_out_of_memory
from capbench.engine.devices import counting_dtype, matmul_precision
from capbench.engine.program import Program, compile_program, load_program, program_path
from capbench.engine.stack import Batched, Named, Stack, build_stack
from capbench.engine.trials import Setup, TrialGroup

BLOCK = {"cpu": 8, "cuda": 256}
"""Lanes per call of a compiled step. One size serves a whole search: when lanes end, blocks are left out, and a last
block that is not full is padded. On a CPU 8 lanes cost 11 to 22 % more per lane than 16 and waste half as much."""


class CompileFailed(UserWarning):
    """The step could not be compiled; training continues eagerly."""


@dataclass(frozen=True)
class StepPrograms:
    """The compiled step and evaluation of a block of lanes."""

    step: Program
    metrics: Program
    block: int


_programs: dict[str, StepPrograms] = {}
"""Compiled steps of this process, by what decides them."""
_folder: Path | None = None


def keep_programs(folder: Path) -> None:
    """Keeps compiled steps in a folder, where later runs and other processes find them."""
    global _folder
    _folder = folder


def block_of(device: torch.device) -> int:
    """Lanes per call of a compiled step on a device."""
    return BLOCK.get(device.type, BLOCK["cpu"])


def has_programs(group: TrialGroup, device: torch.device) -> bool:
    """Whether the compiled step of a group is at hand, without compiling."""
    identity = _identity(group, device)
    paths = _paths(identity, device)
    return identity in _programs or (paths is not None and all(path.exists() for path in paths))


def find_programs(group: TrialGroup, device: torch.device) -> StepPrograms:
    """The compiled step of a group: of this process, from the folder of compiled steps, or compiled now."""
    identity = _identity(group, device)
    if identity not in _programs:
        paths = _paths(identity, device)
        if paths and all(path.exists() for path in paths):
            _programs[identity] = StepPrograms(load_program(paths[0]), load_program(paths[1]), block_of(device))
        else:
            _programs[identity] = _compile_group(group, device, paths or (None, None))
    return _programs[identity]


class Step:
    """Changes weights and optimiser state of a stack in place, and evaluates it.

    With `programs`, lanes are trained block by block: the stack's lanes must be a multiple of the block.
    """

    def __init__(self, batched: Batched, setup: Setup, programs: StepPrograms | None = None) -> None:
        solver = setup.solver.plugin
        assert isinstance(solver, GradientSolver)
        self._batched = batched
        self._solver = solver
        self._steps = setup.training.steps
        self._programs = programs

    @property
    def block(self) -> int | None:
        """Lanes per call where it is compiled."""
        return self._programs.block if self._programs else None

    def __call__(self, stack: Stack, state: Named, numbers: Sequence[Tensor]) -> None:
        """One step per number: 0-d tensors, so that the number of a step is data and not part of the compiled step."""
        steps = torch.full_like(numbers[0], self._steps)
        if self._programs is None:
            for number in numbers:
                self._solver.update(stack.weights, self._gradient(stack), state, stack.learning_rate, number, steps)
            return
        for part, own_state in _blocks(stack, state, self._programs.block):  # a block's tensors stay in the cache
            fixed = [*part.fixed.values(), *part.problem.inputs, part.problem.targets, part.problem.mask]
            kept = [part.weights, *own_state.values()]
            weights, *changing = kept
            for number in numbers:
                weights, *changing = self._programs.step(
                    [weights, *fixed, *changing, part.learning_rate, number, steps]
                )
            for tensor, value in zip(kept, (weights, *changing), strict=True):
                tensor.copy_(value)

    def metrics(self, stack: Stack) -> Named:
        """The metrics of each lane."""
        if self._programs is None:
            return self._batched.metrics(stack)
        parts = [
            self._programs.metrics(_tensors(part, own_state))
            for part, own_state in _blocks(stack, {}, self._programs.block)
        ]
        joined = [torch.cat(same) for same in zip(*parts, strict=True)]
        return dict(zip(self._batched.metric_names, joined, strict=True))

    def functions(self, stack: Stack, state: Named) -> tuple[Callable[..., list[Tensor]], Callable[..., list[Tensor]]]:
        """The step and the evaluation as functions of the tensors that they read, returning new tensors."""
        structure = tree_structure((stack.weights, stack.fixed, stack.problem))
        n_inputs, names = structure.num_leaves, list(state)

        def rebuilt(given: Sequence[Tensor]) -> Stack:
            weights, fixed, problem = tree_unflatten(list(given[:n_inputs]), structure)
            return replace(stack, weights=weights.clone(), fixed=fixed, problem=problem)

        def step(*given: Tensor) -> list[Tensor]:
            own = rebuilt(given)
            *old_state, rate, number, steps = given[n_inputs:]
            copies = [tensor.clone() for tensor in old_state]
            own_state = dict(zip(names, copies, strict=True))
            self._solver.update(own.weights, self._gradient(own), own_state, rate, number, steps)
            if [*own_state] != names or any(a is not b for a, b in zip(own_state.values(), copies, strict=True)):
                raise TypeError(f"{self._solver.name} makes new tensors of its state, which are lost")
            return [own.weights, *copies]

        def metrics(*given: Tensor) -> list[Tensor]:
            return list(self._batched.metrics(rebuilt(given)).values())

        return step, metrics

    def _gradient(self, stack: Stack) -> Tensor:
        """(lanes, n_parameters). Lanes are independent, so the gradient of their summed losses holds them all."""
        leaves = {name: view.detach().requires_grad_() for name, view in stack.layout.split(stack.weights).items()}
        total = self._batched.losses(stack, leaves).sum()
        parts = torch.autograd.grad(total, list(leaves.values()), materialize_grads=True)
        return torch.cat([part.reshape(len(part), -1) for part in parts], dim=1)


def prepare_programs(group: TrialGroup, device: torch.device) -> tuple[StepPrograms | None, float]:
    """The compiled step of a group and the seconds that this took; None, with a warning, where that fails."""
    started = time.perf_counter()
    try:
        is_new = _identity(group, device) not in _programs
        return find_programs(group, device), is_new * (time.perf_counter() - started)
    except Exception as error:
        if is_out_of_memory(error):
            raise
        cause = getattr(error, "inner_exception", error)  # torch.compile wraps what its backend raises
        reason = str(cause).strip().splitlines()[0] if str(cause).strip() else type(cause).__name__
        warnings.warn(f"the step could not be compiled and runs eagerly: {reason}", CompileFailed, stacklevel=2)
        return None, 0.0


def compile_block(
    setup: Setup,
    batched: Batched,
    stack: Stack,
    asked: Problem | None = None,
    paths: Sequence[Path | None] = (None, None),
) -> StepPrograms:
    """Compiles step and evaluation of a stack of lanes; steps see the problem `asked`, where that is another one."""
    solver, device = setup.solver.plugin, stack.weights.device
    assert isinstance(solver, GradientSolver)
    state = solver.init(stack.weights)
    number = torch.zeros((), dtype=counting_dtype(device), device=device)
    seen = stack.asking(asked) if asked else stack
    step, _ = Step(batched, setup).functions(seen, state)
    _, metrics = Step(batched, setup).functions(stack, {})
    return StepPrograms(
        compile_program(step, _tensors(seen, state, number, number), paths[0]),
        compile_program(metrics, _tensors(stack, {}), paths[1]),
        len(stack.weights),
    )


def _compile_group(group: TrialGroup, device: torch.device, paths: Sequence[Path | None]) -> StepPrograms:
    """Compiles step and evaluation for blocks of a group's lanes."""
    block, setup = block_of(device), group.setup
    trials = (group.trials * block)[:block]
    stack, _ = build_stack(group.part(trials), device)
    batched, sampling = Batched(setup, stack), setup.training.sampling
    if not batched.is_batched:
        raise TypeError(f"{setup.architecture.plugin.name} on {setup.task.plugin.name} cannot be batched")
    asked = next(Batches(sampling, setup, trials, stack.problem).problems(1)) if sampling else None
    with matmul_precision(setup.training.dtype, device):
        return compile_block(setup, batched, stack, asked, paths)


def _identity(group: TrialGroup, device: torch.device) -> str:
    """Text of everything that decides the compiled step of a group."""
    training, parts = group.setup.training, json.loads(group.setup.identity)
    own = {"dtype": training.dtype, "sampling": training.sampling and asdict(training.sampling), "slots": group.slots}
    return json.dumps({**parts, "training": own, "block": block_of(device), "device": str(device)}, sort_keys=True)


def _paths(identity: str, device: torch.device) -> list[Path] | None:
    """Where the compiled step and evaluation of a group are kept; None where they are not."""
    if _folder is None or device.type != "cpu":
        return None
    return [program_path(_folder, f"{part} {identity}") for part in ("step", "metrics")]


def _blocks(stack: Stack, state: Named, block: int) -> list[tuple[Stack, Named]]:
    """Views of a stack and its optimiser state, so many lanes at a time."""
    rows = [slice(start, start + block) for start in range(0, len(stack.weights), block)]
    return [(stack.kept(own), {name: tensor[own] for name, tensor in state.items()}) for own in rows]


def _tensors(stack: Stack, state: Named, *numbers: Tensor) -> list[Tensor]:
    """The tensors that a step reads, those of the stack first and in the order of their tree."""
    problem = stack.problem  # explicit: walking a tree takes longer than a small step
    own = [stack.weights, *stack.fixed.values(), *problem.inputs, problem.targets, problem.mask]
    return [*own, *state.values(), stack.learning_rate, *numbers]
