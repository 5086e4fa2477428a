"""The local executor: one trial group after the other in this process."""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch

from capbench.contract.solver import GradientSolver
from capbench.documents.result import Trial, TrialStatus, Worker
from capbench.engine.checks import check_still_works, is_out_of_memory
from capbench.engine.construct import construct_group
from capbench.engine.cost import Cost
from capbench.engine.devices import keep_memory, use_fitting_threads
from capbench.engine.evaluation import OnProgress, OnTrials
from capbench.engine.memory import DoesNotFit, lanes_that_fit
from capbench.engine.train import train_group
from capbench.engine.trials import TrialGroup, TrialSpec
from capbench.errors import TrialTimedOut, UserError
from capbench.executors.deadline import Deadline
from capbench.executors.target import TRIAL_TIMEOUT
from capbench.registry.containment import contained_calls

TIMEOUT_SHRINK = 2 / 3
"""Timeout factor per halving: one hanging trial costs at most three timeouts, however many lanes."""
MAX_TIMEOUTS_WAITED = 4
"""Timeouts spent on hanging groups before they are no longer split."""


@dataclass(frozen=True)
class Fault:
    """Why a group could not be run, without the tensors that an exception's frames would keep alive."""

    text: str
    is_timeout: bool
    is_memory: bool

    @property
    def record(self) -> str:
        """Error text of a failed trial."""
        remedy = "out of memory with one model alone: make the task or the architecture smaller"
        return f"{self.text.rstrip()}\n{remedy}" if self.is_memory else self.text.rstrip()


class LocalExecutor:
    """Runs groups on one device; remembers how many lanes fit in its memory, and the time lost to timeouts."""

    def __init__(
        self,
        device: torch.device,
        trial_timeout: float = TRIAL_TIMEOUT,
    ) -> None:
        self._device = device
        self._timeout = trial_timeout
        self._waited = 0.0
        self._most_lanes: dict[tuple[str, int], int] = {}
        if device.type == "cpu":
            keep_memory()
            use_fitting_threads()

    @property
    def workers(self) -> tuple[Worker, ...]:
        """Empty: this process trains."""
        return ()

    def run(self, groups: Iterable[TrialGroup], on_trials: OnTrials, on_progress: OnProgress) -> Cost:
        """Runs each group to its end."""
        cost = Cost()
        for group in groups:
            try:
                parts = self._fitting(group)
            except DoesNotFit as error:
                on_trials([failed_trial(group, trial, str(error)) for trial in group.trials])
                continue
            for part in parts:
                self._run_group(part, on_trials, on_progress, self._timeout, cost)
        return cost

    def _fitting(self, group: TrialGroup) -> list[TrialGroup]:
        """The group in parts that fit the device's memory, by estimate or by what has not fitted before."""
        if group.is_compiled and self._device.type == "cpu":  # a compiled program trains a few lanes at a time
            return [group]
        size = self._most_lanes.get((group.setup.identity, group.slots)) or self._estimated(group)
        return group.parts(size)

    def _estimated(self, group: TrialGroup) -> int:
        """How many lanes should fit; DoesNotFit where the smallest group would not."""
        try:
            with _contained(group), Deadline(self._timeout).watching():
                return lanes_that_fit(group.setup, group.slots, self._device)
        except DoesNotFit:
            raise
        except Exception:  # noqa: BLE001 - the plugin border: what fails here fails in training too, and is recorded there
            return len(group.trials)

    def _run_group(
        self, group: TrialGroup, on_trials: OnTrials, on_progress: OnProgress, timeout: float, cost: Cost
    ) -> None:
        """Trains a group; where that fails, its halves, so that only the trials at fault are lost."""
        ended: set[str] = set()

        def report(trials: Sequence[Trial]) -> None:
            on_trials(trials)
            ended.update(trial.key for trial in trials)

        fault = self._attempt(group, report, on_progress, timeout, cost)
        left = tuple(trial for key, trial in group.by_key.items() if key not in ended)
        if fault is None or not left:
            return
        if fault.is_memory:
            self._remember(group, len(left))
        if len(left) == 1 or (fault.is_timeout and self._gives_up(timeout)):
            on_trials([failed_trial(group, trial, fault.record) for trial in left])
            return
        shorter = timeout * TIMEOUT_SHRINK if fault.is_timeout else timeout
        for half in (left[: len(left) // 2], left[len(left) // 2 :]):
            smaller = group.part(half)
            for part in self._fitting(smaller) if fault.is_memory else [smaller]:
                self._run_group(part, on_trials, on_progress, shorter, cost)

    def _attempt(
        self, group: TrialGroup, on_trials: OnTrials, on_progress: OnProgress, timeout: float, cost: Cost
    ) -> Fault | None:
        """Runs a group once; returns the fault, if any."""
        deadline = Deadline(timeout)

        def report(trials: Sequence[Trial]) -> None:
            with deadline.paused():
                on_trials(trials)

        def progress(step: int, n_alive: int) -> None:
            with deadline.paused():
                on_progress(step, n_alive)

        try:
            with _contained(group), deadline.watching():
                if isinstance(group.setup.solver.plugin, GradientSolver):
                    cost.add(train_group(group, self._device, report, progress))
                else:
                    cost.add(construct_group(group, report, progress))
        except UserError:
            raise
        except Exception as error:  # noqa: BLE001 - the plugin border: any fault of a plugin costs its trial only
            check_still_works(self._device)
            text = "".join(traceback.format_exception(error))[-4000:]
            return Fault(text, isinstance(error, TrialTimedOut), is_out_of_memory(error))
        return None

    def _remember(self, group: TrialGroup, n_lanes: int) -> None:
        """Later groups of the same shape start at half of what did not fit."""
        self._most_lanes[group.setup.identity, group.slots] = max(1, n_lanes // 2)
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    def _gives_up(self, timeout: float) -> bool:
        """Adds to the time lost to timeouts; True once it is too much."""
        self._waited += timeout
        return self._waited >= MAX_TIMEOUTS_WAITED * self._timeout


def _contained(group: TrialGroup) -> AbstractContextManager[None]:
    """A scope for a group: what its plugins change of the process does not reach the next group."""
    return contained_calls(plugin.provenance for plugin in group.setup.plugins)


def failed_trial(group: TrialGroup, trial: TrialSpec, error: str) -> Trial:
    """The record of a trial that could not be run."""
    return Trial(
        key=group.setup.key(trial),
        load=trial.load,
        seed=trial.seed,
        learning_rate=trial.learning_rate,
        status=TrialStatus.FAILED,
        steps=0,
        metrics={},
        error=error,
    )
