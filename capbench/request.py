"""Requests: what the user asks for, checked before anything is trained or written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from capbench.architecture import Architecture
from capbench.engine.compiling import CompileMode
from capbench.engine.devices import resolve_device
from capbench.engine.lanes import seeded
from capbench.engine.precision import Dtype, check_precision
from capbench.engine.stack import Layout
from capbench.errors import BadSetting, CannotConstruct, LoadOutOfRange, UnknownName, UnsupportedSignature
from capbench.executors.local import TRIAL_TIMEOUT
from capbench.presets import Preset
from capbench.protocols import PROTOCOLS, TrainingProtocol
from capbench.results import CriterionRecord, Protocol
from capbench.settings import Configured
from capbench.solver import ConstructiveSolver, GradientSolver, Solver
from capbench.task import Problem, Task
from capbench.where import Where

WIDEST_BUDGET = 64
"""--minimize looks no further than this multiple of the parameter's present value."""


@dataclass(frozen=True)
class Request:
    """A pair, a solver and how to measure them."""

    task: Configured[Task]
    architecture: Configured[Architecture]
    solver: Configured[Solver]
    preset: Preset
    at: int | None = None
    minimize: str | None = None
    seeds: int | None = None
    budget: int | None = None
    learning_rates: tuple[float, ...] = ()
    steps: int | None = None
    ci_width: float = 0.05
    where: Where = Where()  # noqa: RUF009 - frozen
    compile_mode: CompileMode = "auto"
    dtype: Dtype | None = None
    overload: bool = False
    analyse: bool = False
    trial_timeout: float = TRIAL_TIMEOUT
    protocol: TrainingProtocol = PROTOCOLS["capbench"]

    @property
    def plugins(self) -> tuple[Configured[Task], Configured[Architecture], Configured[Solver]]:
        """Its three plugins."""
        return self.task, self.architecture, self.solver

    def check(self) -> Protocol:
        """The protocol it comes to; raises what the user should know before anything is done."""
        self.where.check()
        if self.where.executor == "local":  # what a cluster has is asked when it is opened
            check_precision(self.dtype or "float32", resolve_device(self.where.device))
        check_pair(self.task.plugin, self.architecture.plugin)
        return make_protocol(self)


def check_pair(task: Task, architecture: Architecture) -> int:
    """Builds the module once, so that a pair that does not fit says why; counts its parameters."""
    with seeded(0):
        module = architecture.build(task.signature)
    return sum(shape.numel() for shape in Layout.of(module).shapes)


def check_load(task: Task, load: int) -> None:
    """Refuses a load that the task does not have."""
    if not 1 <= load <= task.max_load:
        raise LoadOutOfRange(f"{task.name} has 1 to {task.max_load} {task.fact}s at these sizes, got --at {load}")


def make_protocol(request: Request) -> Protocol:
    """Defaults filled in, limits checked."""
    task, preset, criterion = request.task.plugin, request.preset, request.task.plugin.criterion
    mode, limits, at = _mode(request)
    if request.analyse:
        _check_analysis(task, request.architecture.plugin)
    if isinstance(request.solver.plugin, GradientSolver):
        _check_start(request.solver.plugin, task, request.architecture.plugin)
    return Protocol(
        name=request.protocol.name,
        preset=preset.name,
        criterion=CriterionRecord(metric=criterion.metric, threshold=criterion.threshold, at_least=criterion.at_least),
        seeds=request.seeds or preset.seeds,
        budget=request.budget or preset.budget,
        learning_rates=_rates(request),
        steps=request.steps or _steps(request),
        dtype=request.dtype or request.solver.plugin.dtype,
        ci_width=request.ci_width,
        mode=mode,
        at=at,
        parameter=request.minimize,
        limits=limits,
        unit=limits[0] if request.minimize else 1,
        analyses=request.analyse,
    )


def _check_analysis(task: Task, architecture: Architecture) -> None:
    """Refuses to analyse where neither the task nor the architecture has anything to say of a model."""
    if type(task).analyse is Task.analyse and not architecture.analyse(*_smallest(task, architecture)):
        raise BadSetting(
            f"{task.name} has no analysis of trained models, nor has {architecture.name} on it; leave --analyse out"
        )


