"""The compiled program of a trial group: one model's step and evaluation, recorded and compiled to run in lanes."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from torch import Tensor
from torch.func import grad

from capbench.contract.solver import GradientSolver
from capbench.contract.task import Problem
from capbench.engine.batches import Batches, has_batches
from capbench.engine.checks import is_out_of_memory
from capbench.engine.codegen.program import (
    Program,
    compile_library,
    kept_program,
    program_path,
)
from capbench.engine.codegen.recording import record
from capbench.engine.codegen.source import DEPENDS_ON_SLOTS, FunctionSource, function_source
from capbench.engine.codegen.values import CannotCompile
from capbench.engine.cost import Cost
from capbench.engine.stack import LaneFunctions, Stack, build_stack
from capbench.engine.torch_private import tree_leaves, tree_map
from capbench.engine.trials import Setup, TrialGroup, TrialSpec, join_groups

TRACED_SLOTS = (37, 53, 61, 85)
"""Numbers of slots at which a program for any number is traced: alike modulo the tiles of a matrix product."""
TOLERANCE = 0.01
"""Largest difference between a compiled and an eager step, as a share of the change it makes."""
COUNTED = torch.float64
"""The type in which steps are counted and schedules computed."""


class CompileFailed(UserWarning):
    """The step could not be compiled; training continues eagerly."""


@dataclass(frozen=True)
class LaneProgram:
    """The compiled step and evaluation of one model, which run as many models as there are lanes at once."""

    program: Program
    metric_names: tuple[str, ...]
    growing: tuple[bool, ...] | None
    """Which tensors of a problem grow with its slots, where the program is for any number of them; else None."""

    def n_bytes(self, slots: int) -> int:
        """The memory that its functions take for so many slots."""
        return self.program.n_bytes(slots)


_programs: dict[str, LaneProgram] = {}
"""Programs of this process, by what decides them."""
_folder: Path | None = None


def keep_programs(folder: Path) -> None:
    """Keeps compiled programs in a folder, where later runs and other processes find them."""
    global _folder
    _folder = folder


def prepare_program(group: TrialGroup, cost: Cost) -> LaneProgram | None:
    """The program of a group; None, with a warning, where it cannot be compiled."""
    try:
        with cost.timed("compile"):
            return find_program(group)
    except Exception as error:  # noqa: BLE001 - whatever a compiler raises, the eager step remains
        cost.eager_reasons.add(eager_reason(error))
        return None


def eager_reason(error: Exception) -> str:
    """Warns that a step could not be compiled, and returns why; raises the error again where memory ran out."""
    if is_out_of_memory(error):
        raise error
    reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    warnings.warn(f"the step could not be compiled and runs eagerly: {reason}", CompileFailed, stacklevel=3)
    return reason


def find_program(group: TrialGroup) -> LaneProgram:
    """The program of a group: of this process, from the folder of programs, or compiled now."""
    choices = [_identity(group, for_any) for for_any in _choices(group.setup, group.slots)]
    for identity in choices:
        if identity in _programs:
            return _programs[identity]
        program = kept_program(_path(identity))
        if program is not None:
            _programs[identity] = _opened(program)
            return _programs[identity]
    error: CannotCompile | None = None
    for identity, for_any in zip(choices, _choices(group.setup, group.slots), strict=True):
        try:
            _programs[identity] = compile_lanes(group.setup, group.slots, for_any, _path(identity))
            return _programs[identity]
        except CannotCompile as failed:
            error = failed
    assert error is not None
    raise error


def program_groups(groups: Iterable[TrialGroup]) -> list[TrialGroup]:
    """The groups to be compiled: those that one program serves are joined."""
    own: list[TrialGroup] = []
    joined: list[TrialGroup] = []
    for group in groups:
        (joined if serves_any_slots(group.setup, group.slots) else own).append(group)
    return [replace(group, is_compiled=True) for group in [*own, *join_groups(joined)]]


def serves_any_slots(setup: Setup, slots: int) -> bool:
    """Whether groups of a setup share one program whatever their number of slots."""
    is_grid = setup.has_grid and slots == setup.n_combinations
    return not (is_grid or has_batches(setup) or not setup.task.plugin.signature.has_slots)


def _choices(setup: Setup, slots: int) -> tuple[bool, ...]:
    """A program for any number of slots first, where there can be one; then one for these slots."""
    return (True, False) if serves_any_slots(setup, slots) else (False,)


def _identity(group: TrialGroup, for_any: bool) -> str:
    """Text of everything that decides the program of a group."""
    training, parts = group.setup.training, json.loads(group.setup.identity)
    own = {"dtype": training.dtype, "sampling": training.sampling and asdict(training.sampling)}
    return json.dumps({**parts, "training": own, "slots": None if for_any else group.slots}, sort_keys=True)


def _path(identity: str) -> Path | None:
    return program_path(_folder, identity) if _folder else None


def _opened(program: Program) -> LaneProgram:
    notes = program.notes
    growing = notes["growing"] and tuple(notes["growing"])
    return LaneProgram(program, tuple(notes["metrics"]), growing)


@dataclass(frozen=True)
class TracedLane:
    """One model of a group as functions of tensors, with example tensors to trace them."""

    setup: Setup
    functions: LaneFunctions
    stack: Stack
    """One lane: its weights, its buffers, and the problem that is evaluated."""
    asked: Problem
    """The problem that a step sees: the one that is evaluated, or a batch of it. Without an axis of lanes."""
    state: dict[str, Tensor]

    @classmethod
    def make(cls, setup: Setup, slots: int) -> TracedLane:
        """The model of a small trial."""
        solver = setup.solver.plugin
        assert isinstance(solver, GradientSolver)
        trials = (TrialSpec(min(8, slots, setup.task.plugin.max_load), 0, 0.01),)
        stack, _ = build_stack(TrialGroup(setup, slots, trials), torch.device("cpu"))
        asked = next(Batches(setup, trials, stack.problem).problems(1)) if has_batches(setup) else stack.problem
        own: Problem = tree_map(lambda tensor: tensor[0], asked)
        return cls(setup, LaneFunctions(setup, stack), stack, own, solver.init(stack.weights))

    @property
    def fixed(self) -> dict[str, Tensor]:
        """Its buffers and frozen parameters."""
        return {name: tensor[0] for name, tensor in self.stack.fixed.items()}

    @property
    def evaluated(self) -> Problem:
        """The problem that is evaluated."""
        problem: Problem = tree_map(lambda tensor: tensor[0], self.stack.problem)
        return problem

    @property
    def step_inputs(self) -> list[Tensor]:
        """Weights, rate, number of the step and of all steps; buffers; the problem; the optimiser's state."""
        number = torch.zeros((), dtype=COUNTED)
        own = [self.stack.weights, self.stack.learning_rate, number, number + self.setup.training.steps]
        return [*own, *self.metric_inputs(self.asked)[1:], *self.state.values()]

    def metric_inputs(self, problem: Problem) -> list[Tensor]:
        """Weights, buffers and a problem."""
        return [self.stack.weights, *self.fixed.values(), *problem.inputs, problem.targets, problem.mask]

    def step(self, weights: Tensor, rate: Tensor, number: Tensor, steps: Tensor, *given: Tensor) -> list[Tensor]:
        """The weights and the optimiser's state after one step."""
        fixed, problem, rest = self._parts(given)
        leaves = {name: tensor[0] for name, tensor in self.stack.layout.split(weights).items()}
        slopes = grad(lambda own: self.functions.loss(own, fixed, problem))(leaves)
        gradient = torch.cat([slopes[name].reshape(1, -1) for name in leaves], dim=1)
        new, copies = weights.clone(), [tensor.clone() for tensor in rest]
        state = dict(zip(self.state, copies, strict=True))
        self.setup.solver.plugin.update(new, gradient, state, rate, number, steps)  # type: ignore[attr-defined]
        if [*state] != [*self.state] or any(a is not b for a, b in zip(state.values(), copies, strict=True)):
            raise TypeError(f"{self.setup.solver.plugin.name} makes new tensors of its state, which are lost")
        return [new, *copies]

    @torch.no_grad()
    def metrics(self, weights: Tensor, *given: Tensor) -> list[Tensor]:
        """The metrics of a problem."""
        fixed, problem, _ = self._parts(given)
        own = {name: tensor[0] for name, tensor in self.stack.layout.split(weights).items()}
        found = self.functions.metrics(own, fixed, problem)
        return [value.to(COUNTED) for value in found.values()]

    @property
    def metric_names(self) -> list[str]:
        """The names of the metrics, in their order."""
        own = {name: tensor[0] for name, tensor in self.stack.layout.split(self.stack.weights).items()}
        return [*self.functions.metrics(own, self.fixed, self.evaluated)]

    def _parts(self, given: Sequence[Tensor]) -> tuple[dict[str, Tensor], Problem, list[Tensor]]:
        n_fixed, n_inputs = len(self.stack.fixed), len(self.asked.inputs)
        fixed = dict(zip(self.stack.fixed, given[:n_fixed], strict=True))
        inputs, rest = given[n_fixed : n_fixed + n_inputs], given[n_fixed + n_inputs :]
        return fixed, Problem(tuple(inputs), rest[0], rest[1]), [*rest[2:]]


