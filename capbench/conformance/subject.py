"""Subjects: a plugin under check, the built-ins that it is paired with, and small problems to try them on."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Set
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import torch
from torch import nn

from capbench.conformance.check import DoesNotApply
from capbench.contract.architecture import Architecture
from capbench.contract.bound import Bound
from capbench.contract.plugin import Plugin
from capbench.contract.signatures import Signature
from capbench.contract.solver import ConstructiveSolver, GradientSolver, Solver
from capbench.contract.task import Problem, Task
from capbench.engine.stack import Stack, build_stack
from capbench.engine.trials import Setup, Training, TrialGroup, TrialSpec, seeded
from capbench.errors import CannotConstruct, NotApplicable, UnsupportedSignature
from capbench.registry.provenance import OWN_DISTRIBUTION
from capbench.registry.registry import HOOKS, Provided, Registry
from capbench.registry.settings import Configured, configure

P = TypeVar("P", bound=Plugin)

LOAD = 6
"""Facts of a problem under check: few, so that a check is fast, and fewer than its slots."""
STEPS = 8
"""Training steps under check."""


@dataclass(frozen=True)
class Subject:
    """A plugin class under check and the registry whose built-ins it is paired with, all at smoke-preset sizes."""

    provided: Provided[Any]
    registry: Registry
    compiles: bool = True
    """Whether the slow check of the compiled step runs, too."""
    offered: tuple[type[Plugin], ...] = ()
    """All plugin classes of its module: a bound is tried on these tasks and architectures, too."""

    @property
    def cls(self) -> type[Plugin]:
        """The plugin class."""
        return self.provided.cls

    @property
    def kind(self) -> str:
        """Which of the four kinds of plugin it is."""
        return next(base.__name__.lower() for base in HOOKS.values() if issubclass(self.cls, base))

    @cached_property
    def configured(self) -> Configured[Any]:
        """The plugin at smoke-preset sizes."""
        return configure(self.provided, "smoke", {})

    @cached_property
    def tasks(self) -> list[Configured[Task]]:
        """The task under check, or the built-in ones and, for a bound, those of its module."""
        if issubclass(self.cls, Task):
            return [self.configured]
        built_in = _built_ins(self.registry.tasks.values())
        return [*built_in, *self._beside(Task, {each.plugin.name for each in built_in})]

    @cached_property
    def architectures(self) -> list[Configured[Architecture]]:
        """The architecture under check, or the built-in ones and, for a bound, those of its module."""
        if issubclass(self.cls, Architecture):
            return [self.configured]
        built_in = _built_ins(self.registry.architectures.values())
        return [*built_in, *self._beside(Architecture, {each.plugin.name for each in built_in})]

    def _beside(self, base: type[Any], known: Set[str]) -> list[Configured[Any]]:
        """The plugins of that kind in the module of a bound, except those known; none for other plugins."""
        own = [cls for cls in self.offered if issubclass(cls, base) and cls.name not in known]
        is_bound = issubclass(self.cls, Bound)
        return [configure(Provided(cls, self.provided.provenance), "smoke", {}) for cls in own] if is_bound else []

    @cached_property
    def solver(self) -> Configured[Solver]:
        """The gradient solver under check, or the first built-in one."""
        if issubclass(self.cls, GradientSolver):
            return self.configured
        found = [s for s in _built_ins(self.registry.solvers.values()) if isinstance(s.plugin, GradientSolver)]
        if not found:
            raise DoesNotApply("no built-in gradient solver is loaded (CAPBENCH_PLUGINS)")
        return found[0]

    @cached_property
    def buildable_setups(self) -> list[Setup]:
        """Pairs of task and architecture whose module can be built and whose training the solver can start."""
        return [
            Setup(task, architecture, self.solver, Training(task.plugin.criterion, STEPS, stops_early=False))
            for task in self.tasks
            for architecture in self.architectures
            if _can_build(task.plugin, architecture.plugin)
            and _can_start(self.solver.plugin, task.plugin, architecture.plugin)
        ]

    @cached_property
    def _working_setups(self) -> list[Setup]:
        return [setup for setup in self.buildable_setups if _has_right_shape(setup)]

    def setups(self) -> list[Setup]:
        """The buildable pairs with outputs of the right shape; raises DoesNotApply if there are none."""
        if not self._working_setups:
            raise DoesNotApply("no pair of task and architecture works; the checks above say why")
        return self._working_setups

    def one_setup_per_task(self) -> list[Setup]:
        """The first working pair of each task."""
        return list({setup.task.plugin.name: setup for setup in reversed(self.setups())}.values())[::-1]

    def one_setup_per_family(self) -> list[Setup]:
        """The first working pair of each task and family of architectures: what a task is tried on."""
        pairs = {(s.task.plugin.name, s.architecture.plugin.family): s for s in reversed(self.setups())}
        return list(pairs.values())[::-1]


def call_every_method(subject: Subject) -> None:
    """Calls each method that a plugin of this kind defines, as the engine would."""
    plugin = subject.configured.plugin
    if isinstance(plugin, Bound):
        _evaluate(subject, plugin)
    elif isinstance(plugin, GradientSolver):
        _update(plugin)
    elif isinstance(plugin, ConstructiveSolver):
        _construct(subject, plugin)
    else:
        _score(subject)


def trial_specs(setup: Setup, n_lanes: int) -> tuple[TrialSpec, ...]:
    """Small trials of a pair, one per seed, at the task's first learning rate."""
    task = setup.task.plugin
    return tuple(TrialSpec(min(LOAD, task.max_load), seed, task.recipe.learning_rates[0]) for seed in range(n_lanes))


