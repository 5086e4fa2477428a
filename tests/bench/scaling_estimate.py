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
from capbench.capacity import TYPICAL_SCALE
from capbench.engine.cost import Cost
from capbench.engine.lanes import LaneGroup, Pair, TrialSpec
from capbench.engine.memory import DoesNotFit, lanes_that_fit
from capbench.engine.stack import Batched, build_stack
from capbench.engine.step import Step
from capbench.engine.train import OnProgress, OnTrial
from capbench.errors import RunFailed
from capbench.executors.workplace import ThisMachine
from capbench.measurement import Measurement
from capbench.plan import Entry
from capbench.registry import Registry
from capbench.request import Request
from capbench.results import Trial, TrialStatus
from capbench.runner import measure
from capbench.store import Store
from capbench.theory import bracket

MOST_SLOTS = 8192
"""Larger shapes are timed at a half, a quarter and so on of their facts."""
MOST_TIMED = 4
"""Lanes among which one is timed, where memory has room for them."""
Rounds = list[list[LaneGroup]]
"""The groups of a run, round by round: those of a round can run at once, rounds follow each other."""


class Quiet:
    def plan(self, *_: object) -> None: ...
    def trained(self, *_: object) -> None: ...
    def step(self, *_: object) -> None: ...


@dataclass
class PaperExecutor:
    """Trains nothing: a trial holds its facts by a draw from a curve with its middle where theory points."""

    middle: float
    workers: tuple[()] = ()
    rounds: Rounds = field(default_factory=list)

    def run(self, groups: Iterable[LaneGroup], on_trial: OnTrial, on_progress: OnProgress) -> Cost:
        self.rounds.append([])
        for group in groups:
            self.rounds[-1].append(group)
            for spec in group.trials:
                on_trial(self._trial(group, spec), {})
        return Cost()

    def _trial(self, group: LaneGroup, spec: TrialSpec) -> Trial:
        chance = 1 / (1 + math.exp((math.log(spec.load) - math.log(self.middle)) / TYPICAL_SCALE))
        is_held = random.Random(f"{spec.load} {spec.seed}").random() < chance
        criterion = group.pair.training.criterion
        value = criterion.threshold if is_held == criterion.at_least else criterion.threshold + (1 if is_held else -1)
        return Trial(
            key=group.pair.key(spec), load=spec.load, seed=spec.seed, learning_rate=spec.learning_rate,
            status=TrialStatus.HELD if is_held else TrialStatus.NOT_HELD, steps=group.pair.training.steps,
            metrics={criterion.metric: value},
        )  # fmt: skip


@dataclass(frozen=True)
class Paper(ThisMachine):
    """A workplace whose runs all take the same executor."""

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
        run = Measurement(
            request, request.check(), registry, store, Quiet(), Paper(torch.device("cpu"), executor_of_all=executor)
        )
        try:
            measure(run)
        finally:
            store.close()
    return executor.rounds


def lane_step_seconds(pair: Pair, slots: int) -> float:
    """Eager seconds of one step of one lane among a few, in this process; the first step is not counted."""
    n_lanes = min(MOST_TIMED, lanes_that_fit(pair, slots, torch.device("cpu")))
    trials = tuple(TrialSpec(1, seed, 0.01) for seed in range(n_lanes))
    stack, _ = build_stack(LaneGroup(pair, slots, trials), torch.device("cpu"))
    solver, number = pair.solver.plugin, torch.tensor(10.0, dtype=torch.float64)
    batched = Batched(pair, stack)
    step, state = Step(batched, solver, pair.training.steps, None), solver.init(stack.weights)
    step(stack, state, number)
    started = time.process_time()
    step(stack, state, number)
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


def cost_of(entry: Entry, registry: Registry, share_taken: float) -> RunCost:
    """A run's groups with their costs: the smallest and the largest shape are timed, those between lie on a line.

    A largest shape that is too large to be timed is halved until it is not, and costs in proportion.
    """
    rounds = rounds_of(entry.request, registry)
    groups = [group for each in rounds for group in each]
    if not groups:
        raise RunFailed(f"{entry.task} × {entry.architecture}: the search asked for nothing")
    smallest, largest = min(groups, key=_slots), max(groups, key=_slots)
    high, share = _largest_seconds(largest)
    ends, sizes = [lane_step_seconds(smallest.pair, smallest.slots), high], [smallest.slots, largest.slots]

    def seconds(group: LaneGroup) -> float:
        lane_step = float(np.interp(group.slots, sizes, ends))
        return len(group.trials) * group.pair.training.steps * share_taken * lane_step

    return RunCost(tuple(tuple(seconds(group) for group in each) for each in rounds), is_whole=share == 1)


def _largest_seconds(group: LaneGroup, share: int = 1) -> tuple[float, int]:
    """What a step of a lane costs, and the share of its slots, one in so many, that was timed."""
    is_relation = isinstance(group.pair.task.plugin.signature, Relation)  # whose shape has nothing to do with slots
    if group.slots > MOST_SLOTS * share and not is_relation:
        return _largest_seconds(group, 2 * share)
    try:
        return share * lane_step_seconds(group.pair, group.slots // share), share
    except DoesNotFit:
        return _largest_seconds(group, 2 * share)


def _slots(group: LaneGroup) -> int:
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