def compile_lanes(setup: Setup, slots: int, for_any: bool, path: Path | None) -> LaneProgram:
    """Traces and compiles the program of a setup, and compares it with the eager step."""
    if setup.training.dtype not in ("float32", "float64"):
        raise CannotCompile(f"training in {setup.training.dtype} is not compiled")
    if not for_any:
        lanes = [(slots, TracedLane.make(setup, slots))]
    else:
        free = [n for n in TRACED_SLOTS if n != setup.n_combinations][:3]
        lanes = [(n, TracedLane.make(setup, n)) for n in free]
        _check_leading_axes([lane for _, lane in lanes])
    problems = zip(*(tree_leaves(lane.evaluated) for _, lane in lanes), strict=True)
    growing = [len({len(tensor) for tensor in same}) > 1 for same in problems]
    sources = _sources(lanes)
    notes = {"metrics": lanes[0][1].metric_names, "growing": growing if for_any else None}
    slots_checked, checked = lanes[-1]
    return _opened(
        compile_library(sources, notes, path, lambda program: _check_program(program, checked, slots_checked))
    )


def _sources(lanes: Sequence[tuple[int, TracedLane]]) -> list[FunctionSource]:
    """The functions of a program."""
    functions = {
        "step": [(n, record(lane.step, lane.step_inputs)) for n, lane in lanes],
        "metrics": [(n, record(lane.metrics, lane.metric_inputs(lane.evaluated))) for n, lane in lanes],
    }
    sampling = lanes[0][1].setup.training.sampling
    if sampling and sampling.scored_batches:
        functions["batch_metrics"] = [(n, record(lane.metrics, lane.metric_inputs(lane.asked))) for n, lane in lanes]
    return [function_source(name, graphs) for name, graphs in functions.items()]


