"""Training: a group of lanes from first step to verdicts, finished lanes leaving the stack on the way."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from capbench.engine.batches import Batches
from capbench.engine.gradients import CompileMode, Gradients
from capbench.engine.lanes import LaneGroup, Pair, Training, TrialSpec
from capbench.engine.stack import Batched, Stack, build_stack
from capbench.results import FACTS_HELD, Trial, TrialStatus
from capbench.solver import GradientSolver

CHECK_EVERY = 25
"""Steps between two looks at the metrics: the only moments at which the host waits for the device."""
COMPACT_BELOW = 0.9
"""The stack is compacted when less than this share of its lanes is still training."""
COMPACT_COMPILED = 0.3
"""The same for a compiled step, which has to be compiled anew for every number of lanes."""
PATIENCE = 0.4
"""Share of all steps that a lane may go without a better metric before it counts as a plateau."""
BETTER_BY = 0.002
"""What counts as a better metric, as a share of the criterion's threshold."""
NEARLY = 0.02
"""A lane within this share of the criterion's threshold is never given up as a plateau."""

OnTrial = Callable[[Trial, dict[str, Tensor]], None]
"""Told of a trial as it ends, with its weights by name."""
OnProgress = Callable[[int, int], None]
"""Told the step and the number of lanes still training, at every look."""


@dataclass
class Cost:
    """What training took."""

    seconds: float = 0.0
    lane_steps: int = 0
    compile_seconds: float = 0.0

    def add(self, other: Cost) -> None:
        """Adds another group's cost."""
        self.seconds += other.seconds
        self.lane_steps += other.lane_steps
        self.compile_seconds += other.compile_seconds


@dataclass
class Lane:
    """The trial that a lane of the stack carries, and how its metric has moved."""

    trial: TrialSpec
    data: dict[str, float]
    alive: bool = True
    best: float = -math.inf
    best_step: int = 0


def train_group(
    group: LaneGroup,
    device: torch.device,
    on_trial: OnTrial,
    on_progress: OnProgress,
    compile_mode: CompileMode = "off",
) -> Cost:
    """Trains every trial of a group to its end, reporting each as it ends."""
    started = time.perf_counter()
    solver, steps = group.pair.solver.plugin, group.pair.training.steps
    assert isinstance(solver, GradientSolver)
    live = _open(group, solver, device)
    batched = Batched(group.pair, live.stack)
    gradients = Gradients(batched, compile_mode)
    cost, step = Cost(), 0
    while live.n_alive:
        last_look, until = time.perf_counter(), min(step + CHECK_EVERY, steps)
        cost.lane_steps += (until - step) * live.n_alive
        for mask in live.masks(until - step):
            stack = live.stack.asking(mask)
            if step >= steps - live.tally.n_batches:
                live.tally.add(batched.metrics(stack))
            solver.update(stack.weights, gradients(stack), live.state, stack.learning_rate, step, steps)
            step += 1
        scores = {**batched.metrics(live.stack), **live.tally.means()}
        for trial, weights in _verdicts(group.pair, batched, live, scores, step):
            on_trial(trial, weights)
        on_progress(step, live.n_alive)
        gradients.consider((time.perf_counter() - last_look) / CHECK_EVERY, steps - step)
        live.compact(COMPACT_COMPILED if gradients.is_compiled else COMPACT_BELOW)
    cost.compile_seconds = gradients.compile_seconds
    cost.seconds = time.perf_counter() - started - cost.compile_seconds
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

    def masks(self, n_steps: int) -> Iterable[Tensor]:
        """What each of the next steps asks for: all facts, or a batch of them."""
        return self.batches.masks(n_steps) if self.batches else [self.stack.problem.mask] * n_steps

    def compact(self, below: float) -> None:
        """Drops finished lanes once less than a share of them is alive; two stay at least."""
        alive = [i for i, lane in enumerate(self.lanes) if lane.alive]
        if not alive or len(self.lanes) <= 2 or len(alive) > below * len(self.lanes):
            return
        company = [i for i, lane in enumerate(self.lanes) if not lane.alive]
        keep = sorted([*alive, *company[: max(0, 2 - len(alive))]])
        index = torch.tensor(keep, device=self.stack.weights.device)
        self.lanes = [self.lanes[i] for i in keep]
        self.stack = self.stack.kept(index)
        self.state = {name: tensor[index] for name, tensor in self.state.items()}
        self.batches = self.batches and self.batches.kept(keep, self.stack.problem.mask)
        self.tally.keep(index)


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


