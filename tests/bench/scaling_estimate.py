"""What the paper suite would take on many workers: its own plan, searched on paper, on a schedule of measured costs."""

from __future__ import annotations

import heapq
import math
import random
import tempfile
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from capbench import Relation
from capbench.documents.result import Trial, TrialStatus
from capbench.engine.cost import Cost
from capbench.engine.memory import DoesNotFit, lanes_that_fit
from capbench.engine.stack import Batched, build_stack
from capbench.engine.step import Step
from capbench.engine.train import OnProgress, OnTrials
from capbench.engine.trials import Setup, TrialGroup, TrialSpec
from capbench.errors import RunFailed
from capbench.executors.backends import ThisProcess
from capbench.measure.estimate.posterior import TYPICAL_SCALE
from capbench.measure.request import Request
from capbench.measure.run import _measure
from capbench.measure.session import Session
from capbench.measure.theory import bracket
from capbench.registry.registry import Registry
from capbench.store.store import Store
from capbench.studies.suite_run import PlannedCell

MOST_SLOTS = 8192
"""Larger shapes are timed at a half, a quarter and so on of their facts."""
MOST_TIMED = 4
"""Lanes among which one is timed, where memory has room for them."""
Rounds = list[list[TrialGroup]]
"""The groups of a run, round by round: those of a round can run at once, rounds follow each other."""


class Quiet:
    def compiling(self) -> None: ...
    def plan(self, *_: object) -> None: ...
    def trained(self, *_: object) -> None: ...
    def step(self, *_: object) -> None: ...


@dataclass
class PaperExecutor:
    """Trains nothing: a trial holds its facts by a draw from a curve with its middle where theory points."""

    middle: float
    workers: tuple[()] = ()
    rounds: Rounds = field(default_factory=list)

    def run(self, groups: Iterable[TrialGroup], on_trials: OnTrials, on_progress: OnProgress) -> Cost:
        self.rounds.append([])
        for group in groups:
            self.rounds[-1].append(group)
            on_trials([self._trial(group, spec) for spec in group.trials])
        return Cost()

    def _trial(self, group: TrialGroup, spec: TrialSpec) -> Trial:
        chance = 1 / (1 + math.exp((math.log(spec.load) - math.log(self.middle)) / TYPICAL_SCALE))
        is_held = random.Random(f"{spec.load} {spec.seed}").random() < chance
        criterion = group.setup.training.criterion
        value = criterion.threshold if is_held == criterion.at_least else criterion.threshold + (1 if is_held else -1)
        return Trial(
            key=group.setup.key(spec), load=spec.load, seed=spec.seed, learning_rate=spec.learning_rate,
            status=TrialStatus.HELD if is_held else TrialStatus.NOT_HELD, steps=group.setup.training.steps,
            metrics={criterion.metric: value},
        )  # fmt: skip


@dataclass(frozen=True)
class Paper(ThisProcess):
    """A backend whose runs all take the same executor."""

    executor_of_all: PaperExecutor | None = None

    def executor(self, *_: object) -> PaperExecutor:
        assert self.executor_of_all is not None
        return self.executor_of_all


def rounds_of(request: Request, registry: Registry) -> Rounds:
    """The groups that the search of a request comes to, by the planner that plans real ones."""
    bounds = [provided.cls for provided in registry.bounds.values()]
    low, high = bracket(bounds, request.task.plugin, request.architecture.plugin)
    executor = PaperExecutor(math.sqrt(low * high))
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder))
        backend = Paper(torch.device("cpu"), executor_of_all=executor)
        try:
            _measure(Session(request, registry, store, Quiet(), backend))
        finally:
            store.close()
    return executor.rounds


