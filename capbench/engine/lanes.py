"""Training by a compiled program: as many trials at once as there are lanes, each lane refilled when its trial ends."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

import torch
from torch import Tensor

from capbench.contract.solver import GradientSolver
from capbench.contract.task import Problem
from capbench.documents.result import BITS, Trial, TrialStatus
from capbench.engine.batches import has_batches, lane_batches
from capbench.engine.codegen.program import lane_elements, lane_type
from capbench.engine.codegen.source import LANES
from capbench.engine.cost import Cost
from capbench.engine.evaluation import (
    CHECK_EVERY,
    Lane,
    OnProgress,
    OnTrials,
    OnWeights,
    analyse,
    finished_trial,
    stopping_status,
)
from capbench.engine.lane_program import COUNTED, LaneProgram
from capbench.engine.rounding import score_rounded
from capbench.engine.stack import Layout, Named, fixed_tensors, make_problem, make_start, placed
from capbench.engine.torch_private import tree_leaves, tree_map
from capbench.engine.trials import Setup, TrialGroup, TrialSpec

CPU = torch.device("cpu")


def train_lanes(
    group: TrialGroup,
    program: LaneProgram,
    on_trials: OnTrials,
    on_progress: OnProgress,
    on_weights: OnWeights | None = None,
) -> Cost:
    """Trains every trial of a group to its end, reporting each as it ends. Large loads first: they take longest."""
    cost = Cost()
    waiting = deque(sorted(group.trials, key=lambda trial: -trial.load))
    with cost.timed("build"):
        training = LaneTraining(group, program)
        training.refill(waiting)
    while training.trials:
        training.advance(cost)
        with cost.timed("metrics"):
            scores = training.evaluate()
        with cost.timed("verdicts"):
            ended = training.end(scores, on_weights)
        if ended:
            on_trials(ended)
            with cost.timed("build"):
                training.refill(waiting)
        on_progress(training.furthest_step, len(training.trials) + len(waiting))
    return cost


class LaneTrial:
    """A trial in a lane: its model, its problem, and how far it is."""

    def __init__(self, setup: Setup, trial: TrialSpec, slots: int) -> None:
        drawn = make_problem(setup, trial, slots)
        place = placed(setup, CPU)
        self.module = make_start(setup, trial, drawn)
        self.lane = Lane(trial, setup.task.plugin.examine(drawn))
        self.problem: Problem = tree_map(place, drawn)
        self.layout = Layout.of(self.module)
        self.weights = place(self.layout.flatten(self.module))
        self.fixed: Named = {name: place(tensor) for name, tensor in fixed_tensors(self.module).items()}
        self.batches = lane_batches(setup, trial, self.problem) if has_batches(setup) else None
        self.step = 0
        self.batch_scores: list[float] = []
        """Metrics summed over the last batches, where the protocol scores those."""

    @property
    def n_slots(self) -> int:
        """The slots that its problem takes."""
        return len(self.problem.mask)


class LaneMemory:
    """What the compiled functions of a program read and write: tensors whose last axis is lanes."""

    def __init__(self, program: LaneProgram, setup: Setup, like: LaneTrial, slots: int) -> None:
        solver, count = setup.solver.plugin, torch.zeros(1, dtype=COUNTED)
        assert isinstance(solver, GradientSolver)
        state = solver.init(like.weights.unsqueeze(0))
        self._first_state = [lane_elements(tensor.flatten()) for tensor in state.values()]
        self.weights, self.rate = _empty(like.weights), _empty(like.weights[:1])
        self.number, self.steps = _empty(count), _empty(count).fill_(setup.training.steps)
        self.fixed = [_empty(tensor) for tensor in like.fixed.values()]
        leaves = tree_leaves(like.problem)
        growing = program.growing or [False] * len(leaves)
        self.problem = [
            _empty(tensor, slots / like.n_slots if grows else 1) for tensor, grows in zip(leaves, growing, strict=True)
        ]
        self.state = [_empty(tensor) for tensor in state.values()]
        self.scores = torch.zeros(len(program.metric_names), LANES, dtype=COUNTED)
        self.asked, self.is_per_step = self.problem, [False] * len(self.problem)
        if like.batches is not None:
            shapes, self.is_per_step = tree_leaves(like.batches.like()), like.batches.is_per_step
            self.asked = [
                torch.zeros(CHECK_EVERY, tensor[0].numel(), LANES, dtype=lane_type(tensor.dtype)) if moves else own
                for tensor, moves, own in zip(shapes, self.is_per_step, self.problem, strict=True)
            ]

    def put(self, lane: int, trial: LaneTrial) -> None:
        """Loads a trial into a lane."""
        self.weights[:, lane] = trial.weights
        self.rate[:, lane] = torch.tensor(trial.lane.trial.learning_rate or 0.0)
        self.number[:, lane] = 0
        for own, tensor in zip(self.fixed, trial.fixed.values(), strict=True):
            own[:, lane] = lane_elements(tensor.flatten())
        for own, tensor in zip(self.problem, tree_leaves(trial.problem), strict=True):
            own[:, lane] = 0  # slots beyond its load count for nothing, whatever was there before
            own[: tensor.numel(), lane] = lane_elements(tensor.flatten())
        for own, tensor in zip(self.state, self._first_state, strict=True):
            own[:, lane] = tensor

    def ask(self, lane: int, problem: Problem) -> None:
        """Loads the batches of the next steps of a lane."""
        for own, tensor, moves in zip(self.asked, tree_leaves(problem), self.is_per_step, strict=True):
            if moves:
                own[: len(tensor), :, lane] = lane_elements(tensor.flatten(1))


class LaneTraining:
    """The trials in the lanes, and the compiled functions that train and evaluate them."""

    def __init__(self, group: TrialGroup, program: LaneProgram) -> None:
        self._setup, self._slots, self._names = group.setup, group.slots, program.metric_names
        self._grows = program.growing is not None
        self.trials: dict[int, LaneTrial] = {}
        like = self._make(group.trials[0])
        self._memory = memory = LaneMemory(program, group.setup, like, group.slots)
        results = [torch.zeros_like(tensor) for tensor in (memory.weights, *memory.state)]
        given = [memory.weights, memory.rate, memory.number, memory.steps, *memory.fixed]
        moves = [*([False] * len(given)), *memory.is_per_step, *([False] * (len(memory.state) + len(results)))]
        tensors = [*given, *memory.asked, *memory.state, *results]
        self._repeat_step = program.program.bind_loop(group.slots, tensors, len(memory.state), moves)
        scores = [*memory.scores.unsqueeze(1)]
        self._evaluate = program.program.bind(
            "metrics", group.slots, [memory.weights, *memory.fixed, *memory.problem, *scores]
        )
        sampling = group.setup.training.sampling
        self._n_scored = sampling.scored_batches if sampling else 0
        if self._n_scored:
            firsts = [own[0] if each else own for own, each in zip(memory.asked, memory.is_per_step, strict=True)]
            self._evaluate_batch = program.program.bind(
                "batch_metrics", group.slots, [memory.weights, *memory.fixed, *firsts, *scores]
            )

    @property
    def furthest_step(self) -> int:
        """The step of the trial that is furthest."""
        return max((trial.step for trial in self.trials.values()), default=0)

    def refill(self, waiting: deque[TrialSpec]) -> None:
        """Puts waiting trials into free lanes."""
        for lane in range(LANES):
            if waiting and lane not in self.trials:
                trial = self._make(waiting.popleft())
                self._memory.put(lane, trial)
                self.trials[lane] = trial

    def advance(self, cost: Cost) -> None:
        """Takes steps until the first trial is to be evaluated."""
        total = self._setup.training.steps
        n_steps = min(min(CHECK_EVERY - t.step % CHECK_EVERY, total - t.step) for t in self.trials.values())
        scored_from = total - self._n_scored
        with cost.timed("steps"):
            if self._n_scored and any(trial.step + n_steps > scored_from for trial in self.trials.values()):
                for _ in range(n_steps):
                    self._take_scored_step(scored_from)
            else:
                self.take_steps(n_steps)
        cost.lane_steps += n_steps * len(self.trials)
        cost.compiled_lane_steps += n_steps * len(self.trials)

    def take_steps(self, n_steps: int) -> None:
        """Takes steps of all lanes."""
        self._draw_batches(n_steps)
        self._repeat_step(self._n_slots, n_steps)
        for trial in self.trials.values():
            trial.step += n_steps

    def evaluate(self) -> list[list[float]]:
        """The metrics of each lane, and whether its weights are finite."""
        self._evaluate(self._n_slots)
        finite = torch.isfinite(self._memory.weights).all(dim=0)
        rows: list[list[float]] = torch.cat([self._memory.scores, finite.unsqueeze(0)]).t().tolist()
        return rows

    def end(self, scores: Sequence[Sequence[float]], on_weights: OnWeights | None) -> list[Trial]:
        """The trials that end now; their lanes become free."""
        ended = []
        for lane, trial in list(self.trials.items()):
            if trial.step % CHECK_EVERY and trial.step < self._setup.training.steps:
                continue
            found = self._ended(trial, scores[lane], lane, on_weights)
            if found is not None:
                ended.append(found)
                del self.trials[lane]
        return ended

    @property
    def _n_slots(self) -> int:
        """The slots that the trials in the lanes need."""
        return max(trial.n_slots for trial in self.trials.values()) if self._grows else self._slots

    def _make(self, trial: TrialSpec) -> LaneTrial:
        return LaneTrial(self._setup, trial, trial.load if self._grows else self._slots)

    def _draw_batches(self, n_steps: int) -> None:
        for lane, trial in self.trials.items():
            if trial.batches is not None:
                self._memory.ask(lane, trial.batches.take(n_steps))

    def _take_scored_step(self, scored_from: int) -> None:
        """One step; trials near their end are scored on the batch before it."""
        self._draw_batches(1)
        self._evaluate_batch(self._n_slots)
        scores = self._memory.scores.t().tolist()
        self._repeat_step(self._n_slots, 1)
        for lane, trial in self.trials.items():
            if trial.step >= scored_from:
                before = trial.batch_scores or [0.0] * len(self._names)
                trial.batch_scores = [a + b / self._n_scored for a, b in zip(before, scores[lane], strict=True)]
            trial.step += 1

    def _ended(
        self, trial: LaneTrial, scores: Sequence[float], lane: int, on_weights: OnWeights | None
    ) -> Trial | None:
        """The record of a trial, if it ends at this evaluation."""
        training = self._setup.training
        metrics = dict(zip(self._names, scores, strict=False))
        means = dict(zip(self._names, trial.batch_scores, strict=False))
        metrics |= {name: value for name, value in means.items() if name != BITS}  # bits are a sum over all facts
        value = metrics[training.criterion.metric] if scores[-1] else math.nan
        status = stopping_status(training, value, trial.step, trial.lane)
        if status is None:
            return None
        weights = trial.layout.split(self._memory.weights[:, lane].unsqueeze(0).contiguous())
        own = {name: tensor[0] for name, tensor in weights.items()}
        found = analyse(self._setup, trial.module, {**own, **trial.fixed}, trial.problem) if training.analyses else {}
        if training.precisions and status is not TrialStatus.DIVERGED:
            found |= score_rounded(self._setup, trial.module, own, trial.fixed, trial.problem)
        finite = {name: number for name, number in metrics.items() if math.isfinite(number)}
        record = finished_trial(
            self._setup, trial.lane.trial, status, trial.step, finite, {**trial.lane.data, **found}, compiled=True
        )
        if on_weights is not None:
            on_weights(record, own)
        return record


def _empty(like: Tensor, times: float = 1) -> Tensor:
    """Lanes for a tensor, or for one that is so many times as large."""
    return torch.zeros(round(like.numel() * times), LANES, dtype=lane_type(like.dtype))