def small_stack(setup: Setup, n_lanes: int = 2) -> Stack:
    """A few untrained models of a pair with their problems, on the CPU."""
    specs = trial_specs(setup, n_lanes)
    stack, _ = build_stack(TrialGroup(setup, setup.slots(specs[0]), specs), torch.device("cpu"))
    return stack


def small_problem(task: Task, load: int | None = None, slots: int | None = None, seed: int = 0) -> Problem:
    """A problem with few facts, unless the load is given, and by default up to two slots of padding."""
    load = load or min(LOAD, task.max_load)
    slots = slots or min(task.max_load, load + 2)
    return task.problem(load, max(load, slots), torch.Generator().manual_seed(seed))


def build(architecture: Architecture, signature: Signature, seed: int = 0) -> nn.Module:
    """A module built in a seeded scope, as the engine does it."""
    with seeded(seed):
        return architecture.build(signature)


def output_shape(signature: Signature, problem: Problem) -> tuple[int, ...]:
    """The shape of outputs that a signature requires."""
    return signature.output_shape(len(problem.mask))


def label(setup: Setup) -> str:
    """The names of a pair, such as "mha on rgr"."""
    return f"{setup.architecture.plugin.name} on {setup.task.plugin.name}"


def _built_ins(provided: Iterable[Provided[P]]) -> list[Configured[P]]:
    """capbench's own plugins: what else is installed must not affect a result."""
    return [configure(p, "smoke", {}) for p in provided if p.provenance.distribution == OWN_DISTRIBUTION]


def _can_build(task: Task, architecture: Architecture) -> bool:
    try:
        build(architecture, task.signature)
    except UnsupportedSignature:
        return False
    except Exception:  # noqa: BLE001 - the plugin border; the checks of building and of problems report the error
        return False
    return True


def _can_start(solver: Solver, task: Task, architecture: Architecture) -> bool:
    """Whether training can start; only solvers that start from a construction may be unable to."""
    assert isinstance(solver, GradientSolver)
    if type(solver).start is GradientSolver.start:
        return True
    module, problem = build(architecture, task.signature), small_problem(task)
    try:
        solver.start(task, architecture, module, problem, min(LOAD, task.max_load), torch.Generator().manual_seed(0))
    except CannotConstruct:
        return False
    return True


def _has_right_shape(setup: Setup) -> bool:
    task = setup.task.plugin
    try:
        problem = small_problem(task)
        with torch.no_grad():
            outputs = build(setup.architecture.plugin, task.signature)(*problem.inputs)
        return tuple(outputs.shape) == output_shape(task.signature, problem)
    except Exception:  # noqa: BLE001 - the plugin border; the check of shapes reports the error
        return False


def _score(subject: Subject) -> None:
    for setup in subject.setups():
        task = setup.task.plugin
        problem = small_problem(task)
        outputs = build(setup.architecture.plugin, task.signature)(*problem.inputs)
        task.loss(outputs, problem)
        _measure(task, outputs.detach(), is_under_check=setup.task is subject.configured)


def _measure(task: Task, outputs: torch.Tensor, is_under_check: bool) -> None:
    problem = small_problem(task)
    task.metrics(outputs, problem)
    if is_under_check:
        task.examine(problem)


def _evaluate(subject: Subject, bound: Bound) -> None:
    for task in subject.tasks:
        for architecture in subject.architectures:
            with contextlib.suppress(NotApplicable):
                bound.evaluate(task.plugin, architecture.plugin, None)


def _update(solver: GradientSolver) -> None:
    weights = torch.linspace(-1.0, 1.0, 12).view(3, 4)
    state = solver.init(weights)
    solver.update(weights, 2 * weights, state, torch.full((3, 1), 0.1), torch.zeros(()), torch.tensor(10.0))


def _construct(subject: Subject, solver: ConstructiveSolver) -> None:
    for setup in subject.setups():
        task, architecture = setup.task.plugin, setup.architecture.plugin
        stack = small_stack(setup)
        problem = small_problem(task, load=1)
        with contextlib.suppress(CannotConstruct):
            solver.find_weights(task, architecture, stack.module, problem, 1, torch.Generator().manual_seed(0))