def _check_start(solver: GradientSolver, task: Task, architecture: Architecture) -> None:
    """Lets a solver that starts at weights of its own say that it does not know the pair."""
    if type(solver).start is not GradientSolver.start:
        module, problem = _smallest(task, architecture)
        solver.start(task, architecture, module, problem, 1, torch.Generator().manual_seed(0))


def _smallest(task: Task, architecture: Architecture) -> tuple[nn.Module, Problem]:
    """A fresh model and a problem of one fact, to try plugins on."""
    with seeded(0):
        module = architecture.build(task.signature)
    return module, task.problem(1, 1, torch.Generator().manual_seed(0))


def _steps(request: Request) -> int:
    """The task's number of steps as the preset stretches it; a paper's own is only ever cut short."""
    share = request.preset.step_share
    usual, factor = (request.protocol.steps, min(1.0, share)) if request.protocol.steps else (None, share)
    return max(1, round((usual or request.task.plugin.recipe.steps) * factor))


def _rates(request: Request) -> tuple[float, ...]:
    """The learning rates tried; none where nothing is trained."""
    if isinstance(request.solver.plugin, ConstructiveSolver):
        if request.learning_rates:
            raise BadSetting(f"--lr is for training; {request.solver.plugin.name} writes weights down")
        return ()
    return request.learning_rates or request.protocol.learning_rates or request.task.plugin.recipe.learning_rates


Mode = Literal["capacity", "at", "minimize", "overload"]


def _mode(request: Request) -> tuple[Mode, tuple[int, int], int | None]:
    """What is searched for, over which values, and at which load."""
    task, most = request.task.plugin, _most(request)
    if request.at is not None:
        check_load(task, request.at)
        if request.at > most:
            raise CannotConstruct(
                f"{request.solver.plugin.name} reaches {most} {task.fact}s on this pair, got --at {request.at}"
            )
    if request.minimize is not None:
        if request.overload:
            raise BadSetting("--overload reads one load; it does not go with --minimize")
        return "minimize", _budget_limits(request, request.minimize), request.at or task.typical_load
    if request.overload:
        return "overload", (1, most), _overload(request, most)
    return ("capacity" if request.at is None else "at"), (1, most), request.at


def _most(request: Request) -> int:
    """The largest load that can be asked for."""
    task, solver = request.task.plugin, request.solver.plugin
    if isinstance(solver, ConstructiveSolver):
        return min(task.max_load, solver.reach(task, request.architecture.plugin))
    return task.max_load


def _overload(request: Request, most: int) -> int:
    """The load of an overload reading: all facts there are, unless the user says."""
    task = request.task.plugin
    load = request.at or most
    if task.facts_held({task.criterion.metric: task.criterion.threshold}, load) is None:
        raise BadSetting(f"{task.name} has no reading of facts held under overload; leave --overload out")
    return load


def _budget_limits(request: Request, name: str) -> tuple[int, int]:
    """The values of the minimised parameter that make sense: from the least possible to many times what it is now."""
    plugin = request.architecture.plugin
    fields = type(plugin).model_fields
    if name not in fields:
        raise UnknownName.among(f"field of {plugin.name}", name, fields, f"capbench describe {plugin.name}")
    value = getattr(plugin, name)
    if isinstance(value, bool) or not isinstance(value, int):
        raise BadSetting(f"--minimize takes a field that is a whole number; {plugin.name}.{name} is {value!r}")
    most = next((m.le for m in fields[name].metadata if hasattr(m, "le")), value * WIDEST_BUDGET)
    unit = _least(request, name, max(1, value))
    return unit, max(1, min(int(most), max(1, value) * WIDEST_BUDGET) // unit) * unit


def _least(request: Request, name: str, present: int) -> int:
    """The smallest value that the architecture can be built with on this task; others are taken to be its multiples."""
    for value in range(1, present):
        try:
            check_pair(request.task.plugin, request.architecture.replaced(**{name: value}).plugin)
        except (BadSetting, UnsupportedSignature):
            continue
        return value
    return present
