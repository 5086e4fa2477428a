"""Subjects: a plugin under check, and the built-ins that it is tried together with."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import torch
from torch import nn

from capbench.architecture import Architecture
from capbench.conformance.outcome import DoesNotApply
from capbench.engine.lanes import LaneGroup, Pair, Training, TrialSpec, seeded
from capbench.engine.stack import Stack, build_stack
from capbench.errors import CannotConstruct, UnsupportedSignature
from capbench.plugin import Plugin
from capbench.registry import HOOKS, OWN_DISTRIBUTION, Provided, Registry
from capbench.settings import Configured, configure
from capbench.signatures import Relation, Signature
from capbench.solver import GradientSolver, Solver
from capbench.task import Problem, Task

P = TypeVar("P", bound=Plugin)

LOAD = 6
"""Facts of a problem under check: few, so that a check is quick, and less than its slots."""
STEPS = 8
"""Training steps under check."""


@dataclass(frozen=True)
class Subject:
    """A plugin class under check, in the company of the built-ins, all at the sizes of the smoke preset."""

    provided: Provided[Any]
    company: Registry
    compiles: bool = True

    @property
    def cls(self) -> type[Plugin]:
        """The class itself."""
        return self.provided.cls

    @property
    def kind(self) -> str:
        """Which of the four kinds it is."""
        return next(base.__name__.lower() for base in HOOKS.values() if issubclass(self.cls, base))

    @cached_property
    def configured(self) -> Configured[Any]:
        """The plugin at the sizes of the smoke preset."""
        return configure(self.provided, "smoke", {})

    @cached_property
    def tasks(self) -> list[Configured[Task]]:
        """The task under check, or the built-in ones."""
        return [self.configured] if issubclass(self.cls, Task) else _own(self.company.tasks.values())

    @cached_property
    def architectures(self) -> list[Configured[Architecture]]:
        """The architecture under check, or the built-in ones."""
        if issubclass(self.cls, Architecture):
            return [self.configured]
        return _own(self.company.architectures.values())

    @cached_property
    def solver(self) -> Configured[Solver]:
        """The gradient solver under check, or the first of the built-in ones."""
        if issubclass(self.cls, GradientSolver):
            return self.configured
        found = [s for s in _own(self.company.solvers.values()) if isinstance(s.plugin, GradientSolver)]
        if not found:
            raise DoesNotApply("no built-in gradient solver is loaded (CAPBENCH_PLUGINS)")
        return found[0]

    @cached_property
    def fitting(self) -> list[Pair]:
        """Pairs of task and architecture that can be built, and that the solver knows a start for."""
        return [
            Pair(task, architecture, self.solver, Training(task.plugin.criterion, STEPS, stops_early=False))
            for task in self.tasks
            for architecture in self.architectures
            if _fits(task.plugin, architecture.plugin) and _starts(self.solver.plugin, task.plugin, architecture.plugin)
        ]

    @cached_property
    def sound(self) -> list[Pair]:
        """Pairs whose module answers in the right shape: what the finer checks look at."""
        return [pair for pair in self.fitting if _answers(pair)]

    def pairs(self) -> list[Pair]:
        """The sound pairs; there is nothing to check without."""
        if not self.sound:
            raise DoesNotApply("no pair of task and architecture works; the checks before say why")
        return self.sound

    def one_a_task(self) -> list[Pair]:
        """The first sound pair of each task."""
        return list({pair.task.plugin.name: pair for pair in reversed(self.pairs())}.values())[::-1]


def trials(pair: Pair, n_lanes: int) -> tuple[TrialSpec, ...]:
    """Small trials of a pair, one a seed, at the task's first learning rate."""
    task = pair.task.plugin
    return tuple(TrialSpec(min(LOAD, task.max_load), seed, task.recipe.learning_rates[0]) for seed in range(n_lanes))


def small_stack(pair: Pair, n_lanes: int = 2) -> Stack:
    """A few untrained models of a pair with their problems, on the CPU."""
    specs = trials(pair, n_lanes)
    stack, _ = build_stack(LaneGroup(pair, pair.slots(specs[0]), specs), torch.device("cpu"))
    return stack


def small_problem(task: Task, load: int | None = None, slots: int | None = None, seed: int = 0) -> Problem:
    """A problem of a task, of few facts unless the load is given, with room for a few more."""
    load = load or min(LOAD, task.max_load)
    room = slots or min(task.max_load, load + 2)
    return task.problem(load, max(load, room), torch.Generator().manual_seed(seed))


def build(architecture: Architecture, signature: Signature, seed: int = 0) -> nn.Module:
    """A module as the engine builds it: in a seeded scope."""
    with seeded(seed):
        return architecture.build(signature)


def output_shape(signature: Signature, problem: Problem) -> tuple[int, ...]:
    """The shape that a signature promises of the outputs."""
    if isinstance(signature, Relation):
        return signature.n_items, signature.n_items
    return len(problem.mask), signature.n_classes


def label(pair: Pair) -> str:
    """A pair in words."""
    return f"{pair.architecture.plugin.name} on {pair.task.plugin.name}"


def _own(shelf: Iterable[Provided[P]]) -> list[Configured[P]]:
    """The built-ins of a shelf: what else is installed must not decide a verdict."""
    return [configure(p, "smoke", {}) for p in shelf if p.provenance.distribution == OWN_DISTRIBUTION]


def _fits(task: Task, architecture: Architecture) -> bool:
    try:
        build(architecture, task.signature)
    except UnsupportedSignature:
        return False
    except Exception:  # noqa: BLE001 - the plugin border; the checks of building and of problems tell what is wrong
        return False
    return True


def _starts(solver: Solver, task: Task, architecture: Architecture) -> bool:
    """Whether training can start: all but solvers that start from a construction always can."""
    assert isinstance(solver, GradientSolver)
    if type(solver).start is GradientSolver.start:
        return True
    module, problem = build(architecture, task.signature), small_problem(task)
    try:
        solver.start(task, architecture, module, problem, min(LOAD, task.max_load), torch.Generator().manual_seed(0))
    except CannotConstruct:
        return False
    return True


def _answers(pair: Pair) -> bool:
    task = pair.task.plugin
    try:
        problem = small_problem(task)
        with torch.no_grad():
            outputs = build(pair.architecture.plugin, task.signature)(*problem.inputs)
        return tuple(outputs.shape) == output_shape(task.signature, problem)
    except Exception:  # noqa: BLE001 - the plugin border; the check of shapes tells what is wrong
        return False
