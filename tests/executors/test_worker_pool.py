"""The worker pool: the same trials as in one process, nothing lost, and no process left behind."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from capbench import Problem
from capbench.documents.result import Trial, TrialStatus
from capbench.engine.memory import free_memory
from capbench.engine.trials import Setup, Training, TrialGroup, TrialSpec
from capbench.errors import UserError
from capbench.executors import worker_pool
from capbench.executors.backends import ThisProcess, open_pool_backend
from capbench.executors.target import ComputeTarget
from capbench.executors.worker_pool import WorkerPool, pool_size
from capbench.registry.provenance import Provenance
from capbench.registry.settings import Configured
from capbench_plugins.adam import Adam
from capbench_plugins.mha import Mha
from capbench_tasks.rgr import Rgr

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="workers are forked on Linux only")
CPU = torch.device("cpu")
ROOT = Path(__file__).parents[2]
KILLS, EXITS, REFUSES, FAILS, WARNS, HANGS = range(201, 207)
"""Loads at which the task below misbehaves."""


class Local(UserWarning):
    """A warning of the tests' own."""


class Hazard(Rgr):
    """A task that does harm at some loads."""

    name = "hazard"

    def problem(self, load: int, slots: int, generator: torch.Generator) -> Problem:
        if load == KILLS:
            os.kill(os.getpid(), signal.SIGKILL)
        if load == EXITS:
            os._exit(3)
        if load == REFUSES:
            raise UserError("not with these fields")
        if load == FAILS:
            raise ValueError("a fault of the plugin")
        if load == WARNS:
            warnings.warn("beware", Local, stacklevel=1)
        if load == HANGS:
            time.sleep(60)
        return super().problem(load, slots, generator)

    def examine(self, problem: Problem) -> dict[str, float]:
        return {"pid": float(os.getpid()), "threads": torch.get_num_threads(), "free": free_memory(CPU)}


@pytest.fixture(autouse=True)
def threads_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(worker_pool, "QUOTA", Path("/there/is/none"))


def group_of(*loads: int, steps: int = 50, seeds: int = 1, n_heads: int = 4) -> TrialGroup:
    plugins = (
        Configured(p, Provenance("test", "test", "0", "test"), "-") for p in (Hazard(), Mha(n_heads=n_heads), Adam())
    )
    setup = Setup(*plugins, Training(Rgr().criterion, steps))
    specs = tuple(TrialSpec(load, seed, 0.1) for load in loads for seed in range(seeds))
    return TrialGroup(setup, setup.slots(specs[0]), specs)


def trained(pool: WorkerPool, *groups: TrialGroup, progress: Callable[..., None] = lambda *_: None) -> list[Trial]:
    found: list[Trial] = []
    pool.executor(600.0).run(groups, found.extend, progress)
    return found


def test_groups_are_trained_by_one_thread_workers_to_the_trials_of_one_process() -> None:
    groups = [group_of(20, 40, n_heads=heads) for heads in (1, 2, 4, 8)]
    with WorkerPool(CPU, 2) as pool:
        found = trained(pool, *groups)
    torch_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        alone: list[Trial] = []
        ThisProcess(CPU).executor(600.0).run(groups, alone.extend, lambda *_: None)
    finally:
        torch.set_num_threads(torch_threads)
    assert {t.key: (t.status, t.steps, t.metrics) for t in found} == {
        t.key: (t.status, t.steps, t.metrics) for t in alone
    }
    pids = {trial.data["pid"] for trial in found}
    assert len(pids) == 2
    assert os.getpid() not in pids
    assert {trial.data["threads"] for trial in found} == {1}


def test_memory_is_shared_between_the_workers() -> None:
    here = free_memory(CPU)
    with WorkerPool(CPU, 4) as pool:
        (trial,) = trained(pool, group_of(20))
    assert here / 5 < trial.data["free"] < here / 3


def test_a_users_mistake_found_by_a_worker_is_raised_here_and_the_worker_goes_on() -> None:
    with WorkerPool(CPU, 1) as pool:
        with pytest.raises(UserError, match="not with these fields"):
            trained(pool, group_of(REFUSES))
        (trial,) = trained(pool, group_of(20))
    assert trial.status is not TrialStatus.FAILED


def test_a_fault_of_a_plugin_costs_its_trial() -> None:
    with WorkerPool(CPU, 1) as pool:
        found = {trial.load: trial for trial in trained(pool, group_of(20, FAILS))}
    assert found[FAILS].reason == "ValueError: a fault of the plugin"
    assert found[20].status is not TrialStatus.FAILED


def test_a_warning_of_several_workers_is_shown_once() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")  # before the fork: workers inherit the filters
        with WorkerPool(CPU, 2) as pool:
            trained(pool, *(group_of(WARNS, n_heads=heads) for heads in (1, 2, 4)))
    assert [(str(each.message), each.category) for each in caught] == [("beware", Local)]


@pytest.mark.parametrize(
    ("load", "reason"),
    [(KILLS, "its process was killed by SIGKILL"), (EXITS, "its process ended with exit code 3")],
)
def test_a_trial_that_ends_its_worker_fails_and_the_others_are_trained(load: int, reason: str) -> None:
    with WorkerPool(CPU, 2) as pool:
        found = {trial.load: trial for trial in trained(pool, group_of(20, 30, load, 40), group_of(50))}
    assert found.pop(load).reason == reason
    assert sorted(found) == [20, 30, 40, 50]
    assert all(trial.status is not TrialStatus.FAILED for trial in found.values())


