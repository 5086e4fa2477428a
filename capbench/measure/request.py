"""Requests: what the user asks for, with names looked up and everything checked before anything is trained."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import nn

from capbench.contract.architecture import Architecture
from capbench.contract.solver import ConstructiveSolver, GradientSolver, Solver
from capbench.contract.task import Problem, Task
from capbench.documents.result import Protocol, shape_fields
from capbench.engine.checks import refuse_training_state
from capbench.engine.devices import check_precision, resolve_device
from capbench.errors import BadSetting, CannotConstruct, LoadOutOfRange, UnknownName, UnsupportedSignature
from capbench.executors.deadline import Deadline
from capbench.measure.estimate.threshold import ESTIMATOR_VERSION
from capbench.measure.matching import build_module, count_parameters, count_trained, parse_count, shapes_near
from capbench.measure.options import RunOptions
from capbench.measure.presets import Preset, preset_named
from capbench.measure.protocols import TrainingProtocol, protocol_named
from capbench.registry.containment import contained_calls
from capbench.registry.registry import Registry
from capbench.registry.settings import Configured, configure, parse_settings

LARGEST_MULTIPLE = 64
"""--minimize searches up to this multiple of the parameter's present value."""

WEIGHT_BITS = (16, 8, 6, 4, 3, 2)
"""Bits per weight to which --precision rounds, in the order in which their capacities are searched for."""

Mode = Literal["capacity", "at", "minimize", "overload"]


@dataclass(frozen=True)
class Request:
    """A task, an architecture and a solver, and how to measure them.

    Making one checks it: raises what the user should know before anything is trained. `protocol` and `n_parameters`
    are what the check found.
    """

    task: Configured[Task]
    architecture: Configured[Architecture]
    solver: Configured[Solver]
    options: RunOptions
    preset: Preset
    training: TrainingProtocol
    shapes: tuple[Configured[Architecture], ...] = ()
    """Shapes of the architecture to choose from under --params and --match, the present one first."""
    protocol: Protocol = field(init=False)
    n_parameters: int = field(init=False)

    def __post_init__(self) -> None:
        target = self.options.target
        if target.executor == "local":  # what a cluster has is checked when it is opened
            check_precision(self.options.dtype or "float32", resolve_device(target.device))
        with contained_calls(plugin.provenance for plugin in self.plugins):
            with self.architecture.contained():
                module = build_module(self.task.plugin, self.architecture.plugin)
            object.__setattr__(self, "n_parameters", count_trained(module))
            object.__setattr__(self, "protocol", _protocol(self, module))

    @property
    def plugins(self) -> tuple[Configured[Task], Configured[Architecture], Configured[Solver]]:
        """Its three plugins."""
        return self.task, self.architecture, self.solver

    @property
    def chooses_shape(self) -> bool:
        """Whether the best of several shapes is to be found before the capacity is measured."""
        return len(self.shapes) > 1 and self.protocol.mode == "capacity"


def build_request(options: RunOptions, registry: Registry) -> Request:
    """Looks names up, sets fields, and matches the number of parameters where that is asked for.

    Plugins are tried with a few facts; one that hangs is stopped after the time limit of a trial.
    """
    with Deadline(options.trial_timeout).watching():
        return _built_request(options, registry)


def _built_request(options: RunOptions, registry: Registry) -> Request:
    overrides, preset, training = (
        parse_settings(options.set),
        preset_named(options.preset),
        protocol_named(options.protocol),
    )
    task = configure(registry.task(options.task), preset.name, overrides["task"])
    if task.plugin.is_fresh and training.sampling:
        raise BadSetting(
            f"{task.plugin.name} draws new examples for every step, and the protocol {training.name} samples stored "
            "facts; leave --protocol out"
        )
    architecture = configure(registry.architecture(options.arch), preset.name, overrides["arch"])
    solver_fields = {**training.solver_fields(options.arch), **overrides["solver"]}
    with task.contained(), architecture.contained():
        shapes = _shapes(options, registry, task, architecture, overrides["arch"])
        if not (shapes or options.minimize):
            task = task.replaced(**task.plugin.follow(architecture.plugin))
    return Request(
        task=task,
        architecture=shapes[0] if shapes else architecture,
        solver=configure(registry.solver(options.solver), preset.name, solver_fields),
        options=options.replaced(rates=tuple(sorted(dict.fromkeys(options.rates)))),
        preset=preset,
        training=training,
        shapes=tuple(shapes),
    )


