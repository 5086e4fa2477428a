"""A measuring session: the trials of a run, from the store or by training, and what they cost."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol as Interface

import torch

from capbench.contract.solver import GradientSolver
from capbench.documents.result import Protocol, ShapeTried, Trial, TrialStatus, Worker
from capbench.documents.text import pluralize
from capbench.engine.cost import Cost
from capbench.engine.lane_program import program_groups
from capbench.engine.memory import most_lanes
from capbench.engine.trials import Setup, Training, TrialGroup, TrialSpec, group_trials
from capbench.errors import RunFailed
from capbench.executors.executor import Backend
from capbench.executors.interrupts import Interrupt
from capbench.measure.request import Request
from capbench.registry.registry import Registry
from capbench.store.store import Store

SELECTION_SEED = 1_000_000
"""So far beyond those of the measurement, 0, 1, …, are the seeds by which shape, learning rate and steps are chosen."""
POLL_SECONDS = 0.2
"""Time between two checks whether another process has ended the trials that it has leased."""


LEAST_LANES = 8
"""A group is not split into parts of fewer lanes than this: their steps would cost as much."""
COMPILED_LANE_STEPS = 20_000
"""Steps times trials from which a request is compiled. Compiling takes two to four seconds of one core, and saves 200
to 1,000 µs per lane-step on the four standard pairs, measured on two cores."""


class WaitingForOtherProcess(UserWarning):
    """Another process is training trials that this run needs too."""


class RunListener(Interface):
    """Receives progress events of a run."""

    def plan(self, solver: str, n_trials: int, n_reused: int) -> None:
        """A round of a solver's trials begins; some of them are in the store."""

    def compiling(self) -> None:
        """The step of a round is compiled, or its compiled program is read, before training begins."""

    def trained(self, trial: Trial) -> None:
        """A trial has ended."""

    def step(self, step: int, steps: int, n_alive: int) -> None:
        """Training has reached a step; `n_alive` trials are still training."""


class NullListener:
    """A run listener that ignores everything."""

    def plan(self, solver: str, n_trials: int, n_reused: int) -> None:
        """Ignored."""

    def compiling(self) -> None:
        """Ignored."""

    def trained(self, trial: Trial) -> None:
        """Ignored."""

    def step(self, step: int, steps: int, n_alive: int) -> None:
        """Ignored."""


@dataclass(frozen=True)
class WantedTrials:
    """The trials wanted at one point of the searched axis."""

    at: int
    setup: Setup
    specs: list[TrialSpec]