def _open(group: LaneGroup, solver: GradientSolver, device: torch.device) -> Live:
    """A group before its first step. One lane alone would take other kernels than two: a lone trial gets company."""
    n_lanes = max(2, len(group.trials))
    trials = tuple(group.trials[i % len(group.trials)] for i in range(n_lanes))
    stack, examined = build_stack(LaneGroup(group.pair, group.slots, trials), device)
    lanes = [
        Lane(trial, data, alive=i < len(group.trials))
        for i, (trial, data) in enumerate(zip(trials, examined, strict=True))
    ]
    sampling = group.pair.training.sampling
    batches = Batches(sampling, group.pair, trials, stack.problem.mask) if sampling else None
    return Live(lanes, stack, solver.init(stack.weights), batches, Tally(sampling.scored_batches if sampling else 0))


def _verdicts(
    pair: Pair, batched: Batched, live: Live, scores: dict[str, Tensor], step: int
) -> Iterator[tuple[Trial, dict[str, Tensor]]]:
    """The trials that end at this step, with their weights. Updates the lanes."""
    criterion = pair.training.criterion
    metrics = {name: values.double().cpu().tolist() for name, values in scores.items()}
    finite = torch.isfinite(live.stack.weights).all(dim=1).cpu().tolist()
    named = live.stack.layout.split(live.stack.weights)
    for i, lane in enumerate(live.lanes):
        value = metrics[criterion.metric][i] if finite[i] else math.nan
        status = _status(pair.training, value, step, lane) if lane.alive else None
        if status is None:
            continue
        lane.alive = False
        own = {name: values[i] for name, values in metrics.items() if math.isfinite(values[i])}
        found = batched.analysis(live.stack, i) if pair.training.analyses else {}
        weights = {name: w[i].clone() for name, w in named.items()}
        yield finished(pair, lane.trial, status, step, own, {**lane.data, **found}), weights


def finished(
    pair: Pair, trial: TrialSpec, status: TrialStatus, steps: int, metrics: dict[str, float], data: dict[str, float]
) -> Trial:
    """The record of a trial that has ended, with the facts it holds where its task can tell."""
    held = pair.task.plugin.facts_held(metrics, trial.load)
    if held is not None:
        metrics = {**metrics, FACTS_HELD: held}
    return Trial(
        key=pair.key(trial),
        load=trial.load,
        seed=trial.seed,
        learning_rate=trial.learning_rate,
        status=status,
        steps=steps,
        metrics=metrics,
        data=data,
    )


def _status(training: Training, value: float, step: int, lane: Lane) -> TrialStatus | None:
    """How a lane ends now, or None if it goes on. Updates its best metric."""
    if not math.isfinite(value):
        return TrialStatus.DIVERGED
    sign = 1 if training.criterion.at_least else -1
    score, goal = sign * value, sign * training.criterion.threshold
    is_last = step >= training.steps
    if not (training.stops_early or is_last):
        return None
    if score >= goal:
        return TrialStatus.HELD
    if score > lane.best + BETTER_BY * abs(goal):
        lane.best, lane.best_step = score, step
    if is_last:
        return TrialStatus.NOT_HELD
    is_near = score >= goal - NEARLY * abs(goal)
    is_stuck = step - lane.best_step >= PATIENCE * training.steps
    return TrialStatus.PLATEAU if is_stuck and not is_near else None
