"""Construction: explicit weights of a constructive solver, scored like trained ones."""

from __future__ import annotations

import math

import torch
from torch.func import functional_call

from capbench.contract.solver import ConstructiveSolver
from capbench.contract.task import Problem
from capbench.documents.result import Trial, TrialStatus
from capbench.engine.cost import Cost
from capbench.engine.devices import kept_as
from capbench.engine.evaluation import OnProgress, OnTrials, analyse, finished_trial
from capbench.engine.margin import weight_quality
from capbench.engine.rounding import score_rounded
from capbench.engine.stack import make_module, make_problem, placed
from capbench.engine.torch_private import tree_map
from capbench.engine.trials import Setup, TrialGroup, TrialSpec


def construct_group(group: TrialGroup, on_trials: OnTrials, on_progress: OnProgress) -> Cost:
    """Constructs every trial of a group, one after the other: there is nothing to train.

    On the CPU, whatever device trains: it is one model at a time, and Apple's GPUs have no double precision.
    """
    cost = Cost()
    for done, trial in enumerate(group.trials, start=1):
        with cost.timed("construct"):
            constructed = _construct(group.setup, trial, group.slots)
        on_trials([constructed])
        on_progress(done, len(group.trials) - done)
    return cost


def _construct(setup: Setup, trial: TrialSpec, slots: int) -> Trial:
    """One trial: the solver's weights in the module that other solvers train, scored on the same problem."""
    solver, task = setup.solver.plugin, setup.task.plugin
    assert isinstance(solver, ConstructiveSolver)
    drawn = make_problem(setup, trial, slots)
    problem: Problem = tree_map(placed(setup, torch.device("cpu")), drawn)
    module = make_module(setup, trial).to(dtype=kept_as(setup.training.dtype))
    generator = torch.Generator().manual_seed(setup.init_seed(trial))
    weights = solver.find_weights(task, setup.architecture.plugin, module, problem, trial.load, generator)
    with torch.no_grad():
        outputs = functional_call(module, weights, problem.inputs)
        metrics = {name: float(value) for name, value in task.metrics(outputs, problem).items()}
    criterion = setup.training.criterion
    status = TrialStatus.HELD if criterion.is_met(metrics[criterion.metric]) else TrialStatus.NOT_HELD
    scores = {name: score for name, score in metrics.items() if math.isfinite(score)}
    tensors = {**dict(module.named_buffers()), **weights}
    found = analyse(setup, module, tensors, problem) if setup.training.analyses else {}
    found |= weight_quality(task, criterion, module, weights, dict(module.named_buffers()), problem)
    found |= score_rounded(setup, module, weights, dict(module.named_buffers()), problem)
    return finished_trial(setup, trial, status, 0, scores, {**task.examine(drawn), **found})
