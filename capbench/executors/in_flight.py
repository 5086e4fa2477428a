"""Trial groups in flight: submitted while workers have free slots, reports passed on, lost groups retried."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from capbench.documents.result import Trial, Worker, merge_workers
from capbench.engine.cost import Cost
from capbench.engine.evaluation import OnProgress, OnTrials
from capbench.engine.trials import TrialGroup
from capbench.executors.local import failed_trial

WAIT_SECONDS = 1.0
"""Longest time between two progress callbacks of a run."""
MOST_LOSSES = 32
"""Losses after which a group's remaining trials are recorded as failed.

After the first loss a group is retried as it is, then in halves: this finds two trials among 512 that kill workers.
"""
MOST_LOSSES_ALONE = 4
"""Losses after which a trial that is alone in its group is recorded as failed: others may have killed its workers."""


@dataclass(frozen=True)
class GroupReport:
    """Progress of a group: trials that have ended (some perhaps reported before), and in the last report the cost."""

    trials: tuple[Trial, ...]
    step: int
    n_alive: int
    worker: Worker | None = None
    """The cluster worker; None on this machine."""
    cost: Cost | None = None
    """Set in the last report only."""


@dataclass(frozen=True)
class GroupLost:
    """The group will not finish: its worker died, or failed outside of training."""

    reason: str


@dataclass(frozen=True)
class GroupError:
    """An exception that ends the run: a user's mistake that a worker found."""

    error: Exception


Message = GroupReport | GroupLost | GroupError
"""What workers send about a group."""


T = TypeVar("T")
"""A ticket: how a transport names a submitted group."""


class Transport(Protocol[T]):
    """Sends trial groups to processes that run them. Several runs may share them, each in its own thread."""

    def reserve(self) -> bool:
        """Takes a free slot for the caller; False where there is none."""
        ...

    def release(self) -> None:
        """Gives a reserved slot back that was not used."""
        ...

    def wait_for_slot(self, seconds: float) -> None:
        """Waits at most `seconds` for a slot that may have become free."""
        ...

    def submit(self, group: TrialGroup, trial_timeout: float) -> T:
        """Sends a group to a reserved slot, which is freed when the group ends."""
        ...

    def receive(self, tickets: Sequence[T], seconds: float) -> Iterator[tuple[T, Message]]:
        """Messages about submitted groups; waits at most `seconds`."""
        ...

    def cancel(self, tickets: Sequence[T]) -> Iterator[tuple[T, Message]]:
        """Stops groups; yields the messages that were still under way."""
        ...


class ReservedSlots:
    """Counts the slots that runs have reserved; each run reserves in its own thread."""

    def __init__(self, count: Callable[[], int]) -> None:
        self._count_slots = count
        self._n_reserved = 0
        self._changed = threading.Condition()

    @property
    def n_free(self) -> int:
        """Slots that no run has reserved; one at least, because one soon will be free."""
        return max(1, self._count_slots() - self._n_reserved)

    def reserve(self) -> bool:
        """Takes a free slot for the caller; False where there is none."""
        with self._changed:
            is_free = self._n_reserved < self._count_slots()
            self._n_reserved += is_free
        return is_free

    def release(self) -> None:
        """Gives a reserved slot back."""
        with self._changed:
            self._n_reserved -= 1
            self._changed.notify_all()

    def wait_for_slot(self, seconds: float) -> None:
        """Waits at most `seconds` for a slot to become free."""
        with self._changed:
            self._changed.wait(seconds)


@dataclass
class LossCount:
    """How often a group of a run, and all parts of it, were lost."""

    n_losses: int = 0


@dataclass
class SubmittedGroup:
    """A group that was sent to a worker, and what is known of it."""

    group: TrialGroup
    losses: LossCount
    n_losses_alone: int = 0
    ended: set[str] = field(default_factory=set)
    step: int = 0
    n_alive: int = field(init=False)

    def __post_init__(self) -> None:
        self.n_alive = len(self.group.trials)


class RemoteExecutor(Generic[T]):
    """Runs the groups of one run on workers: those of a pool, or of a Ray cluster."""

    def __init__(self, transport: Transport[T], trial_timeout: float) -> None:
        self._transport = transport
        self._trial_timeout = trial_timeout
        self._workers: list[Worker] = []

    @property
    def workers(self) -> tuple[Worker, ...]:
        """The cluster workers that have trained for the run so far."""
        return tuple(self._workers)

    def run(self, groups: Iterable[TrialGroup], on_trials: OnTrials, on_progress: OnProgress) -> Cost:
        """Runs each group to its end, several at once; takes a group from the iterable when a slot is free for it."""
        flight = GroupsInFlight(self._transport, self._trial_timeout, iter(groups), on_trials)
        try:
            while flight.fill():
                flight.receive()
                on_progress(*flight.progress)
        except KeyboardInterrupt:
            flight.cancel(keeps_reports=True)
            raise
        except BaseException:
            flight.cancel(keeps_reports=False)
            raise
        self._workers = merge_workers([*self._workers, *flight.workers])
        return flight.cost


