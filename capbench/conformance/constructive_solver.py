"""Rules for constructive solvers: weights that fit the module, for loads within reach, judged by the scorer."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from capbench.conformance.exercise import exercise, without_traces
from capbench.conformance.outcome import Check, DoesNotApply, Violation, unforeseen
from capbench.conformance.subject import Subject, build, label, small_problem
from capbench.engine.construct import construct_group
from capbench.engine.lanes import LaneGroup, Pair, TrialSpec
from capbench.errors import CannotConstruct
from capbench.results import Trial, TrialStatus
from capbench.solver import ConstructiveSolver
from capbench.task import Problem


def reaches(subject: Subject) -> str:
    """reach gives a load of at least 1 for some built-in pair, and says CannotConstruct of the others."""
    known = []
    for pair in subject.pairs():
        try:
            most = subject.configured.plugin.reach(pair.task.plugin, pair.architecture.plugin)
        except CannotConstruct:
            continue
        except Exception as error:
            raise Violation(
                f"a load or CannotConstruct for {label(pair)}",
                unforeseen(error).seen,
                "test task.name and architecture.name first, and raise CannotConstruct with what is known",
            ) from error
        if not isinstance(most, int) or most < 1:
            raise Violation(f"a load of at least 1 for {label(pair)}", f"{most!r}", "raise CannotConstruct below 1")
        known.append(f"{label(pair)}: {most}")
    if not known:
        raise Violation("a load for at least one pair", "CannotConstruct for all", "check the conditions in reach")
    return ", ".join(known)


def weights_fit(subject: Subject) -> None:
    """find_weights names every parameter, in its shape and in the precision of the problem, with finite values."""
    for pair, load in _known(subject):
        module = build(pair.architecture.plugin, pair.task.plugin.signature).double()
        found = _weights(subject, pair, load)
        expected = {name: (p.shape, torch.float64) for name, p in module.named_parameters()}
        if {name: (w.shape, w.dtype) for name, w in found.items()} != expected:
            raise Violation(
                f"the parameters of {label(pair)}: {', '.join(expected)}, as float64",
                ", ".join(f"{name} {tuple(w.shape)} {w.dtype}" for name, w in found.items()),
                "return {name: weights.to(problem.mask) for name, _ in module.named_parameters()}",
            )
        if not all(w.isfinite().all() for w in found.values()):
            raise Violation(f"finite weights for {label(pair)}", "NaN or infinity", "keep scales finite")


def deterministic(subject: Subject) -> None:
    """The same generator gives the same weights."""
    for pair, load in _known(subject):
        first, again = (_weights(subject, pair, load) for _ in range(2))
        if not all(torch.equal(first[name], again[name]) for name in first):
            raise Violation(
                f"equal weights from equal generators ({label(pair)})", "they differ", "draw from the generator given"
            )


def no_global_randomness(subject: Subject) -> None:
    """reach and find_weights draw from the generator given and from nothing else."""
    _known(subject)
    without_traces(lambda: exercise(subject))


def scored(subject: Subject) -> str:
    """The engine's scorer gives a verdict on what it constructs, at the largest load it claims."""
    verdicts = []
    for pair, load in _known(subject):
        trial = _constructed(subject, pair, load)
        if trial.status not in (TrialStatus.HELD, TrialStatus.NOT_HELD):
            raise Violation(f"held or not held for {label(pair)}", f"{trial.status}", "see capbench run --solver")
        verdicts.append(f"{label(pair)} {trial.status.value.replace('_', ' ')} at {load}")
    return ", ".join(verdicts)


CHECKS: tuple[Check[Subject], ...] = (reaches, weights_fit, deterministic, no_global_randomness, scored)


def _known(subject: Subject) -> list[tuple[Pair, int]]:
    """The pairs it knows, each with the largest load it claims."""
    solver: ConstructiveSolver = subject.configured.plugin
    known = []
    for pair in subject.pairs():
        try:
            most = solver.reach(pair.task.plugin, pair.architecture.plugin)
        except Exception:  # noqa: BLE001 - the plugin border; `reaches` tells what is wrong
            continue
        known.append((pair, min(most, pair.task.plugin.max_load)))
    if not known:
        raise DoesNotApply("it knows no pair")
    return known


def _weights(subject: Subject, pair: Pair, load: int) -> dict[str, Tensor]:
    solver: ConstructiveSolver = subject.configured.plugin
    task, architecture = pair.task.plugin, pair.architecture.plugin
    module = build(architecture, task.signature).double()
    problem = _double(small_problem(task, load))
    return solver.find_weights(task, architecture, module, problem, load, torch.Generator().manual_seed(0))


def _constructed(subject: Subject, pair: Pair, load: int) -> Trial:
    """A trial as the engine runs it."""
    training = replace(pair.training, dtype=subject.configured.plugin.dtype)
    own = replace(pair, solver=subject.configured, training=training)
    spec, ended = TrialSpec(load, 0, None), []
    group = LaneGroup(own, own.slots(spec), (spec,))
    construct_group(group, torch.device("cpu"), lambda trial, _: ended.append(trial), lambda *_: None)
    trial: Trial = ended[0]
    return trial


def _double(problem: Problem) -> Problem:
    parts = (*problem.inputs, problem.targets, problem.mask)
    *inputs, targets, mask = (t.double() if t.is_floating_point() else t for t in parts)
    return Problem(tuple(inputs), targets, mask)
