"""A measurement under way: the trials it has, from the store or by training, and what they cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol as Interface

import torch
from torch import Tensor

from capbench.engine.lanes import LaneGroup, Pair, Training, TrialSpec, group_trials
from capbench.engine.train import Cost, OnProgress, OnTrial
from capbench.errors import RunInterrupted
from capbench.executors.local import LocalExecutor
from capbench.registry import Registry
from capbench.request import Request
from capbench.results import Protocol, Trial, TrialStatus
from capbench.store import Store

MAX_LANES = 256


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


@dataclass
class Measurement:
    """A request being carried out: its protocol, its trials so far, and what they cost."""

    request: Request
    protocol: Protocol
    registry: Registry
    store: Store
    progress: Progress
    device: torch.device
    trials: list[Trial] = field(default_factory=list)
    cost: Cost = field(default_factory=Cost)
    n_trained: int = 0
    n_reused: int = 0

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
        stored = {k: t for k, t in self.store.trials(budgets).items() if t.status is not TrialStatus.FAILED}
        self.progress.plan(self.request.solver.plugin.name, len(budgets), len(stored))
        self.trials.extend(t.model_copy(update={"budget": budgets[k]}) for k, t in stored.items())
        self.n_reused += len(stored)

        def keep(trial: Trial, _: dict[str, Tensor]) -> None:
            self.store.add_trial(trial, self.request.task.plugin.name, self.request.architecture.plugin.name)
            self.trials.append(trial.model_copy(update={"budget": budgets[trial.key]}))
            self.n_trained += 1
            self.progress.trained(trial)

        def tell(step: int, n_alive: int) -> None:
            self.progress.step(step, self.protocol.steps, n_alive)

        self._train(_groups(work, stored), keep, tell)

    def _train(self, groups: list[LaneGroup], keep: OnTrial, tell: OnProgress) -> None:
        try:
            self.cost.add(LocalExecutor(self.device, self.request.compile_mode).run(groups, keep, tell))
        except KeyboardInterrupt:
            raise RunInterrupted(
                f"interrupted: {self.n_trained} newly trained trials are stored; the same command goes on from there"
            ) from None

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


def _groups(work: list[Work], stored: Mapping[str, Trial]) -> list[LaneGroup]:
    """Lane groups of what is not stored; work on the same pair goes together."""
    missing: dict[Pair, list[TrialSpec]] = {}
    for each in work:
        specs = [spec for spec in each.specs if each.pair.key(spec) not in stored]
        missing.setdefault(each.pair, []).extend(specs)
    return [group for pair, specs in missing.items() for group in group_trials(pair, specs, MAX_LANES)]