@dataclass
class Session:
    """The trials of a request so far, and what they cost."""

    request: Request
    registry: Registry
    store: Store
    listener: RunListener
    backend: Backend
    interrupt: Interrupt = field(default_factory=Interrupt)
    offset: int = 0
    """Added to the request's first seed: that of a selection is SELECTION_SEED."""
    trials: list[Trial] = field(default_factory=list)
    cost: Cost = field(default_factory=Cost)
    trained: set[str] = field(default_factory=set)
    """Keys of the trials that were trained in it; the others were in the store."""
    shapes_tried: tuple[ShapeTried, ...] = ()
    """The shapes from which that of its request was chosen."""
    _minimized: dict[str, int | None] = field(default_factory=dict)
    """Under --minimize, the value of the parameter by trial key."""
    _failed_before: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        options = self.request.options
        # One executor for the whole session: it remembers how many lanes fit and how much time timeouts have cost.
        self._executor = self.backend.executor(options.trial_timeout)

    @property
    def protocol(self) -> Protocol:
        """How its trials are trained and searched."""
        return self.request.protocol

    @property
    def first_seed(self) -> int:
        """The smallest seed of its trials."""
        return self.request.options.first_seed + self.offset

    @property
    def n_trained(self) -> int:
        """How many of its trials were trained in it."""
        return len(self.trained)

    @property
    def n_reused(self) -> int:
        """How many of its trials were in the store."""
        return len(self.trials) - self.n_trained

    @property
    def device(self) -> torch.device:
        """The device that its groups run on."""
        return self.backend.device

    @property
    def workers(self) -> tuple[Worker, ...]:
        """The cluster workers that have trained for it."""
        return self._executor.workers

    def setup(self, at: int) -> Setup:
        """What is trained at a point of the axis."""
        return setup_of(self.request, at)

    def measure(self, wanted: Sequence[tuple[int, int]], rates: Sequence[float | None]) -> None:
        """Makes sure that every (point, seed) has a trial at every rate: from the store, or by training."""
        points = dict.fromkeys(at for at, _ in wanted)
        self.obtain([self._wanted_at(at, [seed for a, seed in wanted if a == at], rates) for at in points])

    def obtain(self, by_point: list[WantedTrials]) -> None:
        """Makes sure that it has all of these trials: from the store, or by training."""
        minimized = {
            each.setup.key(spec): each.at if self.protocol.parameter else None
            for each in by_point
            for spec in each.specs
        }
        known = self.store.trials(minimized)
        stored = {key: trial for key, trial in known.items() if trial.status is not TrialStatus.FAILED}
        self._minimized.update(minimized)
        self._failed_before = known.keys() - stored.keys()
        self.listener.plan(self.request.solver.plugin.name, len(minimized), len(stored))
        for trial in stored.values():
            self._count(trial)
        self._train(self._groups(by_point, stored))

    def part(self, request: Request) -> tuple[Session, float]:
        """The session of one of several requests that differ only in their load and were measured as one.

        It has the trials at its load, and a share of the cost by the steps that they were trained; also returned.
        """
        own = [trial for trial in self.trials if trial.load == request.protocol.at]
        n_steps, n_own_steps = (
            sum(trial.steps for trial in trials if trial.key in self.trained) for trials in (self.trials, own)
        )
        share = n_own_steps / n_steps if n_steps else len(own) / len(self.trials)
        part = Session(request, self.registry, self.store, self.listener, self.backend, self.interrupt)
        part.trials, part.trained = own, self.trained & {trial.key for trial in own}
        part.cost, part._executor = self.cost.part(share), self._executor
        return part, share

    def failed(self) -> list[Trial]:
        """The trials that could not be run."""
        return [trial for trial in self.trials if trial.status is TrialStatus.FAILED]

    def failure(self) -> RunFailed | None:
        """Why there is no result, where every trial failed to run."""
        if len(self.failed()) < len(self.trials):
            return None
        which = "the only trial failed" if len(self.trials) == 1 else f"all {len(self.trials)} trials failed; the first"
        return RunFailed(f"{which}: {self.trials[0].reason}")

    def _train(self, groups: list[TrialGroup]) -> None:
        """Trains what no other process has leased; then waits for the others, and trains what they leave undone."""
        if any(group.is_compiled for group in groups):
            self.listener.compiling()
        try:
            while groups:
                put_off: list[TrialGroup] = []
                self.cost.add(self._executor.run(self._leased(groups, put_off), self._keep, self._progress))
                groups = self._await(put_off)
        finally:
            self.store.release_leases()

    def _keep(self, trials: Sequence[Trial]) -> None:
        """Stores trials that have ended, in one commit, and reports them."""
        with self.cost.timed("store"):
            self.store.add_trials(trials, self.request.task.plugin.name, self.request.architecture.plugin.name)
        for trial in trials:
            self._count(trial)
            self.trained.add(trial.key)
            self.listener.trained(trial)

    def _progress(self, step: int, n_alive: int) -> None:
        self.listener.step(step, self.protocol.steps, n_alive)
        self.store.renew_leases()
        self.interrupt.check()

    def _leased(self, groups: Iterable[TrialGroup], put_off: list[TrialGroup]) -> Iterator[TrialGroup]:
        """Each group with only the trials that this process could lease; the others are put off."""
        for group in groups:
            self.interrupt.check()
            leased = self.store.lease(group.keys)
            put_off.extend(group.only(group.keys - leased))
            yield from group.only(leased - self._ended_elsewhere(leased))

    def _await(self, groups: list[TrialGroup]) -> list[TrialGroup]:
        """Waits until other processes have ended these trials; returns those that they left undone."""
        if groups:
            n_trials = sum(len(group.trials) for group in groups)
            note = f"waiting for {pluralize(n_trials, 'trial')} that another process is training"
            warnings.warn(note, WaitingForOtherProcess, stacklevel=2)
        while groups:
            self.interrupt.check()
            keys = {key for group in groups for key in group.keys}
            leased = self.store.leased_elsewhere(keys)  # before the check of what has ended, not after
            keys -= self._ended_elsewhere(keys)
            groups = [part for group in groups for part in group.only(keys)]
            if keys - leased:
                return groups
            time.sleep(POLL_SECONDS)
        return groups

    def _ended_elsewhere(self, keys: Iterable[str]) -> set[str]:
        """Takes over those of the trials that another process has stored meanwhile."""
        found = {
            key: trial
            for key, trial in self.store.trials(keys).items()
            if trial.status is not TrialStatus.FAILED or key not in self._failed_before
        }
        for trial in found.values():
            self._count(trial)
            self.listener.trained(trial)
        return set(found)

    def _count(self, trial: Trial) -> None:
        self.trials.append(trial.model_copy(update={"budget": self._minimized[trial.key]}))

    def _wanted_at(self, at: int, seeds: list[int], rates: Sequence[float | None]) -> WantedTrials:
        load = self.protocol.at if self.protocol.parameter else at
        assert load is not None
        return WantedTrials(
            at, self.setup(at), [TrialSpec(load, self.first_seed + seed, rate) for seed in seeds for rate in rates]
        )

    def _groups(self, wanted: list[WantedTrials], stored: Mapping[str, Trial]) -> list[TrialGroup]:
        """Trial groups of what is not stored: trials of one setup share groups, as many as can run right now."""
        missing = [(w.setup, spec) for w in wanted for spec in w.specs if w.setup.key(spec) not in stored]
        groups = group_trials(missing)
        if wants_compiled(self.request):
            groups = program_groups(groups)
        n_parts = max(1, self.backend.n_free // max(1, len(groups)))
        split = [
            part for group in groups for part in group.split(min(n_parts, max(1, len(group.trials) // LEAST_LANES)))
        ]
        return [part for group in split for part in group.parts(most_lanes(self.device))]


def wants_compiled(request: Request) -> bool:
    """Whether the steps of a request are to be compiled: `auto` compiles where the request is large enough."""
    mode, protocol = request.options.compile_mode, request.protocol
    if not isinstance(request.solver.plugin, GradientSolver):
        return False
    if mode != "auto":
        return mode == "on"
    is_search = protocol.mode in ("capacity", "minimize")
    n_trials = protocol.budget if is_search else protocol.seeds * len(protocol.learning_rates)
    return protocol.steps * (n_trials or 0) >= COMPILED_LANE_STEPS and protocol.parameter is None


def setup_of(request: Request, at: int) -> Setup:
    """What is trained at a point of the axis: under --minimize, the architecture with that parameter value."""
    protocol, architecture = request.protocol, request.architecture
    if protocol.parameter:
        architecture = architecture.replaced(**{protocol.parameter: at})
    sampling = request.training.sampling
    training = Training(
        protocol.criterion,
        protocol.steps,
        protocol.dtype,
        stops_early=not (protocol.mode == "overload" or (sampling and sampling.scored_batches)),
        analyses=protocol.analyses,
        sampling=sampling,
        precisions=protocol.precisions,
    )
    return Setup(request.task, architecture, request.solver, training)
