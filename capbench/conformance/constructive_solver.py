"""Rules for constructive solvers: weights that fit the module, for loads within reach, scored by the engine."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from capbench.conformance.check import Check, DoesNotApply, Violation, unexpected_error
from capbench.conformance.side_effects import refuse_global_changes
from capbench.conformance.subject import Subject, build, call_every_method, label, small_problem
from capbench.contract.solver import ConstructiveSolver
from capbench.contract.task import Problem
from capbench.documents.result import Trial, TrialStatus
from capbench.engine.construct import construct_group
from capbench.engine.trials import Setup, TrialGroup, TrialSpec
from capbench.errors import CannotConstruct


def reaches(subject: Subject) -> str:
    """reach returns a load of at least 1 for some built-in pair, and raises CannotConstruct for the others."""
    reached = []
    for setup in subject.setups():
        try:
            most = subject.configured.plugin.reach(setup.task.plugin, setup.architecture.plugin)
        except CannotConstruct:
            continue
        except Exception as error:
            raise Violation(
                f"a load or CannotConstruct for {label(setup)}",
                unexpected_error(error).seen,
                "test task.name and architecture.name first, and raise CannotConstruct with the pairs that it supports",
            ) from error
        if not isinstance(most, int) or most < 1:
            raise Violation(f"a load of at least 1 for {label(setup)}", f"{most!r}", "raise CannotConstruct below 1")
        reached.append(f"{label(setup)}: {most}")
    if not reached:
        raise Violation("a load for at least one pair", "CannotConstruct for all", "check the conditions in reach")
    return ", ".join(reached)


def weights_fit(subject: Subject) -> None:
    """find_weights returns every parameter by name, finite, in its shape and in the problem's precision."""
    for setup, load in _supported(subject):
        module = build(setup.architecture.plugin, setup.task.plugin.signature).double()
        found = _weights(subject, setup, load)
        expected = {name: (p.shape, torch.float64) for name, p in module.named_parameters()}
        if {name: (w.shape, w.dtype) for name, w in found.items()} != expected:
            raise Violation(
                f"the parameters of {label(setup)}: {', '.join(expected)}, as float64",
                ", ".join(f"{name} {tuple(w.shape)} {w.dtype}" for name, w in found.items()),
                "return {name: weights.to(problem.mask) for name, _ in module.named_parameters()}",
            )
        if not all(w.isfinite().all() for w in found.values()):
            raise Violation(f"finite weights for {label(setup)}", "NaN or infinity", "keep scales finite")


def deterministic(subject: Subject) -> None:
    """The same generator gives the same weights."""
    for setup, load in _supported(subject):
        first, again = (_weights(subject, setup, load) for _ in range(2))
        if not all(torch.equal(first[name], again[name]) for name in first):
            raise Violation(
                f"equal weights from equal generators ({label(setup)})",
                "they differ",
                "draw from the generator passed in",
            )


def no_global_randomness(subject: Subject) -> None:
    """reach and find_weights draw only from the generator passed in."""
    _supported(subject)
    refuse_global_changes(lambda: call_every_method(subject))


def scored(subject: Subject) -> str:
    """The engine can score what it constructs at the largest load that it claims."""
    statuses = []
    for setup, load in _supported(subject):
        trial = _construct(subject, setup, load)
        if trial.status not in (TrialStatus.HELD, TrialStatus.NOT_HELD):
            raise Violation(
                f"held or not held for {label(setup)}", f"{trial.status}", "try it with capbench run --solver"
            )
        statuses.append(f"{label(setup)} {trial.status.value.replace('_', ' ')} at {load}")
    return ", ".join(statuses)


CHECKS: tuple[Check[Subject], ...] = (reaches, weights_fit, deterministic, no_global_randomness, scored)


def _supported(subject: Subject) -> list[tuple[Setup, int]]:
    """The pairs that it supports, each with the largest load that it claims."""
    solver: ConstructiveSolver = subject.configured.plugin
    supported = []
    for setup in subject.setups():
        try:
            most = solver.reach(setup.task.plugin, setup.architecture.plugin)
        except Exception:  # noqa: BLE001 - the plugin border; `reaches` reports the error
            continue
        supported.append((setup, min(most, setup.task.plugin.max_load)))
    if not supported:
        raise DoesNotApply("it supports no pair")
    return supported


def _weights(subject: Subject, setup: Setup, load: int) -> dict[str, Tensor]:
    solver: ConstructiveSolver = subject.configured.plugin
    task, architecture = setup.task.plugin, setup.architecture.plugin
    module = build(architecture, task.signature).double()
    problem = _double(small_problem(task, load))
    return solver.find_weights(task, architecture, module, problem, load, torch.Generator().manual_seed(0))


def _construct(subject: Subject, setup: Setup, load: int) -> Trial:
    """Runs one trial as the engine does."""
    training = replace(setup.training, dtype=subject.configured.plugin.dtype)
    own = replace(setup, solver=subject.configured, training=training)
    spec = TrialSpec(load, 0, None)
    ended: list[Trial] = []
    group = TrialGroup(own, own.slots(spec), (spec,))
    construct_group(group, ended.extend, lambda *_: None)
    return ended[0]


def _double(problem: Problem) -> Problem:
    parts = (*problem.inputs, problem.targets, problem.mask)
    *inputs, targets, mask = (t.double() if t.is_floating_point() else t for t in parts)
    return Problem(tuple(inputs), targets, mask)