def _shapes(
    options: RunOptions,
    registry: Registry,
    task: Configured[Task],
    architecture: Configured[Architecture],
    kept: Collection[str],
) -> list[Configured[Architecture]]:
    """The shapes with the count that --params or --match asks for; none where the count is not asked for."""
    if options.params is not None and options.match is not None:
        raise BadSetting("--params and --match both choose the count; give one of them")
    if options.params is not None:
        count = parse_count(options.params)
    elif options.match is not None:
        other = configure(registry.architecture(options.match), options.preset, {})
        count = count_parameters(task.plugin, other.plugin)
    else:
        return []
    return shapes_near(task.plugin, architecture, count, kept)[: preset_named(options.preset).most_shapes]


def matched_text(request: Request) -> str:
    """The shape that --params or --match chose and the count it has, or how many shapes it will compare."""
    task, architecture = request.task.plugin, request.architecture.plugin
    if request.chooses_shape:
        return f"shapes: the best of {len(request.shapes)} of {architecture.name} is found on seeds of its own"
    names = shape_fields([each.plugin.model_dump() for each in request.shapes]) or architecture.widths(task.signature)
    widths = ", ".join(f"{name}={getattr(architecture, name)}" for name in names)
    others = f", the most typical of {len(request.shapes)} shapes" if len(request.shapes) > 1 else ""
    return f"matched: {architecture.name} with {widths} has {request.n_parameters:,} parameters{others}"


def check_load(task: Task, load: int) -> None:
    """Raises LoadOutOfRange for a load that the task does not have."""
    if not 1 <= load <= task.max_load:
        raise LoadOutOfRange(f"{task.name} has 1 to {task.max_load} {task.fact}s at these sizes, got --at {load}")


def _protocol(request: Request, module: nn.Module) -> Protocol:
    """The protocol of a request: defaults filled in, limits checked."""
    task, preset, options = request.task.plugin, request.preset, request.options
    mode, limits, at = _mode(request)
    if options.analyse:
        _check_analysis(task, request.architecture.plugin, module)
    if options.precision and mode not in ("capacity", "at"):
        raise BadSetting(f"--precision is for a capacity or a success rate, got --{mode}; leave one of them out")
    if options.settle and (mode != "capacity" or not isinstance(request.solver.plugin, GradientSolver)):
        got = f"--{mode}" if mode != "capacity" else f"--solver {request.solver.plugin.name}"
        raise BadSetting(
            f"--settle is for a capacity that is searched for by training, got {got}; leave one of them out"
        )
    if isinstance(request.solver.plugin, GradientSolver):
        _check_start(request.solver.plugin, task, request.architecture.plugin, module)
        refuse_training_state(module, _few_facts(task), request.architecture.plugin.name)
    return Protocol(
        name=request.training.name,
        preset=preset.name,
        criterion=task.criterion,
        seeds=options.seeds or _repetitions(request, mode) or preset.seeds,
        budget=options.budget or preset.budget,
        learning_rates=_learning_rates(request),
        steps=options.steps or _steps(request),
        dtype=options.dtype or request.solver.plugin.dtype,
        ci_width=options.ci_width,
        mode=mode,
        at=at,
        parameter=options.minimize,
        limits=limits,
        unit=limits[0] if options.minimize else 1,
        analyses=options.analyse,
        estimator=ESTIMATOR_VERSION,
        precisions=WEIGHT_BITS if options.precision else (),
    )


def _check_analysis(task: Task, architecture: Architecture, module: nn.Module) -> None:
    """Raises where neither the task nor the architecture analyses models."""
    if type(task).analyse is Task.analyse and not architecture.analyse(module, _one_fact(task)):
        raise BadSetting(
            f"{task.name} has no analysis of trained models, nor has {architecture.name} on it; leave --analyse out"
        )


def _check_start(solver: GradientSolver, task: Task, architecture: Architecture, module: nn.Module) -> None:
    """Lets a solver with its own starting weights raise where it does not support the pair."""
    if type(solver).start is not GradientSolver.start:
        solver.start(task, architecture, module, _one_fact(task), 1, torch.Generator().manual_seed(0))


def _one_fact(task: Task) -> Problem:
    """The smallest problem, to try plugins on."""
    return task.problem(1, 1, torch.Generator().manual_seed(0))