def test_a_killed_worker_is_replaced_and_its_group_retried() -> None:
    killed: list[int] = []

    def kill_one(*_: object) -> None:
        if not killed:
            killed.append(pool._workers[0].process.pid)
            os.kill(killed[0], signal.SIGKILL)

    with WorkerPool(CPU, 2) as pool:
        found = trained(pool, *(group_of(90, steps=2000, n_heads=h) for h in (1, 2)), progress=kill_one)
        assert len(found) == 2
        assert all(trial.status is not TrialStatus.FAILED for trial in found)
        assert not {trial.data["pid"] for trial in found} & set(killed)


def test_an_interrupted_run_keeps_what_has_ended_and_frees_the_workers() -> None:
    def interrupt(*_: object) -> None:
        if kept:
            raise KeyboardInterrupt

    kept: list[Trial] = []
    with WorkerPool(CPU, 2) as pool:
        executor = pool.executor(600.0)
        with pytest.raises(KeyboardInterrupt):
            executor.run([group_of(2, 250, steps=5000)], kept.extend, interrupt)
        assert [trial.load for trial in kept] == [2]
        assert len(trained(pool, group_of(20), group_of(30, n_heads=2))) == 2


def test_leaving_the_pool_leaves_no_process() -> None:
    with WorkerPool(CPU, 2) as pool:
        pids = [worker.process.pid for worker in pool._workers]
        pool.submit(group_of(250, steps=5000), 600.0)
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_killing_the_pool_ends_a_worker_that_hangs_at_once() -> None:
    started = time.monotonic()
    with WorkerPool(CPU, 1) as pool:
        pool.submit(group_of(HANGS), 600.0)
        time.sleep(0.2)
        pool.kill()
    assert time.monotonic() - started < 20


ORPHANS = """
import time, torch
from capbench.executors.worker_pool import WorkerPool
pool = WorkerPool(torch.device("cpu"), 2)
print(*(worker.process.pid for worker in pool._workers), flush=True)
time.sleep(60)
"""


def test_a_killed_parent_leaves_no_orphans() -> None:
    with subprocess.Popen([sys.executable, "-c", ORPHANS], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pids = [int(word) for word in parent.stdout.readline().split()]
        parent.kill()
    until = time.monotonic() + 20
    while any(_is_running(pid) for pid in pids) and time.monotonic() < until:
        time.sleep(0.05)
    assert len(pids) == 2
    assert not any(_is_running(pid) for pid in pids)


def _is_running(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


ABANDONED = """
import torch
from capbench.executors.worker_pool import WorkerPool
pool = WorkerPool(torch.device("cpu"), 1)
raise SystemExit(7)
"""


def test_a_pool_that_is_never_left_ends_with_its_process() -> None:
    assert subprocess.run([sys.executable, "-c", ABANDONED], timeout=60, check=False).returncode == 7


def test_how_many_workers_there_are(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert [pool_size(n, CPU) for n in (0, 1, 2, 7)] == [1, 1, 2, 2]
    assert pool_size(7, torch.device("cuda")) == 1
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(32)))
    assert [pool_size(n, CPU) for n in (3, 4, 50)] == [3, 4, 32]
    quota = tmp_path / "cpu.max"
    monkeypatch.setattr(worker_pool, "QUOTA", quota)
    for text, n_cores in (("250000 100000", 2), ("max 100000", 32), ("5000 100000", 1)):
        quota.write_text(text)
        assert pool_size(50, CPU) == n_cores
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert pool_size(50, CPU) == 1


def test_plugins_that_cannot_be_sent_are_trained_in_this_process() -> None:
    class Unsendable(Rgr):
        name = "unsendable"

    def backend_of(task: Rgr) -> object:
        plugins = [Configured(task, Provenance("test", "test", "0", "test"), "-")]
        with open_pool_backend(ComputeTarget(), 4, plugins) as backend:
            return type(backend)

    assert backend_of(Unsendable()) is ThisProcess
    assert backend_of(Rgr()) is WorkerPool


SWEEP = ("sweep", "--task", "rgr", "--arch", "mha", "--preset", "smoke", "--grid", "arch.n_heads=1,2,4", "--json")


def sweep(home: Path, kill: Callable[[subprocess.Popen[str]], None] | None = None) -> list[dict]:
    environment = {**os.environ, "CAPBENCH_HOME": str(home)}
    with subprocess.Popen(
        [sys.executable, "-m", "capbench.cli", *SWEEP], env=environment, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, text=True, start_new_session=True,
    ) as process:  # fmt: skip
        if kill:
            until, n_before = time.monotonic() + 60, _n_trials(home)
            while _n_trials(home) == n_before and time.monotonic() < until:
                time.sleep(0.02)
            kill(process)
        answer, _ = process.communicate(timeout=300)
    return json.loads(answer) if process.returncode == 0 else []


def _n_trials(home: Path) -> int:
    if not (home / "capbench.sqlite").exists():
        return 0
    with sqlite3.connect(home / "capbench.sqlite") as db:
        try:
            return db.execute("SELECT count(*) FROM trials").fetchone()[0]
        except sqlite3.OperationalError:  # being made
            return 0


@pytest.mark.slow
def test_a_sweep_killed_on_the_way_goes_on_to_the_same_documents(tmp_path: Path) -> None:
    undisturbed, home = sweep(tmp_path / "whole"), tmp_path / "killed"
    for kill in (lambda process: os.killpg(process.pid, signal.SIGKILL), lambda process: process.kill()):
        n_before = _n_trials(home)
        assert sweep(home, kill) == []
        assert _n_trials(home) > n_before
    again = sweep(home)
    for part in ("run_id", "capacity", "trials"):
        assert [document[part] for document in again] == [document[part] for document in undisturbed]
