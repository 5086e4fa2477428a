"""Lane groups in flight: sent to a cluster as there is room, their reports passed on, lost ones sent again."""

from __future__ import annotations

import pickle
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from capbench.engine.compiling import Compiling
from capbench.engine.cost import Cost
from capbench.engine.lanes import LaneGroup
from capbench.engine.train import OnProgress, OnTrial
from capbench.executors.local import failed_trial
from capbench.executors.needs import needs_of
from capbench.executors.ray_worker import REPORT_SECONDS, Parcel, Report
from capbench.results import Worker, merged

if TYPE_CHECKING:
    from capbench.executors.ray import RayCluster, Ref

WAIT_SECONDS = 1.0
"""Longest time between two signs of life to the run."""
MOST_LOSSES = 24
"""Times that a group and its parts may be lost before what is left of it counts as failed.

After the first loss it is sent again as it is, then in halves: a trial that kills its worker is found among 512 so.
"""


class GroupLost(Exception):
    """No last report of a group will come: its worker or its node died, or something else went wrong there."""


@dataclass
class Fate:
    """What has befallen a group that came from the run, and all parts of it."""

    n_losses: int = 0


@dataclass
class Sent:
    """A group on its way."""

    group: LaneGroup
    fate: Fate
    box: str = field(default_factory=lambda: uuid.uuid4().hex)
    since: float = field(default_factory=time.monotonic)
    ended: set[str] = field(default_factory=set)
    step: int = 0
    n_alive: int = field(init=False)

    def __post_init__(self) -> None:
        self.n_alive = len(self.group.trials)

    @property
    def may_have_mail(self) -> bool:
        """Whether it has been under way for as long as a worker waits before it reports."""
        return time.monotonic() - self.since > REPORT_SECONDS


class RayExecutor:
    """Runs the groups of one run on a cluster; several may share it, each in a thread of its own."""

    def __init__(self, cluster: RayCluster, compiling: Compiling, trial_timeout: float) -> None:
        self._cluster = cluster
        self._compiling = compiling
        self._timeout = trial_timeout
        self._workers: list[Worker] = []

    @property
    def workers(self) -> tuple[Worker, ...]:
        """Who has trained for it so far."""
        return tuple(self._workers)

    def run(self, groups: Iterable[LaneGroup], on_trial: OnTrial, on_progress: OnProgress) -> Cost:
        """Runs each group to its end, several at once; takes them as there is room, not before."""
        flight = Flight(self._cluster, self.parcel, iter(groups), on_trial)
        try:
            while flight.fill():
                flight.receive()
                on_progress(*flight.progress)
        finally:
            flight.end()
        for group in flight.compiled:
            self._compiling.remember(group, self._cluster.device)
        self._workers = merged([*self._workers, *flight.workers])
        return flight.cost

    def parcel(self, sent: Sent) -> Parcel:
        """A group as it travels."""
        cluster = self._cluster
        return Parcel(
            box=sent.box,
            needs=needs_of(sent.group.pair.plugins),
            group=pickle.dumps(replace(sent.group)),  # without what it remembers of its keys
            device=str(cluster.device),
            threads=cluster.threads,
            gpus=cluster.where.gpus,
            compiling=self._compiling.elsewhere(sent.group, cluster.device),
            trial_timeout=self._timeout,
        )


class Flight:
    """The groups of one call of `run`: those on their way, those to be sent again, and those still to come."""

    def __init__(
        self, cluster: RayCluster, pack: Callable[[Sent], Parcel], groups: Iterator[LaneGroup], on_trial: OnTrial
    ) -> None:
        self.cost = Cost()
        self.compiled: list[LaneGroup] = []
        self._cluster, self._pack, self._groups, self._on_trial = cluster, pack, groups, on_trial
        self._sent: dict[Ref, Sent] = {}
        self._again: list[Sent] = []
        self._stale: list[str] = []
        """Boxes of groups whose last report has come."""
        self._trained: Counter[Worker] = Counter()
        self._read = time.monotonic()

    @property
    def workers(self) -> list[Worker]:
        """Who has trained, and how many trials."""
        return [worker.model_copy(update={"trials": count}) for worker, count in self._trained.items()]

    @property
    def progress(self) -> tuple[int, int]:
        """The furthest step heard of, and the trials on their way that have not ended."""
        under_way = self._sent.values()
        return max((sent.step for sent in under_way), default=0), sum(sent.n_alive for sent in under_way)

    def fill(self) -> bool:
        """Sends groups while there is room; False when all have come to their ends."""
        while self._cluster.take_room():
            ref = None
            try:
                sent = self._again.pop() if self._again else self._fresh()
                if sent is None:
                    return bool(self._sent)
                ref = self._cluster.send(self._pack(sent))
                self._sent[ref] = sent
            finally:
                if ref is None:
                    self._cluster.leave_room()
        return True

    def receive(self) -> None:
        """Waits a moment, and takes in what has come."""
        if not self._sent:
            self._cluster.wait_for_room(WAIT_SECONDS)
            return
        for ref in self._cluster.landed(self._sent, WAIT_SECONDS):
            self._land(self._sent.pop(ref), ref)
        if time.monotonic() - self._read > REPORT_SECONDS:
            self._read = time.monotonic()
            self._read_mail([sent for sent in self._sent.values() if sent.may_have_mail])

    def end(self) -> None:
        """Calls back what is still on its way."""
        self._cluster.recall(self._sent)
        self._cluster.forget([*self._stale, *(sent.box for sent in self._sent.values())])
        self._sent.clear()

    def _fresh(self) -> Sent | None:
        group = next(self._groups, None)
        return None if group is None else Sent(group, Fate())

    def _land(self, sent: Sent, ref: Ref) -> None:
        """A group has come to its end, one way or the other."""
        try:
            report = self._cluster.fetch(ref)
        except GroupLost as loss:
            self._read_mail([sent])
            self._lose(sent, str(loss))
            return
        self._hear(sent, report)
        if sent.may_have_mail:
            self._stale.append(sent.box)
        self.cost.add(report.cost)
        if report.cost.compile_seconds:
            self.compiled.append(sent.group)

    def _read_mail(self, under_way: list[Sent]) -> None:
        """What was told ahead of the groups' ends."""
        if not under_way:
            return
        mail = self._cluster.mail([sent.box for sent in under_way])
        for sent in under_way:
            for news in mail.get(sent.box, ()):
                self._hear(sent, pickle.loads(news))

    def _hear(self, sent: Sent, report: Report) -> None:
        """Passes on the trials that are new."""
        sent.step, sent.n_alive = report.step, report.n_alive
        for trial in report.trials:
            if trial.key not in sent.ended:
                self._on_trial(trial, {})
                sent.ended.add(trial.key)
                self._trained[report.worker] += 1

    def _lose(self, sent: Sent, why: str) -> None:
        """Sends again what had not ended: as it is the first time, in halves from then on, until it is enough."""
        sent.fate.n_losses += 1
        for left in sent.group.only(sent.group.keys - sent.ended):
            n_left, is_first = len(left.trials), sent.fate.n_losses == 1
            if sent.fate.n_losses >= MOST_LOSSES or (n_left == 1 and not is_first):
                for trial in left.trials:
                    self._on_trial(failed_trial(left, trial, why), {})
            else:
                parts = [left] if is_first else left.parts((n_left + 1) // 2)
                self._again.extend(Sent(part, sent.fate) for part in parts)
