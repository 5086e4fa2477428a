"""Groups in flight, on workers made of plain calls: what is submitted, what is retried, and when it is given up."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import pytest

from capbench.documents.result import Trial, TrialStatus, Worker
from capbench.engine.cost import Cost
from capbench.engine.trials import Setup, Training, TrialGroup, TrialSpec
from capbench.errors import WorkersDiffer
from capbench.executors.in_flight import (
    MOST_LOSSES,
    MOST_LOSSES_ALONE,
    GroupError,
    GroupLost,
    GroupReport,
    Message,
    RemoteExecutor,
)
from capbench.registry.provenance import Provenance
from capbench.registry.settings import Configured
from capbench_plugins.adam import Adam
from capbench_plugins.mha import Mha
from capbench_tasks.rgr import Rgr

WORKER = Worker(
    capbench="0", engine=1, python="3", torch="2", device="cpu", device_name="x", threads=1, platform="p",
    node="n1", plugins=(),
)  # fmt: skip


def group_of(n_trials: int) -> TrialGroup:
    plugins = (Configured(p, Provenance("test", "test", "0", "test"), "-") for p in (Rgr(), Mha(), Adam()))
    setup = Setup(*plugins, Training(Rgr().criterion, 100))
    return TrialGroup(setup, 64, tuple(TrialSpec(40, seed, 0.1) for seed in range(n_trials)))


def ended(group: TrialGroup, spec: TrialSpec) -> Trial:
    return Trial(
        key=group.setup.key(spec), load=spec.load, seed=spec.seed, learning_rate=spec.learning_rate,
        status=TrialStatus.HELD, steps=25, metrics={"f1": 1.0},
    )  # fmt: skip


def report(group: TrialGroup, specs: tuple[TrialSpec, ...], cost: Cost | None = None) -> GroupReport:
    return GroupReport(tuple(ended(group, spec) for spec in specs), 25, len(group.trials) - len(specs), WORKER, cost)


def last_report(group: TrialGroup) -> GroupReport:
    return report(group, group.trials, Cost())


@dataclass
class FakeWorkers:
    """Runs a group when its messages are read; `outcome` says how it ends."""

    outcome: Callable[[TrialGroup], Message]
    room: int = 4
    others: int = 0
    """Groups of other runs in flight."""
    reserved: int = 0
    sent: list[TrialGroup] = field(default_factory=list)
    most_in_flight: int = 0
    cancelled: int = 0
    in_flight: dict[int, TrialGroup] = field(default_factory=dict)
    early: Callable[[TrialGroup], list[GroupReport]] = lambda _: []
    """Reports before the last message, of the first group sent."""

    def reserve(self) -> bool:
        is_free = self.reserved + self.others < self.room
        self.reserved += is_free
        return is_free

    def release(self) -> None:
        self.reserved -= 1

    def wait_for_slot(self, seconds: float) -> None:
        self.others -= 1

    def submit(self, group: TrialGroup, trial_timeout: float) -> int:
        self.sent.append(group)
        self.in_flight[len(self.sent)] = group
        self.most_in_flight = max(self.most_in_flight, len(self.in_flight))
        return len(self.sent)

    def receive(self, tickets, seconds: float) -> Iterator[tuple[int, Message]]:
        ticket = tickets[0]
        group = self.in_flight.pop(ticket)
        self.release()
        if ticket == 1:
            yield from ((ticket, each) for each in self.early(group))
        yield ticket, self.outcome(group)

    def cancel(self, tickets) -> Iterator[tuple[int, Message]]:
        self.cancelled += len(tickets)
        self.reserved -= len(tickets)
        for ticket in tickets:
            group = self.in_flight.pop(ticket)
            yield ticket, report(group, group.trials[:1])


def run(workers: FakeWorkers, *groups: TrialGroup) -> tuple[dict[str, Trial], Cost, RemoteExecutor]:
    executor = RemoteExecutor(workers, 600.0)
    found: dict[str, Trial] = {}

    def keep(trials: Sequence[Trial]) -> None:
        for trial in trials:
            assert trial.key not in found, "each trial once"
            found[trial.key] = trial

    try:
        return found, executor.run(iter(groups), keep, lambda *_: None), executor
    finally:
        assert workers.reserved == 0, "a run that has ended keeps no slot"


def test_every_trial_comes_back_once_and_costs_and_workers_add_up() -> None:
    workers = FakeWorkers(lambda group: report(group, group.trials, Cost({"steps": 2.0}, lane_steps=10)))
    found, cost, executor = run(workers, group_of(5), TrialGroup(group_of(1).setup, 128, (TrialSpec(90, 0, 0.1),)))
    assert len(found) == 6
    assert (cost.phases["steps"], cost.lane_steps) == (4.0, 20)
    assert [(worker.node, worker.trials) for worker in executor.workers] == [("n1", 6)]


def test_groups_are_taken_from_their_iterator_only_as_there_is_room() -> None:
    taken = []

    def groups() -> Iterator[TrialGroup]:
        for load in range(1, 101):
            taken.append(load)
            yield TrialGroup(group_of(1).setup, 128, (TrialSpec(load, 0, 0.1),))

    def outcome(group: TrialGroup) -> Message:
        assert len(taken) <= len(workers.sent), "none is taken ahead of its sending"
        return last_report(group)

    workers = FakeWorkers(outcome, room=3)
    RemoteExecutor(workers, 600.0).run(groups(), lambda _: None, lambda *_: None)
    assert workers.most_in_flight == 3
    assert len(taken) == 100


def test_a_run_that_finds_every_slot_taken_waits_and_is_done_in_the_end() -> None:
    workers = FakeWorkers(last_report, room=2, others=4)
    found, _, _ = run(workers, group_of(4), TrialGroup(group_of(1).setup, 128, (TrialSpec(90, 0, 0.1),)))
    assert len(found) == 5
    assert (workers.others, workers.most_in_flight) == (1, 1)


def test_a_group_lost_once_is_sent_again_as_it_is() -> None:
    losses = iter([True])

    def outcome(group: TrialGroup) -> Message:
        if next(losses, False):
            return GroupLost("the node died")
        return last_report(group)

    workers = FakeWorkers(outcome)
    found, _, _ = run(workers, group_of(8))
    assert [len(group.trials) for group in workers.sent] == [8, 8]
    assert {trial.status for trial in found.values()} == {TrialStatus.HELD}


@pytest.mark.parametrize("n_trials", [1, 2, 33, 512])
def test_one_trial_that_kills_its_worker_is_found_and_the_others_are_done(n_trials: int) -> None:
    def outcome(group: TrialGroup) -> Message:
        if any(spec.seed == n_trials // 3 for spec in group.trials):
            return GroupLost("WorkerCrashedError: the worker died")
        return last_report(group)

    workers = FakeWorkers(outcome)
    found, _, _ = run(workers, group_of(n_trials))
    assert len(found) == n_trials
    (failed,) = [trial for trial in found.values() if trial.status is TrialStatus.FAILED]
    assert (failed.seed, failed.reason) == (n_trials // 3, "WorkerCrashedError: the worker died")


def test_trials_whose_workers_others_kill_are_tried_again_when_the_rest_has_been_sent() -> None:
    kills = iter([True] * 12)

    def outcome(group: TrialGroup) -> Message:
        return GroupLost("WorkerCrashedError") if next(kills, False) else last_report(group)

    workers = FakeWorkers(outcome)
    setup = group_of(1).setup
    found, _, _ = run(workers, *(TrialGroup(setup, 128, (TrialSpec(load, 0, 0.1),)) for load in range(1, 9)))
    assert {trial.status for trial in found.values()} == {TrialStatus.HELD}
    loads = [group.trials[0].load for group in workers.sent]
    assert (len(found), sorted(loads[:8])) == (8, list(range(1, 9)))


def test_one_trial_that_is_lost_alone_every_time_is_given_up() -> None:
    workers = FakeWorkers(lambda group: GroupLost("WorkerCrashedError"))
    found, _, _ = run(workers, group_of(1))
    assert [trial.status for trial in found.values()] == [TrialStatus.FAILED]
    assert len(workers.sent) == MOST_LOSSES_ALONE


def test_a_group_of_nothing_but_poison_is_given_up_after_a_bounded_number_of_losses() -> None:
    def outcome(group: TrialGroup) -> Message:
        if group.slots == 64:
            return GroupLost("Traceback:\nRuntimeError: nothing works")
        return last_report(group)

    workers = FakeWorkers(outcome)
    other = TrialGroup(group_of(1).setup, 128, (TrialSpec(90, 0, 0.1),))
    found, _, _ = run(workers, group_of(512), other)
    assert len(found) == 513
    assert sum(trial.status is TrialStatus.FAILED for trial in found.values()) == 512
    assert all(trial.reason == "RuntimeError: nothing works" for trial in found.values() if trial.error)
    assert sum(group.slots == 64 for group in workers.sent) <= 2 * MOST_LOSSES


def test_what_was_reported_before_a_loss_is_kept_and_not_trained_again() -> None:
    losses = iter([True])

    def outcome(group: TrialGroup) -> Message:
        return GroupLost("gone") if next(losses, False) else last_report(group)

    workers = FakeWorkers(outcome, early=lambda group: [report(group, group.trials[:n]) for n in (2, 5)])
    found, _, executor = run(workers, group_of(8))
    assert [[spec.seed for spec in group.trials] for group in workers.sent] == [list(range(8)), [5, 6, 7]]
    assert len(found) == 8
    assert [worker.trials for worker in executor.workers] == [8]


def test_a_users_mistake_ends_the_run_and_calls_the_rest_back() -> None:
    def outcome(_: TrialGroup) -> Message:
        return GroupError(WorkersDiffer("node n1 has another capbench"))

    workers = FakeWorkers(outcome)
    with pytest.raises(WorkersDiffer):
        run(workers, *(TrialGroup(group_of(1).setup, 128, (TrialSpec(load, 0, 0.1),)) for load in range(1, 9)))
    assert workers.cancelled == 3, "of the four under way one has spoken"


def test_an_interrupt_cancels_everything_and_keeps_what_was_still_reported() -> None:
    workers, kept = FakeWorkers(last_report), []

    def progress(*_: object) -> None:
        raise KeyboardInterrupt

    groups = [TrialGroup(group_of(1).setup, 128, (TrialSpec(load, 0, 0.1),)) for load in range(1, 9)]
    with pytest.raises(KeyboardInterrupt):
        RemoteExecutor(workers, 600.0).run(groups, kept.extend, progress)
    assert workers.cancelled == 3
    assert len(workers.sent) == 4
    assert len(kept) == 4, "one had ended, three were reported when they were cancelled"
