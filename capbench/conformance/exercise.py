"""A plugin at work, once round: all of its methods called as the engine calls them, and what that leaves behind."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import torch

from capbench.bound import Bound
from capbench.conformance.global_state import TORCH_DRAWS, GlobalState
from capbench.conformance.outcome import Violation
from capbench.conformance.subject import Subject, build, small_problem, small_stack
from capbench.engine.lanes import seeded
from capbench.errors import CannotConstruct, NotApplicable
from capbench.solver import ConstructiveSolver, GradientSolver
from capbench.task import Task

UNLIKELY_SEED = 7_919_104_729
"""A seed that nobody chooses, so that a plugin that sets one is seen to."""


def exercise(subject: Subject) -> None:
    """Calls what a plugin of this kind defines."""
    plugin = subject.configured.plugin
    if isinstance(plugin, Bound):
        _evaluate(subject, plugin)
    elif isinstance(plugin, GradientSolver):
        _update(plugin)
    elif isinstance(plugin, ConstructiveSolver):
        _construct(subject, plugin)
    else:
        _score(subject)


def without_traces(action: Callable[[], object]) -> None:
    """Runs something that may not seed or draw from any generator of the process."""
    before = GlobalState.now()
    action()
    _refuse(before.changes())


def without_seeding(action: Callable[[], object]) -> None:
    """Runs the building of a module: it may draw from torch's default generator, and do nothing else to the process."""
    with seeded(UNLIKELY_SEED):
        before = GlobalState.now()
        action()
        _refuse([change for change in before.changes() if change != TORCH_DRAWS])


def _refuse(changes: list[str]) -> None:
    if changes:
        raise Violation(
            "no global randomness and no change of torch's defaults",
            "; ".join(changes),
            "remove the seed; problems draw from the generator given, initial weights from torch.randn and the like in "
            "build, nothing else draws",
        )


def _score(subject: Subject) -> None:
    for pair in subject.pairs():
        task = pair.task.plugin
        problem = small_problem(task)
        outputs = build(pair.architecture.plugin, task.signature)(*problem.inputs)
        task.loss(outputs, problem)
        _describe(task, outputs.detach(), pair.task is subject.configured)


def _describe(task: Task, outputs: torch.Tensor, is_under_check: bool) -> None:
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
    solver.update(weights, 2 * weights, state, torch.full((3, 1), 0.1), torch.zeros(()), 10)


def _construct(subject: Subject, solver: ConstructiveSolver) -> None:
    for pair in subject.pairs():
        task, architecture = pair.task.plugin, pair.architecture.plugin
        stack = small_stack(pair)
        problem = small_problem(task, load=1)
        with contextlib.suppress(CannotConstruct):
            solver.find_weights(task, architecture, stack.module, problem, 1, torch.Generator().manual_seed(0))