def _few_facts(task: Task) -> Problem:
    """A problem of two facts, because batch norm refuses to see one."""
    n_facts = min(2, task.max_load)
    return task.problem(n_facts, n_facts, torch.Generator().manual_seed(0))


def _steps(request: Request) -> int:
    """The task's number of steps, scaled by the preset; a paper's step count is only ever reduced by a preset."""
    share = request.preset.step_share
    if request.training.steps:
        return max(1, round(request.training.steps * min(1.0, share)))
    return max(1, round(request.task.plugin.recipe.steps * share))


def _repetitions(request: Request, mode: Mode) -> int | None:
    """The seeds of a paper's protocol at a given load; a preset only ever reduces them."""
    seeds = request.training.seeds
    return min(seeds, request.preset.seeds) if seeds and mode in ("at", "overload") else None


def _learning_rates(request: Request) -> tuple[float, ...]:
    """The learning rates to try; none where nothing is trained."""
    if isinstance(request.solver.plugin, ConstructiveSolver):
        if request.options.rates:
            raise BadSetting(f"--lr is for training; {request.solver.plugin.name} writes weights down")
        return ()
    return request.options.rates or request.training.learning_rates or _proposed_rates(request)


def _proposed_rates(request: Request) -> tuple[float, ...]:
    """The rates of the task, as the architecture and then the solver change them."""
    rates, solver = request.task.plugin.recipe.learning_rates, request.solver.plugin
    assert isinstance(solver, GradientSolver)
    for plugin in (request.architecture.plugin, solver):
        rates = tuple(plugin.learning_rates(rates))
        if not rates or not all(isinstance(rate, int | float) and 0 < rate < math.inf for rate in rates):
            raise BadSetting(f"{plugin.name} must propose learning rates above 0, got {rates}; --lr names others")
    return rates


def _mode(request: Request) -> tuple[Mode, tuple[int, int], int | None]:
    """What is searched for, over which values, and at which load."""
    task, options, most = request.task.plugin, request.options, _largest_load(request)
    if options.at is not None:
        check_load(task, options.at)
        if options.at > most:
            raise CannotConstruct(
                f"{request.solver.plugin.name} reaches {most} {task.fact}s on this pair, got --at {options.at}"
            )
    if options.minimize is not None:
        if options.overload:
            raise BadSetting("--overload reads one load; it does not go with --minimize")
        return "minimize", _parameter_limits(request, options.minimize), options.at or task.typical_load
    if options.overload:
        return "overload", (1, most), _overload(request, most)
    return ("capacity" if options.at is None else "at"), (1, most), options.at


def _largest_load(request: Request) -> int:
    """The largest load that can be measured."""
    task, solver = request.task.plugin, request.solver.plugin
    if isinstance(solver, ConstructiveSolver):
        return min(task.max_load, solver.reach(task, request.architecture.plugin))
    return task.max_load


def _overload(request: Request, most: int) -> int:
    """The load of an overload measurement: all facts of the task, unless the user names one."""
    task = request.task.plugin
    load = request.options.at or most
    if task.facts_held({task.criterion.metric: task.criterion.threshold}, load) is None:
        raise BadSetting(f"{task.name} has no reading of facts held under overload; leave --overload out")
    return load


def _parameter_limits(request: Request, name: str) -> tuple[int, int]:
    """The values that --minimize searches: from the smallest that can be built to a multiple of the present one."""
    plugin = request.architecture.plugin
    fields = type(plugin).model_fields
    if name not in fields:
        raise UnknownName.among(f"field of {plugin.name}", name, fields, f"capbench describe {plugin.name}")
    value = getattr(plugin, name)
    if isinstance(value, bool) or not isinstance(value, int):
        raise BadSetting(f"--minimize takes a field that is a whole number; {plugin.name}.{name} is {value!r}")
    most = next((m.le for m in fields[name].metadata if hasattr(m, "le")), value * LARGEST_MULTIPLE)
    unit = _smallest_value(request, name, max(1, value))
    return unit, max(1, min(int(most), max(1, value) * LARGEST_MULTIPLE) // unit) * unit


def _smallest_value(request: Request, name: str, present: int) -> int:
    """The smallest value with which the architecture can be built on this task; the search tries its multiples."""
    for value in range(1, present):
        try:
            count_parameters(request.task.plugin, request.architecture.replaced(**{name: value}).plugin)
        except (BadSetting, UnsupportedSignature):
            continue
        return value
    return present
