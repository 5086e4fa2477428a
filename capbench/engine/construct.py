"""Construction: weights written down by a constructive solver, scored by the same scorer as trained ones."""

from __future__ import annotations

import math

import torch
from torch.func import functional_call
from torch.utils._pytree import tree_map

from capbench.engine.analysis import analyse
from capbench.engine.cost import Cost
from capbench.engine.lanes import LaneGroup, Pair, TrialSpec
from capbench.engine.precision import kept_as
from capbench.engine.stack import make_module, make_problem, placed
from capbench.engine.train import OnProgress, OnTrial
from capbench.engine.verdicts import finished
from capbench.results import Trial, TrialStatus
from capbench.solver import ConstructiveSolver
from capbench.task import Problem


def construct_group(group: LaneGroup, device: torch.device, on_trial: OnTrial, on_progress: OnProgress) -> Cost:
    """Constructs every trial of a group, one after the other: there is nothing to train."""
    cost = Cost()
    for done, trial in enumerate(group.trials, start=1):
        with cost.timed("construct"):
            constructed = _construct(group.pair, trial, group.slots, device)
        with cost.timed("store"):
            on_trial(*constructed)
        on_progress(done, len(group.trials) - done)
    return cost


def _construct(pair: Pair, trial: TrialSpec, slots: int, device: torch.device) -> tuple[Trial, dict[str, torch.Tensor]]:
    """One trial: the solver's weights in the module that is trained elsewhere, on the same problem."""
    solver, task = pair.solver.plugin, pair.task.plugin
    assert isinstance(solver, ConstructiveSolver)
    drawn = make_problem(pair, trial, slots)
    place = placed(pair, device)
    problem: Problem = tree_map(place, drawn)
    module = make_module(pair, trial).to(device=device, dtype=kept_as(pair.training.dtype))
    generator = torch.Generator().manual_seed(pair.init_seed(trial))
    weights = solver.find_weights(task, pair.architecture.plugin, module, problem, trial.load, generator)
    with torch.no_grad():
        outputs = functional_call(module, weights, problem.inputs)
        metrics = {name: float(value) for name, value in task.metrics(outputs, problem).items()}
    criterion = pair.training.criterion
    value = metrics[criterion.metric]
    meets = value >= criterion.threshold if criterion.at_least else value <= criterion.threshold
    status = TrialStatus.HELD if meets else TrialStatus.NOT_HELD
    scores = {name: score for name, score in metrics.items() if math.isfinite(score)}
    tensors = {**dict(module.named_buffers()), **weights}
    found = analyse(pair, module, tensors, problem) if pair.training.analyses else {}
    return finished(pair, trial, status, 0, scores, {**task.examine(drawn), **found}), weights
