"""Training a group: from the first step until every trial has ended; finished lanes are removed from the stack."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from capbench.contract.solver import GradientSolver
from capbench.documents.result import BITS, Trial
from capbench.engine.batches import Batches
from capbench.engine.cost import Cost
from capbench.engine.devices import counting_dtype, matmul_precision
from capbench.engine.evaluation import (
    Evaluation,
    Lane,
    PendingEvaluations,
    analyse_lane,
    finished_trial,
    stopping_status,
)
from capbench.engine.stack import Batched, Stack, build_stack
from capbench.engine.step import Step, prepare_programs
from capbench.engine.trials import Setup, TrialGroup

CHECK_EVERY = 25
"""Steps between two evaluations: the only moments at which the host asks the device for numbers."""
COMPACT_BELOW = 0.9
"""The stack is compacted when less than this share of its lanes is needed."""

OnTrials = Callable[[Sequence[Trial]], None]
"""Receives the trials that ended at one evaluation."""
OnProgress = Callable[[int, int], None]
"""Receives the step and the number of lanes still training, after every evaluation."""
OnWeights = Callable[[Trial, dict[str, Tensor]], None]
"""Receives a trial that has ended with its trained weights by parameter name."""


def train_group(
    group: TrialGroup,
    device: torch.device,
    on_trials: OnTrials,
    on_progress: OnProgress,
    on_weights: OnWeights | None = None,
) -> Cost:
    """Trains every trial of a group to its end, reporting each as it ends."""
    with matmul_precision(group.setup.training.dtype, device):
        cost = Cost()
        with cost.timed("build"):
            training = _open(group, device, cost)
        while training.live.n_alive:
            training.advance(cost)
            for evaluation in training.evaluate(cost):
                with cost.timed("verdicts"):
                    ended = list(_ended_trials(group.setup, evaluation, training.is_compiled, on_weights))
                if ended:
                    on_trials(ended)
            on_progress(training.step, training.live.n_alive)
            training.compact()
        return cost


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
        self.batches = self.batches and self.batches.kept(keep, self.stack.problem)
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

    @property
    def is_compiled(self) -> bool:
        """Whether its steps are compiled."""
        return self.stepper.block is not None

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
        cost.lane_steps += n_steps * n_alive
        cost.compiled_lane_steps += n_steps * n_alive * self.is_compiled

    def _take_batches(self, batches: Batches, numbers: Sequence[Tensor]) -> None:
        """One step per number, each on the next batch."""
        n_unscored = len(self.numbers) - self.live.tally.n_batches - self.step
        for i, problem in enumerate(batches.problems(len(numbers))):
            stack = self.live.stack.asking(problem)
            if i >= n_unscored:
                self.live.tally.add(self.batched.metrics(stack))
            self.stepper(stack, self.live.state, numbers[i : i + 1])

    def compact(self) -> None:
        """Drops finished lanes that the step can do without."""
        if self.live.n_alive:
            self.live.compact(lanes_for(self.live.n_alive, self.stepper.block))

    def evaluate(self, cost: Cost) -> list[Evaluation]:
        """Computes the metrics of all lanes; returns the evaluations whose numbers have arrived."""
        with cost.timed("metrics"):
            scores = {**self.stepper.metrics(self.live.stack), **self.live.tally.means()}
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


def lanes_for(n_alive: int, block: int | None) -> int:
    """Lanes that a stack needs for so many trials: whole blocks, or at least two.

    One lane alone uses other kernels and rounds differently.
    """
    return max(2, n_alive) if block is None else math.ceil(n_alive / block) * block


def _open(group: TrialGroup, device: torch.device, cost: Cost) -> GroupTraining:
    """A group before its first step."""
    setup = group.setup
    solver, steps = setup.solver.plugin, setup.training.steps
    assert isinstance(solver, GradientSolver)
    programs = None
    if group.is_compiled:
        programs, seconds = prepare_programs(group, device)
        cost.move("build", "compile", seconds)
    n_lanes = lanes_for(len(group.trials), programs.block if programs else None)
    trials = tuple(group.trials[i % len(group.trials)] for i in range(n_lanes))
    stack, examined = build_stack(group.part(trials), device)
    lanes = [
        Lane(trial, data, alive=i < len(group.trials))
        for i, (trial, data) in enumerate(zip(trials, examined, strict=True))
    ]
    sampling = setup.training.sampling
    batches = Batches(sampling, setup, trials, stack.problem) if sampling else None
    tally = MetricTally(sampling.scored_batches if sampling else 0)
    batched = Batched(setup, stack)
    return GroupTraining(
        LiveGroup(lanes, stack, solver.init(stack.weights), batches, tally),
        batched,
        Step(batched, setup, programs),
        PendingEvaluations(is_late=device.type == "cuda"),
        torch.arange(steps, dtype=counting_dtype(device), device=device),
    )


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
        data = {**lane.data, **found}
        trial = finished_trial(setup, lane.trial, status, evaluation.step, own, data, is_compiled)
        if on_weights is not None:
            weights = evaluation.stack.layout.split(evaluation.stack.weights)
            on_weights(trial, {name: tensor[i].clone() for name, tensor in weights.items()})
        yield trial
