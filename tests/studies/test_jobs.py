"""The jobs of a study: several at once, each stored and reported as it finishes, one failure its own."""

from __future__ import annotations

import json
import multiprocessing.context
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch

from capbench.documents.result import Trial, TrialStatus
from capbench.engine import train
from capbench.engine.cost import Cost
from capbench.engine.trials import TrialGroup
from capbench.errors import ClusterUnavailable, RunInterrupted
from capbench.executors import local
from capbench.executors.backends import ThisProcess
from capbench.measure.options import RunOptions
from capbench.measure.request import build_request
from capbench.measure.run import execute
from capbench.registry.registry import load_registry
from capbench.store.store import Store
from capbench.studies import jobs
from capbench.studies.jobs import FinishedJob, Job, run_jobs, work_units
from capbench.studies.sweep import parse_grid, results_of, run_sweep

N_AT_ONCE = 3
Doing = Callable[[int], None]
"""What the fake executor does at a load, before its trials end."""


@dataclass
class FakeExecutor:
    """An executor that trains nothing, and records how many groups run at once."""

    doing: Doing
    running: set[int]
    most: list[int]
    workers: tuple[()] = ()

    def run(self, groups, on_trials, on_progress) -> Cost:
        for group in groups:
            load = group.trials[0].load
            self.running.add(load)
            self.most.append(len(self.running))
            try:
                self.doing(load)
                for _ in range(3):
                    on_progress(1, len(group.trials))
                    time.sleep(0.01)
            finally:
                self.running.discard(load)
            on_trials([held(group, spec) for spec in group.trials])
        return Cost()


def held(group: TrialGroup, spec) -> Trial:
    return Trial(
        key=group.setup.key(spec), load=spec.load, seed=spec.seed, learning_rate=spec.learning_rate,
        status=TrialStatus.HELD, steps=1, metrics={"f1": 1.0, "bits": 1.0},
    )  # fmt: skip


@dataclass(frozen=True)
class Cluster(ThisProcess):
    """A backend that can use several runs at once."""

    n_parallel_runs: int = N_AT_ONCE
    doing: Doing = lambda _: None
    running: set[int] = field(default_factory=set)
    most: list[int] = field(default_factory=list)

    def executor(self, *_: object) -> FakeExecutor:
        return FakeExecutor(self.doing, self.running, self.most)


class Listener:
    def __init__(self) -> None:
        self.run = self
        self.threads: set[threading.Thread] = set()

    def compiling(self) -> None: ...
    def plan(self, *_: object) -> None: ...
    def trained(self, *_: object) -> None: ...
    def step(self, *_: object) -> None: ...

    def started(self, *_: object) -> None:
        self.threads.add(threading.current_thread())

    finished = started


@pytest.fixture
def finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Doing], tuple[list[FinishedJob], Cluster]]:
    """Six runs at different loads on a fake backend."""

    def run(doing: Doing) -> tuple[list[FinishedJob], Cluster]:
        registry, listener, cluster = load_registry(), Listener(), Cluster(torch.device("cpu"), doing=doing)
        monkeypatch.setattr(jobs, "open_pool_backend", lambda *_: cluster)
        requests = [
            build_request(
                RunOptions(task="rgr", arch="mha", preset="smoke", at=at, seeds=2, rates=(at / 10,)), registry
            )
            for at in range(1, 7)
        ]
        wanted = [Job(f"at {request.options.at}", request) for request in requests]
        store, before = Store(tmp_path), set(threading.enumerate())
        try:
            return list(run_jobs(wanted, registry, store, listener)), cluster
        finally:
            assert listener.threads == {threading.main_thread()}, "a listener is called in one thread"
            left = set(threading.enumerate()) - before
            assert not [t for t in left if t.name.startswith("ThreadPool")], "no thread stays behind"
            store.close()

    return run


def test_as_many_runs_as_allowed_run_at_once(finished) -> None:
    ended, cluster = finished(lambda load: time.sleep(0.2 if load == 1 else 0.05))
    assert max(cluster.most) == N_AT_ONCE
    assert sorted(each.index for each in ended) == list(range(6))
    assert [each.index for each in ended] != list(range(6)), "the first took longest"
    for each in ended:
        assert each.result is not None
        assert {trial.load for trial in each.result.trials} == {each.index + 1}


def test_the_runs_that_take_longest_start_first(tmp_path: Path) -> None:
    registry, listener = load_registry(), Listener()
    wanted, started = [], []
    for steps, n_heads in ((25, 1), (100, 1), (25, 4), (100, 1)):
        words = (f"arch.n_heads={n_heads}",)
        options = RunOptions(task="rgr", arch="mha", preset="smoke", at=2, seeds=2, steps=steps, set=words)
        wanted.append(Job(f"{steps} x {n_heads}", build_request(options, registry)))
    listener.started = lambda job, *_: started.append(job.label)  # type: ignore[method-assign]
    store = Store(tmp_path)
    study = jobs.Study(wanted, [[0], [1], [2], [3]], registry, store, listener, Cluster(torch.device("cpu")))
    assert len(list(study.run_in_threads())) == 4
    assert started == ["100 x 1", "100 x 1", "25 x 4", "25 x 1"]
    store.close()


def test_one_runs_failure_is_recorded_and_the_others_go_on(finished) -> None:
    def doing(load: int) -> None:
        if load == 2:
            raise RuntimeError("this one broke")

    ended, _ = finished(doing)
    assert [(e.index, e.reason) for e in ended if e.result is None] == [(1, "RuntimeError: this one broke")]
    assert len(ended) == 6


def test_a_fault_of_the_backend_ends_the_study(finished) -> None:
    def doing(load: int) -> None:
        if load == 2:
            raise ClusterUnavailable("the cluster is gone")

    with pytest.raises(ClusterUnavailable, match="the cluster is gone"):
        finished(doing)


