"""Training: a group of lanes from first step to verdicts, finished lanes leaving the stack on the way."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from capbench.engine.analysis import analyse_lane
from capbench.engine.batches import Batches
from capbench.engine.compiling import Compiling, lane_steps_ahead, lanes_for
from capbench.engine.cost import Cost
from capbench.engine.devices import counting_dtype
from capbench.engine.lanes import LaneGroup, Pair
from capbench.engine.looks import Look, Looks
from capbench.engine.precision import multiplying
from capbench.engine.stack import Batched, Stack, build_stack
from capbench.engine.step import Step
from capbench.engine.verdicts import Lane, finished, verdict
from capbench.results import Trial
from capbench.solver import GradientSolver
from capbench.task import Problem

CHECK_EVERY = 25
"""Steps between two looks at the metrics: the only moments at which the host asks the device for numbers."""
CONSIDERED_AT = 2 * CHECK_EVERY
"""The step at which a group decides whether to be compiled: by then it is known what a step takes."""
COMPACT_BELOW = 0.9
"""The stack is compacted when less than this share of its lanes is still training."""

OnTrial = Callable[[Trial, dict[str, Tensor]], None]
"""Told of a trial as it ends, with its weights by name."""
OnProgress = Callable[[int, int], None]
"""Told the step and the number of lanes still training, at every look."""


def train_group(
    group: LaneGroup,
    device: torch.device,
    on_trial: OnTrial,
    on_progress: OnProgress,
    compiling: Compiling = Compiling(),  # noqa: B008 - frozen
) -> Cost:
    """Trains every trial of a group to its end, reporting each as it ends."""
    with multiplying(group.pair.training.dtype, device):
        return _train(group, device, on_trial, on_progress, compiling)


def _train(
    group: LaneGroup, device: torch.device, on_trial: OnTrial, on_progress: OnProgress, compiling: Compiling
) -> Cost:
    cost = Cost()
    with cost.timed("build"):
        training = _open(group, device, compiling)
    while training.live.n_alive:
        training.advance(cost)
        training.consider(cost)
        for look in training.look(cost):
            with cost.timed("verdicts"):
                ended = list(_verdicts(group.pair, look))
            with cost.timed("store"):
                for trial, weights in ended:
                    on_trial(trial, weights)
        on_progress(training.step, training.live.n_alive)
        training.compact()
    training.close(cost)
    return cost


@dataclass
class Live:
    """A group in training: all that has a row for each lane."""

    lanes: list[Lane]
    stack: Stack
    state: dict[str, Tensor]
    batches: Batches | None
    tally: Tally

    @property
    def n_alive(self) -> int:
        """Lanes still training."""
        return sum(lane.alive for lane in self.lanes)

    def problems(self, n_steps: int) -> Iterable[Problem]:
        """What each of the next steps asks for: all facts, or a batch of them."""
        return self.batches.problems(n_steps) if self.batches else [self.stack.problem] * n_steps

    def compact(self, n_lanes: int) -> None:
        """Drops finished lanes once they are a good share; so many lanes stay, at the least."""
        if n_lanes > COMPACT_BELOW * len(self.lanes):
            return
        alive = [i for i, lane in enumerate(self.lanes) if lane.alive]
        company = [i for i, lane in enumerate(self.lanes) if not lane.alive]
        keep = sorted([*alive, *company[: n_lanes - len(alive)]])
        index = torch.tensor(keep, device=self.stack.weights.device)
        self.lanes = [self.lanes[i] for i in keep]
        self.stack = self.stack.kept(index)
        self.state = {name: tensor[index] for name, tensor in self.state.items()}
        self.batches = self.batches and self.batches.kept(keep, self.stack.problem)
        self.tally.keep(index)


@dataclass
class GroupTraining:
    """A group, the step that trains it, and how far it is."""

    group: LaneGroup
    compiling: Compiling
    live: Live
    batched: Batched
    stepper: Step
    looks: Looks
    numbers: Tensor
    """The number of each step, as data on the device."""
    step: int = 0
    seconds_a_lane_step: float = 0
    """As it was up to the last look."""

    def advance(self, cost: Cost) -> None:
        """Takes the steps up to the next look."""
        n_steps, started = min(CHECK_EVERY, len(self.numbers) - self.step), time.perf_counter()
        alive = [lane.alive for lane in self.live.lanes]
        cost.lane_steps += n_steps * sum(alive)
        cost.compiled_lane_steps += n_steps * sum(alive[: self.stepper.n_compiled(len(alive))])
        with cost.timed("steps"):
            for problem in self.live.problems(n_steps):
                stack = self.live.stack.asking(problem)
                if self.step >= len(self.numbers) - self.live.tally.n_batches:
                    self.live.tally.add(self.batched.metrics(stack))
                self.stepper(stack, self.live.state, self.numbers[self.step])
                self.step += 1
        self.seconds_a_lane_step = (time.perf_counter() - started) / (n_steps * len(alive))

    def consider(self, cost: Cost) -> None:
        """Once it has been seen what a step takes, has steps compiled from now on if that pays."""
        if self.step != CONSIDERED_AT or self.stepper.block is not None or not self.batched.is_batched:
            return
        ahead = lane_steps_ahead(self.group, self.live.n_alive, len(self.numbers) - self.step)
        seconds, device = ahead * self.seconds_a_lane_step, self.numbers.device
        with cost.timed("build"):
            self.stepper.block = self.compiling.block_later(self.group, device, seconds, self.stepper.share_saved)

    def compact(self) -> None:
        """Drops finished lanes, as far as the step can do without them."""
        if self.live.n_alive:
            self.live.compact(lanes_for(self.live.n_alive, self.stepper.block))

    def look(self, cost: Cost) -> list[Look]:
        """Looks at the metrics; returns the looks whose verdicts are due."""
        with cost.timed("metrics"):
            scores = {**self.batched.metrics(self.live.stack), **self.live.tally.means()}
            look = self.looks.take(self.step, self.live.lanes, self.live.stack, scores)
            return self.looks.due(look, is_last=self.step >= len(self.numbers))

    def close(self, cost: Cost) -> None:
        """Books what compiling took, and remembers that it was done."""
        if self.stepper.compile_seconds:
            cost.spend("compile", self.stepper.compile_seconds)
            cost.spend("steps", -self.stepper.compile_seconds)
            self.compiling.remember(self.group, self.numbers.device, self.stepper.program)


class Tally:
    """Means of the metrics over the last training batches, where a protocol scores so."""

    def __init__(self, n_batches: int) -> None:
        self.n_batches = n_batches
        self._sums: dict[str, Tensor] = {}

    def add(self, metrics: dict[str, Tensor]) -> None:
        """Counts one batch. Bits are a sum over all facts, of which a batch says nothing."""
        shares = {name: value / self.n_batches for name, value in metrics.items() if name != "bits"}
        self._sums = {name: self._sums.get(name, 0) + share for name, share in shares.items()}

    def keep(self, lanes: Tensor) -> None:
        """Forgets all but the given lanes."""
        self._sums = {name: sums[lanes] for name, sums in self._sums.items()}

    def means(self) -> dict[str, Tensor]:
        """The means so far; empty before the first batch that counts."""
        return self._sums


def _open(group: LaneGroup, device: torch.device, compiling: Compiling) -> GroupTraining:
    """A group before its first step."""
    solver, steps = group.pair.solver.plugin, group.pair.training.steps
    assert isinstance(solver, GradientSolver)
    block = compiling.block(group, device)
    n_lanes = lanes_for(len(group.trials), block)
    trials = tuple(group.trials[i % len(group.trials)] for i in range(n_lanes))
    stack, examined = build_stack(group.part(trials), device)
    lanes = [
        Lane(trial, data, alive=i < len(group.trials))
        for i, (trial, data) in enumerate(zip(trials, examined, strict=True))
    ]
    sampling = group.pair.training.sampling
    batches = Batches(sampling, group.pair, trials, stack.problem) if sampling else None
    live = Live(lanes, stack, solver.init(stack.weights), batches, Tally(sampling.scored_batches if sampling else 0))
    batched = Batched(group.pair, stack)
    program, is_steady = compiling.program(group, device), not group.pair.training.stops_early
    stepper = Step(batched, solver, steps, block if batched.is_batched else None, program, is_steady)
    numbers = torch.arange(steps, dtype=counting_dtype(device), device=device)
    return GroupTraining(group, compiling, live, batched, stepper, Looks(is_late=device.type == "cuda"), numbers)


def _verdicts(pair: Pair, look: Look) -> Iterator[tuple[Trial, dict[str, Tensor]]]:
    """The trials that end at a look, with their weights. Updates the lanes."""
    rows = look.read().tolist()
    metrics, finite = dict(zip(look.names, rows, strict=False)), rows[-1]
    named = look.stack.layout.split(look.stack.weights)
    for i, lane in enumerate(look.lanes):
        value = metrics[pair.training.criterion.metric][i] if finite[i] else math.nan
        status = verdict(pair.training, value, look.step, lane) if lane.alive else None
        if status is None:
            continue
        lane.alive = False
        own = {name: values[i] for name, values in metrics.items() if math.isfinite(values[i])}
        found = analyse_lane(pair, look.stack, i) if pair.training.analyses else {}
        weights = {name: w[i].clone() for name, w in named.items()}
        yield finished(pair, lane.trial, status, look.step, own, {**lane.data, **found}), weights
