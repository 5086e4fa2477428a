"""A measurement under way: the trials it has, from the store or by training, and what they cost."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol as Interface

import torch
from torch import Tensor

from capbench.engine.compiling import Compiling
from capbench.engine.cost import Cost
from capbench.engine.lanes import LaneGroup, Pair, Training, TrialSpec, group_trials
from capbench.engine.memory import most_lanes
from capbench.executors import Workplace
from capbench.interrupts import Interrupt
from capbench.registry import Registry
from capbench.request import Request
from capbench.results import Protocol, Trial, TrialStatus, Worker
from capbench.store import Store

WAIT_SECONDS = 0.2
"""Between two looks at what another process is training."""


class WaitingForOthers(UserWarning):
    """Another process is training trials that this run needs too."""


class Progress(Interface):
    """Is told what the runner does."""

    def plan(self, solver: str, n_trials: int, n_reused: int) -> None:
        """A round of a solver's trials begins."""

    def trained(self, trial: Trial) -> None:
        """A trial has ended."""

    def step(self, step: int, steps: int, n_alive: int) -> None:
        """Training goes on."""


@dataclass(frozen=True)
class Work:
    """Trials of one pair, and the budget they stand for where a budget is what is searched."""

    pair: Pair
    specs: list[TrialSpec]
    budget: int | None


@dataclass(frozen=True)
class Share:
    """What a run has of training that was done for it and others together, before it began."""

    trained: frozenset[str] = frozenset()
    cost: Cost = field(default_factory=Cost)
    seconds: float = 0.0