def lane_step_seconds(setup: Setup, slots: int) -> float:
    """Eager seconds of one step of one lane among a few, in this process; the first step is not counted."""
    n_lanes = min(MOST_TIMED, lanes_that_fit(setup, slots, torch.device("cpu")))
    trials = tuple(TrialSpec(1, seed, 0.01) for seed in range(n_lanes))
    stack, _ = build_stack(TrialGroup(setup, slots, trials), torch.device("cpu"))
    solver, number = setup.solver.plugin, torch.tensor(10.0, dtype=torch.float64)
    batched = Batched(setup, stack)
    step, state = Step(batched, setup), solver.init(stack.weights)
    step(stack, state, [number])
    started = time.process_time()
    step(stack, state, [number])
    return (time.process_time() - started) / n_lanes


@dataclass(frozen=True)
class RunCost:
    """A run as a schedule sees it: seconds of each group, round by round."""

    rounds: tuple[tuple[float, ...], ...]
    is_whole: bool
    """Whether its largest shape was timed as it is."""

    @property
    def seconds(self) -> float:
        return sum(sum(each) for each in self.rounds)


def cost_of(cell: PlannedCell, registry: Registry, share_taken: float) -> RunCost:
    """A run's groups with their costs: the smallest and the largest shape are timed, those between lie on a line.

    A largest shape that is too large to be timed is halved until it is not, and costs in proportion.
    """
    rounds = rounds_of(cell.request, registry)
    groups = [group for each in rounds for group in each]
    if not groups:
        raise RunFailed(f"{cell.task} × {cell.architecture}: the search asked for nothing")
    smallest, largest = min(groups, key=_slots), max(groups, key=_slots)
    high, share = _largest_seconds(largest)
    ends, sizes = [lane_step_seconds(smallest.setup, smallest.slots), high], [smallest.slots, largest.slots]

    def seconds(group: TrialGroup) -> float:
        lane_step = float(np.interp(group.slots, sizes, ends))
        return len(group.trials) * group.setup.training.steps * share_taken * lane_step

    return RunCost(tuple(tuple(seconds(group) for group in each) for each in rounds), is_whole=share == 1)


def _largest_seconds(group: TrialGroup, share: int = 1) -> tuple[float, int]:
    """What a step of a lane costs, and the share of its slots, one in so many, that was timed."""
    is_relation = isinstance(group.setup.task.plugin.signature, Relation)  # whose shape has nothing to do with slots
    if group.slots > MOST_SLOTS * share and not is_relation:
        return _largest_seconds(group, 2 * share)
    try:
        return share * lane_step_seconds(group.setup, group.slots // share), share
    except DoesNotFit:
        return _largest_seconds(group, 2 * share)


def _slots(group: TrialGroup) -> int:
    return group.slots


def makespan(runs: Sequence[RunCost], n_workers: int, speed: float, driver_seconds: float) -> float:
    """Wall seconds of a series on so many workers, each `speed` times as fast as what was timed.

    As the series does it: one more run at once than workers, groups first come first served, a run's next round when
    its last has ended, and a driver that spends its time on every group, one after the other.
    """
    waiting, ready = deque(iter_rounds(run) for run in runs), deque[tuple[int, float]]()
    under_way: dict[int, Iterator[tuple[float, ...]]] = {}
    left: dict[int, int] = {}
    busy: list[tuple[float, int]] = []
    now, driver_free, idle = 0.0, 0.0, n_workers
    names = iter(range(len(runs)))

    def next_round(name: int) -> None:
        groups = next(under_way[name], None)
        if groups is None:
            del under_way[name]
            return
        left[name] = len(groups)
        ready.extend((name, seconds) for seconds in groups)

    while waiting or under_way:
        while waiting and len(under_way) <= n_workers:
            name = next(names)
            under_way[name] = waiting.popleft()
            next_round(name)
        while ready and idle:
            name, seconds = ready.popleft()
            driver_free = max(driver_free, now) + driver_seconds
            heapq.heappush(busy, (driver_free + seconds / speed, name))
            idle -= 1
        if not busy:
            continue
        now, name = heapq.heappop(busy)
        idle += 1
        left[name] -= 1
        if not left[name]:
            next_round(name)
    return max(now, driver_free)


def iter_rounds(run: RunCost) -> Iterator[tuple[float, ...]]:
    """The rounds that have any group."""
    return iter([each for each in run.rounds if each])