def _check_leading_axes(lanes: Sequence[TracedLane]) -> None:
    """Raises CannotCompile unless only the first axis of a tensor grows with the slots."""
    for tensors in zip(*(lane.step_inputs for lane in lanes), strict=True):
        if len({tuple(tensor.shape[1:]) for tensor in tensors}) > 1:
            raise CannotCompile(DEPENDS_ON_SLOTS)


def _check_program(program: Program, lane: TracedLane, slots: int) -> None:
    """Raises CannotCompile where the compiled functions do not compute what the traced ones do.

    The first step shows the gradient, in the state that it leaves; a later one shows what becomes of the weights.
    """
    first, later = [*lane.state.values()], [*filled_state(lane.state).values()]
    for state, is_checked in ((first, slice(1, None)), (later, slice(0, 1))) if first else ((first, slice(0, 1)),):
        inputs = [*lane.step_inputs[: -len(state) or None], *state]
        inputs[1] = torch.ones_like(inputs[1])
        olds = [inputs[0], *state]
        mine = program.call("step", slots, inputs, [lane.stack.weights, *state])
        changes = [(found - old, new - old) for old, found, new in zip(olds, mine, lane.step(*inputs), strict=True)]
        for found, eager in changes[is_checked]:
            check_close(found, eager, "step")
    scores = lane.metrics(*lane.metric_inputs(lane.evaluated))
    values = program.call("metrics", slots, lane.metric_inputs(lane.evaluated), scores)
    for value, score in zip(values, scores, strict=True):
        check_close(value, score, "evaluation")


def filled_state(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """An optimiser's state as if it had run.

    In its first step Adam makes every gradient as large as the others, also those that are nothing but rounding: with
    d_qk = 1, linear attention has such gradients only, and two steps would differ by 20 %.
    """
    generator = torch.Generator().manual_seed(0)
    drawn = {name: torch.rand(tensor.shape, generator=generator, dtype=COUNTED) + 0.5 for name, tensor in state.items()}
    return {name: drawn[name].to(tensor) for name, tensor in state.items()}


def check_close(mine: Tensor, eager: Tensor, name: str) -> None:
    """Raises CannotCompile where what was compiled computes something else than the eager function."""
    mine, eager = mine.cpu().double(), eager.cpu().double()
    difference, size = (mine - eager).norm(), eager.norm()
    if not bool(torch.isfinite(size)) and not bool(torch.isfinite(mine.norm())):
        return
    if not difference <= TOLERANCE * size + 1e-6:
        raise CannotCompile(f"the compiled {name} differs from the eager one by {float(difference / size):.1%}")