def test_ctrl_c_ends_all_runs_and_says_how_to_continue(finished, tmp_path: Path) -> None:
    all_runs = threading.Barrier(N_AT_ONCE)

    def doing(load: int) -> None:
        if load > 3:
            all_runs.wait(30)
            if load == 4:
                os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(RunInterrupted, match=r"3 of 6 runs done; all finished trials are stored"):
        finished(doing)
    assert Store(tmp_path).counts()[0] == 6


OPTIONS = RunOptions(
    task="rgr", arch="mha", preset="smoke", seeds=3, rates=(0.4,), set=("task.n_items=12",), compile_mode="off"
)


class Quiet:
    """A study listener that ignores everything."""

    @property
    def run(self) -> Quiet:
        return self

    def started(self, *_: object) -> None: ...
    def finished(self, *_: object) -> None: ...
    def compiling(self) -> None: ...
    def plan(self, *_: object) -> None: ...
    def trained(self, *_: object) -> None: ...
    def step(self, *_: object) -> None: ...


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch) -> list[TrialGroup]:
    """The groups that are trained."""
    seen: list[TrialGroup] = []

    def spy(group: TrialGroup, *rest: object):
        seen.append(group)
        return train.train_group(group, *rest)

    monkeypatch.setattr(local, "train_group", spy)
    return seen


def test_loads_share_a_stack_and_give_the_same_trials_as_alone(tmp_path: Path, groups: list[TrialGroup]) -> None:
    registry = load_registry()
    store, alone = Store(tmp_path / "together"), Store(tmp_path / "alone")
    grid = parse_grid(["at=4,9,20", "arch.n_heads=1,2"])
    results = results_of(run_sweep(OPTIONS, grid, registry, store, Quiet()))
    assert sorted(len(group.trials) for group in groups) == [9, 9], "one group per number of heads, all loads in it"
    for result in results:
        settings = (*OPTIONS.set, f"arch.n_heads={result.architecture.params['n_heads']}")
        options = OPTIONS.replaced(at=result.protocol.at, set=settings)
        own = execute(build_request(options, registry), registry, alone, Quiet())
        assert own.trials == result.trials
        assert result.timing.trials_trained == 3
        assert result.timing.trials_reused == 0
        assert result.timing.lane_steps == pytest.approx(own.timing.lane_steps, abs=1)
        assert 0 < result.timing.train_seconds <= result.timing.wall_seconds
    again = results_of(run_sweep(OPTIONS, grid, registry, store, Quiet()))
    assert [(r.timing.trials_trained, r.timing.trials_reused) for r in again] == [(0, 3)] * 6
    assert [r.trials for r in again] == [r.trials for r in results]


def test_only_jobs_that_differ_in_their_load_alone_are_one_unit_of_work() -> None:
    registry = load_registry()

    def request(at: int | None, **options):
        return build_request(OPTIONS.replaced(at=at, **options), registry)

    requests = [
        request(4), request(9, steps=7), request(9), request(None), request(4, seeds=2), request(20),
        request(9, rates=(0.1,)), request(12, set=("task.n_items=13",)),
    ]  # fmt: skip
    assert work_units([Job("", each) for each in requests]) == [[0, 2, 5], [1], [3], [4], [6], [7]]


def test_trials_that_fail_in_a_joint_group_are_reported_and_retried_once(capbench, tmp_path: Path) -> None:
    plugin, calls = tmp_path / "broken.py", tmp_path / "calls"
    plugin.write_text(f"""
import capbench
from capbench_tasks.rgr import Rgr

class Broken(Rgr):
    name = "broken"

    def problem(self, load, slots, generator):
        if load == 9:
            with open({str(calls)!r}, "a") as file:
                file.write("called\\n")
            raise ValueError("nine")
        return super().problem(load, slots, generator)

@capbench.hookimpl
def capbench_tasks():
    return [Broken]
""")
    words = ("--task", "broken", "--arch", "mha", "--preset", "smoke", "--seeds", "1", "--set", "task.n_items=12")
    done = capbench("--plugin", str(plugin), "sweep", *words, "--lr", "0.4", "--grid", "at=4,9", "--json")
    assert done.code == 1
    assert [result["protocol"]["at"] for result in json.loads(done.out)] == [4]
    assert "at=9: failed: the only trial failed: ValueError: nine" in done.err
    assert calls.read_text().count("called") == 2, "in the group, and alone"


def test_an_interrupt_ends_the_study_and_keeps_what_has_ended(tmp_path: Path) -> None:
    class Impatient(Quiet):
        def trained(self, *_: object) -> None:
            raise KeyboardInterrupt

    store = Store(tmp_path)
    with pytest.raises(RunInterrupted, match="0 of 2 runs done; all finished trials are stored"):
        run_sweep(OPTIONS, parse_grid(["at=4,9"]), load_registry(), store, Impatient())
    assert store.counts()[0] > 0


def test_workers_are_forked_without_the_open_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    start = multiprocessing.context.ForkProcess.start

    def count_open_files(process: multiprocessing.context.ForkProcess) -> None:
        links = [link.readlink() for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
        seen.append(links.count(tmp_path / "capbench.sqlite"))
        start(process)

    monkeypatch.setattr(multiprocessing.context.ForkProcess, "start", count_open_files)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    store = Store(tmp_path)
    results = results_of(run_sweep(OPTIONS, parse_grid(["arch.n_heads=1,2", "at=4"]), load_registry(), store, Quiet()))
    assert len(results) == 2
    assert seen == [0, 0], "the two workers inherit no SQLite connections"
    assert store.counts() == (6, 2)
