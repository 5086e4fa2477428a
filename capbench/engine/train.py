"""Training a group: from the first step until every trial has ended; finished lanes are removed from the stack."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from capbench.contract.solver import GradientSolver
from capbench.documents.result import BITS, Trial, TrialStatus
from capbench.engine.batches import Batches, has_batches
from capbench.engine.cost import Cost
from capbench.engine.devices import counting_dtype, current_device, matmul_precision
from capbench.engine.evaluation import (
    CHECK_EVERY,
    Evaluation,
    Lane,
    OnProgress,
    OnTrials,
    OnWeights,
    PendingEvaluations,
    analyse_lane,
    finished_trial,
    lane_model,
    stopping_status,
)
from capbench.engine.lane_program import prepare_program
from capbench.engine.lanes import train_lanes
from capbench.engine.memory import fits_lanes, lanes_that_fit
from capbench.engine.rounding import score_rounded
from capbench.engine.stack import Batched, Stack, build_stack
from capbench.engine.step import Step
from capbench.engine.trials import Setup, TrialGroup, group_trials

COMPACT_BELOW = 0.9
"""The stack is compacted when less than this share of its lanes is needed."""


def train_group(
    group: TrialGroup,
    device: torch.device,
    on_trials: OnTrials,
    on_progress: OnProgress,
    on_weights: OnWeights | None = None,
) -> Cost:
    """Trains every trial of a group to its end, reporting each as it ends."""
    cost = Cost()
    with matmul_precision(group.setup.training.dtype, device), current_device(device):
        if group.is_compiled and device.type == "cpu":
            program = prepare_program(group, cost)
            if program is not None and fits_lanes(program.n_bytes(group.slots)):
                cost.add(train_lanes(group, program, on_trials, on_progress, on_weights))
                return cost
        for part in _eager_groups(group, device) if group.is_compiled else [group]:
            is_compiled = group.is_compiled and device.type != "cpu"
            _train_stack(part, device, is_compiled, cost, on_trials, on_progress, on_weights)
    return cost


def _eager_groups(group: TrialGroup, device: torch.device) -> list[TrialGroup]:
    """The stacks that train what was meant for a lane program: each of one number of slots, and as large as fits."""
    stacks = group_trials((group.setup, trial) for trial in group.trials)
    if device.type != "cpu":  # the executor has seen to it
        return stacks
    return [part for stack in stacks for part in stack.parts(lanes_that_fit(stack.setup, stack.slots, device))]


def _train_stack(
    group: TrialGroup,
    device: torch.device,
    is_compiled: bool,
    cost: Cost,
    on_trials: OnTrials,
    on_progress: OnProgress,
    on_weights: OnWeights | None,
) -> None:
    """Trains a group as one stack."""
    with cost.timed("build"):
        training = _open(group, device, is_compiled, reads_weights=on_weights is not None)
    while training.live.n_alive:
        training.advance(cost)
        for evaluation in training.evaluate(cost):
            with cost.timed("verdicts"):
                ended = list(_ended_trials(group.setup, evaluation, training.stepper.is_compiled, on_weights))
            if ended:
                on_trials(ended)
        on_progress(training.step, training.live.n_alive)
        training.compact()


@dataclass
class LiveGroup:
    """A group in training: everything that has one row per lane."""

    lanes: list[Lane]
    stack: Stack
    state: dict[str, Tensor]
    batches: Batches | None
    tally: MetricTally

    @property
    def n_alive(self) -> int:
        """Lanes still training."""
        return sum(lane.alive for lane in self.lanes)

    def compact(self, n_lanes: int) -> None:
        """Removes finished lanes once they are a large share; keeps some as padding if needed."""
        if n_lanes > COMPACT_BELOW * len(self.lanes):
            return
        alive = [i for i, lane in enumerate(self.lanes) if lane.alive]
        padding = [i for i, lane in enumerate(self.lanes) if not lane.alive]
        keep = sorted([*alive, *padding[: n_lanes - len(alive)]])
        index = torch.tensor(keep, device=self.stack.weights.device)
        self.lanes = [self.lanes[i] for i in keep]
        self.stack = self.stack.kept(index)
        self.state = {name: tensor[index] for name, tensor in self.state.items()}
        self.batches = self.batches and self.batches.kept(keep)
        self.tally.keep(index)


@dataclass
class GroupTraining:
    """A group, the step that trains it, and how far it is."""

    live: LiveGroup
    batched: Batched
    stepper: Step
    pending: PendingEvaluations
    numbers: Tensor
    """The number of each step, as data on the device."""
    step: int = 0

    def advance(self, cost: Cost) -> None:
        """Takes the steps up to the next evaluation."""
        n_steps, n_alive = min(CHECK_EVERY, len(self.numbers) - self.step), self.live.n_alive
        with cost.timed("steps"):
            numbers = self.numbers[self.step : self.step + n_steps].unbind()
            if self.live.batches is None:
                self.stepper(self.live.stack, self.live.state, numbers)
            else:
                self._take_batches(self.live.batches, numbers)
            self.step += n_steps
        self.stepper.move_cost(cost)
        cost.lane_steps += n_steps * n_alive
        cost.compiled_lane_steps += n_steps * n_alive * self.stepper.is_compiled

    def _take_batches(self, batches: Batches, numbers: Sequence[Tensor]) -> None:
        """One step per number, each on the next batch."""
        n_unscored = len(self.numbers) - self.live.tally.n_batches - self.step
        for i, problem in enumerate(batches.problems(len(numbers))):
            stack = self.live.stack.asking(problem)
            if i >= n_unscored:
                self.live.tally.add(self.batched.metrics(stack))
            self.stepper(stack, self.live.state, numbers[i : i + 1])

    def compact(self) -> None:
        """Drops finished lanes; a compiled step keeps its shape. One lane alone would round differently."""
        if self.live.n_alive and not self.stepper.is_compiled:
            self.live.compact(max(2, self.live.n_alive))

    def evaluate(self, cost: Cost) -> list[Evaluation]:
        """Computes the metrics of all lanes; returns the evaluations whose numbers have arrived."""
        with cost.timed("metrics"):
            scores = {**self.batched.metrics(self.live.stack), **self.live.tally.means()}
            evaluation = self.pending.take(self.step, self.live.lanes, self.live.stack, scores)
            return self.pending.due(evaluation, is_last=self.step >= len(self.numbers))


class MetricTally:
    """Means of the metrics over the last training batches, for protocols that score so."""

    def __init__(self, n_batches: int) -> None:
        self.n_batches = n_batches
        self._sums: dict[str, Tensor] = {}

    def add(self, metrics: dict[str, Tensor]) -> None:
        """Adds one batch; bits are left out, because they are a sum over all facts."""
        shares = {name: value / self.n_batches for name, value in metrics.items() if name != BITS}
        self._sums = {name: self._sums.get(name, 0) + share for name, share in shares.items()}

    def keep(self, lanes: Tensor) -> None:
        """Drops all but the given lanes."""
        self._sums = {name: sums[lanes] for name, sums in self._sums.items()}

    def means(self) -> dict[str, Tensor]:
        """The means so far; empty before the first batch that counts."""
        return self._sums


def _open(group: TrialGroup, device: torch.device, is_compiled: bool, reads_weights: bool) -> GroupTraining:
    """A group before its first step, with two lanes at least: one alone uses other kernels and rounds differently."""
    setup = group.setup
    solver, steps = setup.solver.plugin, setup.training.steps
    assert isinstance(solver, GradientSolver)
    trials = group.trials if len(group.trials) > 1 else group.trials * 2
    stack, examined = build_stack(group.part(trials), device)
    lanes = [
        Lane(trial, data, alive=i < len(group.trials))
        for i, (trial, data) in enumerate(zip(trials, examined, strict=True))
    ]
    sampling = setup.training.sampling
    batches = Batches(setup, trials, stack.problem) if has_batches(setup) else None
    tally = MetricTally(sampling.scored_batches if sampling else 0)
    batched = Batched(setup, stack)
    return GroupTraining(
        LiveGroup(lanes, stack, solver.init(stack.weights), batches, tally),
        batched,
        Step(batched, setup, is_compiled),
        PendingEvaluations(device.type == "cuda", reads_weights or _reads_models(setup)),
        torch.arange(steps, dtype=counting_dtype(device), device=device),
    )


def _reads_models(setup: Setup) -> bool:
    """Whether the weights of a trial are read when it ends."""
    return setup.training.analyses or bool(setup.training.precisions)


def _ended_trials(
    setup: Setup, evaluation: Evaluation, is_compiled: bool, on_weights: OnWeights | None
) -> Iterator[Trial]:
    """The trials that end at an evaluation. Updates the lanes."""
    rows = evaluation.read().tolist()
    metrics, finite = dict(zip(evaluation.names, rows, strict=False)), rows[-1]
    for i, lane in enumerate(evaluation.lanes):
        value = metrics[setup.training.criterion.metric][i] if finite[i] else math.nan
        status = stopping_status(setup.training, value, evaluation.step, lane) if lane.alive else None
        if status is None:
            continue
        lane.alive = False
        own = {name: values[i] for name, values in metrics.items() if math.isfinite(values[i])}
        found = analyse_lane(setup, evaluation.stack, i) if setup.training.analyses else {}
        if setup.training.precisions and status is not TrialStatus.DIVERGED:
            found |= score_rounded(setup, *lane_model(evaluation.stack, i))
        data = {**lane.data, **found}
        trial = finished_trial(setup, lane.trial, status, evaluation.step, own, data, is_compiled)
        if on_weights is not None:
            weights = evaluation.stack.layout.split(evaluation.stack.weights)
            on_weights(trial, {name: tensor[i].clone() for name, tensor in weights.items()})
        yield trial