@dataclass
class Measurement:
    """A request being carried out: its protocol, its trials so far, and what they cost."""

    request: Request
    protocol: Protocol
    registry: Registry
    store: Store
    progress: Progress
    workplace: Workplace
    interrupt: Interrupt = field(default_factory=Interrupt)
    trials: list[Trial] = field(default_factory=list)
    cost: Cost = field(default_factory=Cost)
    n_reused: int = 0
    share: Share = field(default_factory=Share)
    trained: set[str] = field(default_factory=set)
    """Keys of the trials that were trained for it."""
    _budgets: dict[str, int | None] = field(default_factory=dict)
    _failed_before: set[str] = field(default_factory=set)
    _ended: list[Trial] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.cost.add(self.share.cost)
        # One for the whole measurement: it learns how many lanes fit and how long it has waited in vain.
        compiling = Compiling(self.request.compile_mode, self.store.path.parent / "compiled")
        self._executor = self.workplace.executor(compiling, self.request.trial_timeout)

    @property
    def n_trained(self) -> int:
        """How many trials were trained for it."""
        return len(self.trained)

    @property
    def device(self) -> torch.device:
        """The device that its groups run on."""
        return self.workplace.device

    @property
    def workers(self) -> tuple[Worker, ...]:
        """Who has trained for it, where this process did not."""
        return self._executor.workers

    def pair(self, at: int) -> Pair:
        """What is trained at a point of the axis: on --minimize, the architecture with that budget."""
        request, parameter = self.request, self.protocol.parameter
        architecture = request.architecture.replaced(**{parameter: at}) if parameter else request.architecture
        criterion = request.task.plugin.criterion
        sampling = request.protocol.sampling
        training = Training(
            criterion,
            self.protocol.steps,
            self.protocol.dtype,
            stops_early=not (self.protocol.mode == "overload" or (sampling and sampling.scored_batches)),
            analyses=self.protocol.analyses,
            sampling=sampling,
        )
        return Pair(request.task, architecture, request.solver, training)

    def measure(self, wanted: Sequence[tuple[int, int]], rates: Sequence[float | None]) -> None:
        """Makes sure that every (point, seed) has a trial at every rate: from the store, or by training."""
        work = [
            self._work(at, [seed for a, seed in wanted if a == at], rates) for at in dict.fromkeys(a for a, _ in wanted)
        ]
        budgets = {w.pair.key(spec): w.budget for w in work for spec in w.specs}
        known = self.store.trials(budgets)
        new = self.share.trained
        stored = {k: t for k, t in known.items() if t.status is not TrialStatus.FAILED or k in new}
        self._budgets.update(budgets)
        self._failed_before = known.keys() - stored.keys()
        self.progress.plan(self.request.solver.plugin.name, len(budgets), len(stored))
        self._reuse(stored.values())
        self._train(self._groups(work, stored))

    def _train(self, groups: list[LaneGroup]) -> None:
        """Trains what nobody else is at work on; then waits for the others, and takes on what they leave."""
        try:
            while groups:
                put_off: list[LaneGroup] = []
                self.cost.add(self._executor.run(self._claimed(groups, put_off), self._keep, self._tell))
                self._commit()
                groups = self._awaited(put_off)
        finally:
            self._commit()
            self.store.release_claims()

    def _keep(self, trial: Trial, _: dict[str, Tensor]) -> None:
        """A trial has ended."""
        self._ended.append(trial)

    def _tell(self, step: int, n_alive: int) -> None:
        """Training goes on, right after the trials that have just ended were told: they are stored first."""
        self._commit()
        self.progress.step(step, self.protocol.steps, n_alive)
        self.store.renew_claims()
        self.interrupt.check()

    def _commit(self) -> None:
        """Stores what has ended since the last time, in one commit: waiting for the disk takes longer than the rest."""
        ended, self._ended = self._ended, []
        if not ended:
            return
        with self.cost.timed("store"):
            self.store.add_trials(ended, self.request.task.plugin.name, self.request.architecture.plugin.name)
        for trial in ended:
            self._count(trial)
            self.trained.add(trial.key)
            self.progress.trained(trial)

    def _claimed(self, groups: Iterable[LaneGroup], put_off: list[LaneGroup]) -> Iterator[LaneGroup]:
        """Of each group, as its turn comes, the trials that are free; the others are put off."""
        for group in groups:
            self.interrupt.check()
            mine = self.store.claim(group.keys)
            put_off.extend(group.only(group.keys - mine))
            yield from group.only(mine - self._ended_elsewhere(mine))

    def _awaited(self, groups: list[LaneGroup]) -> list[LaneGroup]:
        """Waits until others have ended these trials; gives back those that they have left undone."""
        if groups:
            n_trials = sum(len(group.trials) for group in groups)
            note = f"waiting for {n_trials} trials that another process is training"
            warnings.warn(note, WaitingForOthers, stacklevel=2)
        while groups:
            self.interrupt.check()
            keys = {key for group in groups for key in group.keys}
            at_work = self.store.claimed_elsewhere(keys)  # before looking for what has ended, not after
            keys -= self._ended_elsewhere(keys)
            groups = [part for group in groups for part in group.only(keys)]
            if keys - at_work:
                return groups
            time.sleep(WAIT_SECONDS)
        return groups

    def _ended_elsewhere(self, keys: Iterable[str]) -> set[str]:
        """Those of the trials that another process has stored since this one looked."""
        found = {
            key: trial
            for key, trial in self.store.trials(keys).items()
            if trial.status is not TrialStatus.FAILED or key not in self._failed_before
        }
        self._reuse(found.values())
        for trial in found.values():
            self.progress.trained(trial)
        return set(found)

    def _reuse(self, trials: Iterable[Trial]) -> None:
        for trial in trials:
            self._count(trial)
            if trial.key in self.share.trained:
                self.trained.add(trial.key)
            else:
                self.n_reused += 1

    def _count(self, trial: Trial) -> None:
        self.trials.append(trial.model_copy(update={"budget": self._budgets[trial.key]}))

    def _work(self, at: int, seeds: list[int], rates: Sequence[float | None]) -> Work:
        """The trials asked for at one point of the axis."""
        is_budget = self.protocol.parameter is not None
        load = self.protocol.at if is_budget else at
        assert load is not None
        specs = [TrialSpec(load, seed, rate) for seed in seeds for rate in rates]
        return Work(self.pair(at), specs, at if is_budget else None)

    def failed(self) -> list[Trial]:
        """The trials that could not be run."""
        return [t for t in self.trials if t.status is TrialStatus.FAILED]

    def _groups(self, work: list[Work], stored: Mapping[str, Trial]) -> list[LaneGroup]:
        """Lane groups of what is not stored, as large as a device takes; work on the same pair goes together."""
        missing = [(w.pair, spec) for w in work for spec in w.specs if w.pair.key(spec) not in stored]
        asked = {(w.budget or spec.load, spec.seed) for w in work for spec in w.specs}
        groups = group_trials(missing, self._n_ahead(asked))
        return [part for group in groups for part in group.parts(most_lanes(self.device))]

    def _n_ahead(self, asked: set[tuple[int, int]]) -> int:
        """The most trials that later rounds may ask for; none where all are asked for at once."""
        if self.protocol.mode not in ("capacity", "minimize"):
            return 0
        seen = {(trial.budget or trial.load, trial.seed) for trial in self.trials}
        return max(0, (self.protocol.budget or 0) - len(seen | asked))