class GroupsInFlight(Generic[T]):
    """The groups of one call of `run`: submitted ones, those to be retried, those still to come, and then suspects."""

    def __init__(
        self,
        transport: Transport[T],
        trial_timeout: float,
        groups: Iterator[TrialGroup],
        on_trials: OnTrials,
    ) -> None:
        self.cost = Cost()
        self._transport, self._trial_timeout = transport, trial_timeout
        self._groups, self._on_trials = groups, on_trials
        self._submitted: dict[T, SubmittedGroup] = {}
        self._retries: list[SubmittedGroup] = []
        self._suspects: list[SubmittedGroup] = []
        """Single trials that were lost alone: they are tried again when all others have been sent."""
        self._trained: Counter[Worker] = Counter()

    @property
    def workers(self) -> list[Worker]:
        """The cluster workers that have trained, with their numbers of trials."""
        return [worker.model_copy(update={"trials": count}) for worker, count in self._trained.items()]

    @property
    def progress(self) -> tuple[int, int]:
        """The furthest step reported, and the number of submitted trials that have not ended."""
        submitted = self._submitted.values()
        return max((each.step for each in submitted), default=0), sum(each.n_alive for each in submitted)

    def fill(self) -> bool:
        """Submits groups while there are free slots; False when all groups have ended."""
        while self._transport.reserve():
            ticket = None
            try:
                submitted = self._retries.pop() if self._retries else self._next()
                if submitted is None:
                    return bool(self._submitted)
                ticket = self._transport.submit(submitted.group, self._trial_timeout)
                self._submitted[ticket] = submitted
            finally:
                if ticket is None:
                    self._transport.release()
        return True

    def receive(self) -> None:
        """Waits for messages and handles them."""
        if not self._submitted:
            self._transport.wait_for_slot(WAIT_SECONDS)
            return
        for ticket, message in self._transport.receive(list(self._submitted), WAIT_SECONDS):
            self._accept(ticket, message)

    def cancel(self, keeps_reports: bool) -> None:
        """Stops what is in flight; the last reports of the stopped groups are passed on or dropped."""
        for ticket, message in self._transport.cancel(list(self._submitted)):
            if keeps_reports and isinstance(message, GroupReport):
                self._pass_on(self._submitted[ticket], message)
        self._submitted.clear()

    def _next(self) -> SubmittedGroup | None:
        group = next(self._groups, None)
        if group is not None:
            return SubmittedGroup(group, LossCount())
        return self._suspects.pop(0) if self._suspects else None

    def _accept(self, ticket: T, message: Message) -> None:
        submitted = self._submitted[ticket]
        if not isinstance(message, GroupReport) or message.cost is not None:
            del self._submitted[ticket]
        if isinstance(message, GroupError):
            raise message.error
        if isinstance(message, GroupLost):
            self._retry(submitted, message.reason)
            return
        if message.cost is not None:
            self.cost.add(message.cost)
        self._pass_on(submitted, message)

    def _pass_on(self, submitted: SubmittedGroup, report: GroupReport) -> None:
        """Passes on the trials that were not reported before."""
        submitted.step, submitted.n_alive = report.step, report.n_alive
        new = [trial for trial in report.trials if trial.key not in submitted.ended]
        submitted.ended.update(trial.key for trial in new)
        if report.worker is not None:
            self._trained[report.worker] += len(new)
        if new:
            self._on_trials(new)

    def _retry(self, submitted: SubmittedGroup, reason: str) -> None:
        """Queues the trials that had not ended: as one group after the first loss, in halves from then on."""
        submitted.losses.n_losses += 1
        for left in submitted.group.only(submitted.group.keys - submitted.ended):
            n_alone = submitted.n_losses_alone + (len(submitted.group.trials) == 1)
            if submitted.losses.n_losses >= MOST_LOSSES or n_alone >= MOST_LOSSES_ALONE:
                self._on_trials([failed_trial(left, trial, reason) for trial in left.trials])
            elif n_alone:
                self._suspects.append(SubmittedGroup(left, submitted.losses, n_alone))
            else:
                self._halve(left, submitted.losses)

    def _halve(self, left: TrialGroup, losses: LossCount) -> None:
        parts = [left] if losses.n_losses == 1 else left.parts((len(left.trials) + 1) // 2)
        self._retries.extend(SubmittedGroup(part, losses) for part in parts)
