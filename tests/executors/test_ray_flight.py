"""Groups in flight, on a cluster made of plain calls: what is sent, what is sent again, and when it is enough."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import ClassVar

import pytest
import torch

from capbench.engine.compiling import Compiling
from capbench.engine.cost import Cost
from capbench.engine.lanes import LaneGroup, Pair, Training, TrialSpec
from capbench.errors import WorkersDiffer
from capbench.executors import flight
from capbench.executors.flight import MOST_LOSSES, GroupLost, RayExecutor
from capbench.executors.ray_worker import Parcel, Report
from capbench.provenance import Provenance
from capbench.results import Trial, TrialStatus, Worker
from capbench.settings import Configured
from capbench.where import Where
from capbench_plugins.adam import Adam
from capbench_plugins.mha import Mha
from capbench_tasks.rgr import Rgr

WORKER = Worker(
    capbench="0", engine=1, python="3", torch="2", device="cpu", device_name="x", threads=1, platform="p",
    node="n1", plugins=(),
)  # fmt: skip


def group_of(n_trials: int) -> LaneGroup:
    plugins = (Configured(p, Provenance("test", "test", "0", "test"), "-") for p in (Rgr(), Mha(), Adam()))
    pair = Pair(*plugins, Training(Rgr().criterion, 100))
    return LaneGroup(pair, 64, tuple(TrialSpec(40, seed, 0.1) for seed in range(n_trials)))


def ended(group: LaneGroup, spec: TrialSpec) -> Trial:
    return Trial(
        key=group.pair.key(spec), load=spec.load, seed=spec.seed, learning_rate=spec.learning_rate,
        status=TrialStatus.HELD, steps=25, metrics={"f1": 1.0},
    )  # fmt: skip


def report(group: LaneGroup, specs: tuple[TrialSpec, ...], cost: Cost | None = None) -> Report:
    return Report(
        tuple(ended(group, spec) for spec in specs), 25, len(group.trials) - len(specs), WORKER, cost or Cost()
    )


@dataclass
class FakeCluster:
    """Runs a group when its end is asked for; `fate` says how it ends: a report, or an exception."""

    fate: Callable[[LaneGroup], Report]
    room: int = 4
    others: int = 0
    """Groups of other runs on their way."""
    taken: int = 0
    where: ClassVar[Where] = Where(executor="ray")
    device: ClassVar[torch.device] = torch.device("cpu")
    threads: int = 1
    sent: list[LaneGroup] = field(default_factory=list)
    most_under_way: int = 0
    recalled: int = 0
    under_way: dict[int, Parcel] = field(default_factory=dict)
    told: dict[str, list[bytes]] = field(default_factory=dict)

    def take_room(self) -> bool:
        is_free = self.taken + self.others < self.room
        self.taken += is_free
        return is_free

    def leave_room(self) -> None:
        self.taken -= 1

    def wait_for_room(self, seconds: float) -> None:
        self.others -= 1

    def send(self, parcel: Parcel) -> int:
        self.sent.append(pickle.loads(parcel.group))
        self.under_way[len(self.sent)] = parcel
        self.most_under_way = max(self.most_under_way, len(self.under_way))
        return len(self.sent)

    def landed(self, refs, seconds: float) -> list[int]:
        return [next(iter(refs))]

    def fetch(self, ref: int) -> Report:
        parcel = self.under_way.pop(ref)
        self.leave_room()
        return self.fate(pickle.loads(parcel.group))

    def recall(self, refs) -> None:
        self.recalled += len(list(refs))
        self.taken -= len(list(refs))

    def forget(self, boxes: list[str]) -> None:
        for box in boxes:
            self.told.pop(box, None)

    def mail(self, boxes: list[str]) -> dict[str, list[bytes]]:
        return {box: self.told.pop(box) for box in boxes if box in self.told}


def run(cluster: FakeCluster, *groups: LaneGroup) -> tuple[dict[str, Trial], Cost, RayExecutor]:
    executor = RayExecutor(cluster, Compiling(), 600.0)
    found: dict[str, Trial] = {}

    def keep(trial: Trial, _: object) -> None:
        assert trial.key not in found, "each trial once"
        found[trial.key] = trial

    try:
        return found, executor.run(iter(groups), keep, lambda *_: None), executor
    finally:
        assert cluster.taken == 0, "a run that has ended takes no room"


def test_every_trial_comes_back_once_and_costs_and_workers_add_up() -> None:
    cluster = FakeCluster(lambda group: report(group, group.trials, Cost({"steps": 2.0}, lane_steps=10)))
    found, cost, executor = run(cluster, group_of(5), LaneGroup(group_of(1).pair, 128, (TrialSpec(90, 0, 0.1),)))
    assert len(found) == 6
    assert (cost.phases["steps"], cost.lane_steps) == (4.0, 20)
    assert [(worker.node, worker.trials) for worker in executor.workers] == [("n1", 6)]


def test_groups_are_taken_from_their_iterator_only_as_there_is_room() -> None:
    taken = []

    def groups() -> Iterator[LaneGroup]:
        for load in range(1, 101):
            taken.append(load)
            yield LaneGroup(group_of(1).pair, 128, (TrialSpec(load, 0, 0.1),))

    def fate(group: LaneGroup) -> Report:
        assert len(taken) <= len(cluster.sent), "none is taken ahead of its sending"
        return report(group, group.trials)

    cluster = FakeCluster(fate, room=3)
    RayExecutor(cluster, Compiling(), 600.0).run(groups(), lambda *_: None, lambda *_: None)
    assert cluster.most_under_way == 3
    assert len(taken) == 100


def test_a_run_that_finds_every_slot_taken_waits_and_is_done_in_the_end() -> None:
    cluster = FakeCluster(lambda group: report(group, group.trials), room=2, others=4)
    found, _, _ = run(cluster, group_of(4), LaneGroup(group_of(1).pair, 128, (TrialSpec(90, 0, 0.1),)))
    assert len(found) == 5
    assert (cluster.others, cluster.most_under_way) == (1, 1)


def test_a_group_lost_once_is_sent_again_as_it_is() -> None:
    losses = iter([True])

    def fate(group: LaneGroup) -> Report:
        if next(losses, False):
            raise GroupLost("the node died")
        return report(group, group.trials)

    cluster = FakeCluster(fate)
    found, _, _ = run(cluster, group_of(8))
    assert [len(group.trials) for group in cluster.sent] == [8, 8]
    assert {trial.status for trial in found.values()} == {TrialStatus.HELD}


@pytest.mark.parametrize("n_trials", [1, 2, 33, 512])
def test_one_trial_that_kills_its_worker_is_found_and_the_others_are_done(n_trials: int) -> None:
    def fate(group: LaneGroup) -> Report:
        if any(spec.seed == n_trials // 3 for spec in group.trials):
            raise GroupLost("WorkerCrashedError: the worker died")
        return report(group, group.trials)

    cluster = FakeCluster(fate)
    found, _, _ = run(cluster, group_of(n_trials))
    assert len(found) == n_trials
    (failed,) = [trial for trial in found.values() if trial.status is TrialStatus.FAILED]
    assert (failed.seed, failed.reason) == (n_trials // 3, "WorkerCrashedError: the worker died")


def test_a_group_of_nothing_but_poison_is_given_up_after_a_bounded_number_of_losses() -> None:
    def fate(group: LaneGroup) -> Report:
        if group.slots == 64:
            raise GroupLost("Traceback:\nRuntimeError: nothing works")
        return report(group, group.trials)

    cluster = FakeCluster(fate)
    other = LaneGroup(group_of(1).pair, 128, (TrialSpec(90, 0, 0.1),))
    found, _, _ = run(cluster, group_of(512), other)
    assert len(found) == 513
    assert sum(trial.status is TrialStatus.FAILED for trial in found.values()) == 512
    assert all(trial.reason == "RuntimeError: nothing works" for trial in found.values() if trial.error)
    assert sum(group.slots == 64 for group in cluster.sent) <= 2 * MOST_LOSSES


def test_what_was_told_before_a_loss_is_kept_and_not_trained_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flight, "REPORT_SECONDS", -1.0)

    class Telling(FakeCluster):
        def send(self, parcel: Parcel) -> int:
            if not self.sent:
                group = pickle.loads(parcel.group)
                self.told[parcel.box] = [pickle.dumps(report(group, group.trials[:n])) for n in (2, 5)]
            return super().send(parcel)

    losses = iter([True])

    def fate(group: LaneGroup) -> Report:
        if next(losses, False):
            raise GroupLost("gone")
        return report(group, group.trials)

    cluster = Telling(fate)
    found, _, executor = run(cluster, group_of(8))
    assert [[spec.seed for spec in group.trials] for group in cluster.sent] == [list(range(8)), [5, 6, 7]]
    assert len(found) == 8
    assert [worker.trials for worker in executor.workers] == [8]
    assert not cluster.told


def test_what_was_told_of_groups_that_have_ended_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flight, "REPORT_SECONDS", 0.0)

    class Telling(FakeCluster):
        def fetch(self, ref: int) -> Report:
            self.told[self.under_way[ref].box] = []
            return super().fetch(ref)

    cluster = Telling(lambda group: report(group, group.trials))
    run(cluster, group_of(2), LaneGroup(group_of(1).pair, 128, (TrialSpec(90, 0, 0.1),)))
    assert not cluster.told


def test_a_users_mistake_ends_the_run_and_calls_the_rest_back() -> None:
    def fate(_: LaneGroup) -> Report:
        raise WorkersDiffer("node n1 has another capbench")

    cluster = FakeCluster(fate)
    with pytest.raises(WorkersDiffer):
        run(cluster, *(LaneGroup(group_of(1).pair, 128, (TrialSpec(load, 0, 0.1),)) for load in range(1, 9)))
    assert cluster.recalled == 3, "of the four under way one has spoken"


def test_a_shape_that_was_compiled_on_a_worker_is_remembered_here(tmp_path) -> None:
    cluster = FakeCluster(lambda group: report(group, group.trials, Cost({"compile": 9.0})))
    compiling, group = Compiling("auto", tmp_path), group_of(40)
    assert not compiling.elsewhere(group, cluster.device).known
    RayExecutor(cluster, compiling, 600.0).run([group], lambda *_: None, lambda *_: None)
    assert compiling.elsewhere(group, cluster.device).known


def test_an_end_that_is_asked_for_calls_everything_back() -> None:
    cluster = FakeCluster(lambda group: report(group, group.trials))

    def tell(*_: object) -> None:
        raise KeyboardInterrupt

    groups = [LaneGroup(group_of(1).pair, 128, (TrialSpec(load, 0, 0.1),)) for load in range(1, 9)]
    with pytest.raises(KeyboardInterrupt):
        RayExecutor(cluster, Compiling(), 600.0).run(groups, lambda *_: None, tell)
    assert cluster.recalled == 3
    assert len(cluster.sent) == 4
