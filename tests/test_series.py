"""Runs of a series at once: each stored and told as it ends, one's failure its own, an end asked for the end of all."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch

from capbench import series
from capbench.engine.cost import Cost
from capbench.engine.lanes import LaneGroup
from capbench.errors import ClusterUnavailable, RunInterrupted
from capbench.executors.workplace import ThisMachine
from capbench.options import RunOptions, build_request
from capbench.registry import load_registry
from capbench.results import Trial, TrialStatus
from capbench.series import Ended, Job, carry_out
from capbench.store import Store

N_AT_ONCE = 3
Doing = Callable[[int], None]
"""What a stand-in for training does at a load, before its trials end."""


@dataclass
class StandIn:
    """An executor that trains nothing, and notes how many of its kind are at work."""

    doing: Doing
    at_work: set[int]
    most: list[int]
    workers: tuple[()] = ()

    def run(self, groups, on_trial, on_progress) -> Cost:
        for group in groups:
            load = group.trials[0].load
            self.at_work.add(load)
            self.most.append(len(self.at_work))
            try:
                self.doing(load)
                for _ in range(3):
                    on_progress(1, len(group.trials))
                    time.sleep(0.01)
            finally:
                self.at_work.discard(load)
            for spec in group.trials:
                on_trial(held(group, spec), {})
        return Cost()


def held(group: LaneGroup, spec) -> Trial:
    return Trial(
        key=group.pair.key(spec), load=spec.load, seed=spec.seed, learning_rate=spec.learning_rate,
        status=TrialStatus.HELD, steps=1, metrics={"f1": 1.0, "bits": 1.0},
    )  # fmt: skip


@dataclass(frozen=True)
class Cluster(ThisMachine):
    """A workplace that wants several runs at once."""

    n_runs_at_once: int = N_AT_ONCE
    doing: Doing = lambda _: None
    at_work: set[int] = field(default_factory=set)
    most: list[int] = field(default_factory=list)

    def executor(self, *_: object) -> StandIn:
        return StandIn(self.doing, self.at_work, self.most)


class Listener:
    def __init__(self) -> None:
        self.run = self
        self.threads: set[threading.Thread] = set()

    def plan(self, *_: object) -> None: ...
    def trained(self, *_: object) -> None: ...
    def step(self, *_: object) -> None: ...

    def begins(self, *_: object) -> None:
        self.threads.add(threading.current_thread())

    ended = begins


@pytest.fixture
def carried_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Doing], tuple[list[Ended], Cluster]]:
    """Six runs at different loads on a workplace where something is done at each."""

    def run(doing: Doing) -> tuple[list[Ended], Cluster]:
        registry, heard, cluster = load_registry(), Listener(), Cluster(torch.device("cpu"), doing=doing)
        monkeypatch.setattr(series, "open_workplace", lambda _: cluster)
        requests = [
            build_request(RunOptions("rgr", "mha", preset="smoke", at=at, seeds=2, rates=(0.1,)), registry)
            for at in range(1, 7)
        ]
        jobs = [Job(f"at {request.at}", request, 100) for request in requests]
        store, before = Store(tmp_path), set(threading.enumerate())
        try:
            return list(carry_out(jobs, registry, store, heard)), cluster
        finally:
            assert heard.threads == {threading.main_thread()}, "a listener hears of jobs in one thread"
            left = set(threading.enumerate()) - before
            assert not [t for t in left if t.name.startswith("ThreadPool")], "no thread stays behind"
            store.close()

    return run


def test_several_runs_are_under_way_and_none_more_than_wanted(carried_out) -> None:
    ended, cluster = carried_out(lambda load: time.sleep(0.2 if load == 1 else 0.05))
    assert max(cluster.most) == N_AT_ONCE
    assert sorted(each.index for each in ended) == list(range(6))
    assert [each.index for each in ended] != list(range(6)), "the first took longest"
    for each in ended:
        assert each.result is not None
        assert {trial.load for trial in each.result.trials} == {each.index + 1}


def test_one_runs_failure_is_recorded_and_the_others_are_carried_out(carried_out) -> None:
    def doing(load: int) -> None:
        if load == 2:
            raise RuntimeError("this one broke")

    ended, _ = carried_out(doing)
    assert [(e.index, e.reason) for e in ended if e.result is None] == [(1, "RuntimeError: this one broke")]
    assert len(ended) == 6


def test_a_fault_of_the_workplace_ends_the_series(carried_out) -> None:
    def doing(load: int) -> None:
        if load == 2:
            raise ClusterUnavailable("the cluster is gone")

    with pytest.raises(ClusterUnavailable, match="the cluster is gone"):
        carried_out(doing)


def test_ctrl_c_ends_all_runs_and_says_how_to_go_on(carried_out, tmp_path: Path) -> None:
    everybody = threading.Barrier(N_AT_ONCE)

    def doing(load: int) -> None:
        if load > 3:
            everybody.wait(30)
            if load == 4:
                os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(RunInterrupted, match=r"3 of 6 runs done; all finished trials are stored"):
        carried_out(doing)
    assert Store(tmp_path).counts()[0] == 6
