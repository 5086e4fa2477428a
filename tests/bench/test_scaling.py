"""Past one machine: what a second worker gains, the driver costs, a large plan takes to start, a suite would take."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from scaling_estimate import Quiet, cost_of, makespan

from capbench.engine.memory import MOST_LANES
from capbench.errors import CapbenchError
from capbench.executors.ray.cluster import RayCluster, Slots
from capbench.executors.target import ComputeTarget
from capbench.measure import run as runner
from capbench.measure.options import RunOptions
from capbench.registry.registry import Registry, load_registry
from capbench.store.store import Store
from capbench.studies.jobs import Job, run_jobs
from capbench.studies.suite import load_suite
from capbench.studies.suite_run import SuitePlan, make_plan
from capbench.studies.sweep import parse_grid, results_of, run_sweep
from tests.executors.nodes import RayNodes, two_nodes

N_RUNS, LANES, GROUPS_A_RUN = 12, 32, 4
STEPS = 300
"""Groups of a second or two each: rgr × mha at its standard size."""
CELLS = (("rgr", "mha"), ("rgr", "headsplit"), ("sequences", "mha"), ("sequences", "deltanet"))
"""Pairs of the standard suite, at 256 parameters, that the driver's share is measured on."""
GPUS = (1, 8, 64, 512)
SPEEDS = (10, 100)
"""How many times as fast as one thread here a GPU is taken to be: nobody has measured it, so two are given."""


class Series(Quiet):
    """Hears of a series and says nothing."""

    @property
    def run(self) -> Quiet:
        return self

    def started(self, *_: object) -> None: ...
    def finished(self, *_: object) -> None: ...


@dataclass
class Driver:
    """What this process spent, and the groups it sent meanwhile."""

    cpu_seconds: float = 0.0
    planning_seconds: float = 0.0
    """Of these, what the search and the documents took: a run on one machine spends it too."""
    groups: int = 0


@contextmanager
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    """Counts groups and the CPU time of all threads of the driver, Ray's among them."""
    driver, submit = Driver(), RayCluster.submit

    def counted(self: RayCluster, group, trial_timeout):
        driver.groups += 1
        return submit(self, group, trial_timeout)

    def timed(function: Callable[..., object]) -> Callable[..., object]:
        def call(*args: object) -> object:
            began = time.thread_time()
            try:
                return function(*args)
            finally:
                driver.planning_seconds += time.thread_time() - began

        return call

    monkeypatch.setattr(RayCluster, "submit", counted)
    monkeypatch.setattr(runner, "next_trials", timed(runner.next_trials))
    monkeypatch.setattr(runner, "document", timed(runner.document))
    started = time.process_time()
    yield driver
    driver.cpu_seconds = time.process_time() - started


@pytest.fixture(scope="module")
def registry() -> Registry:
    return load_registry()


@pytest.fixture(scope="module")
def nodes(registry: Registry, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayNodes]:
    """Two nodes of one CPU, warm: their workers have started and have trained."""
    with two_nodes(tmp_path_factory.mktemp("site")) as started:
        sweep(started, registry, tmp_path_factory.mktemp("warm"), 2)
        yield started


@contextmanager
def workers_used(number: int) -> Iterator[None]:
    """So many of the two are given groups at once; Ray chooses which."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Slots, "count", lambda _: number)
        yield


def sweep(nodes: RayNodes, registry: Registry, folder: Path, n_runs: int) -> float:
    """Runs at neighbouring loads, several groups each; returns the seconds that workers have trained."""
    options = RunOptions(
        task="rgr", arch="mha", seeds=LANES * GROUPS_A_RUN, rates=(0.4,), steps=STEPS, compile_mode="off",
        executor="ray", address=nodes.address,
    )  # fmt: skip
    grid = parse_grid([f"at={','.join(str(200 + i) for i in range(n_runs))}"])
    store = Store(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(MOST_LANES, "cpu", LANES)
        points = run_sweep(options, grid, registry, store, Series())
    store.close()
    assert len(results_of(points)) == n_runs
    return sum(result.timing.train_seconds for result in results_of(points))


@pytest.mark.parametrize("workers", ["one, before", "two", "one, after"])
def test_a_second_worker(
    benchmark, nodes: RayNodes, registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: str
) -> None:
    benchmark.group = "scaling: workers"
    with workers_used(2 if workers == "two" else 1):
        sweep(nodes, registry, tmp_path / "warm", 2)  # a process that Ray has ended meanwhile starts again
        with watched(monkeypatch) as driver:
            trained = benchmark.pedantic(sweep, (nodes, registry, tmp_path, N_RUNS), rounds=1)
    assert driver.groups == N_RUNS * GROUPS_A_RUN
    benchmark.extra_info.update(
        workers=workers,
        work=f"{N_RUNS} runs of {GROUPS_A_RUN} groups each, {LANES} lanes of rgr × mha and {STEPS} steps at most",
        groups=driver.groups,
        driver_cpu_seconds=driver.cpu_seconds,
        train_seconds=trained,
    )


def test_the_drivers_share_of_a_suite(
    benchmark, nodes: RayNodes, registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = make_plan(load_suite("standard"), registry, target=ComputeTarget("cpu", "ray", nodes.address))
    cells = [c for c in plan.cells if (c.task, c.architecture) in CELLS and c.cell.tier == 256]
    jobs = [Job(f"{c.task} × {c.architecture}", c.request) for c in cells]
    store = Store(tmp_path)
    benchmark.group = "scaling: suite"
    with watched(monkeypatch) as driver:
        ended = benchmark.pedantic(lambda: list(run_jobs(jobs, registry, store, Series())), rounds=1)
    store.close()
    results = [each.result for each in ended if each.result]
    assert len(results) == len(CELLS)
    asked = sum(len(result.trials) * result.protocol.steps for result in results)
    benchmark.extra_info.update(
        entries=[job.label for job in jobs],
        groups=driver.groups,
        driver_cpu_seconds=driver.cpu_seconds,
        planning_seconds=driver.planning_seconds,
        train_seconds=sum(result.timing.train_seconds for result in results),
        trials=sum(len(result.trials) for result in results),
        share_taken=sum(result.timing.lane_steps for result in results) / asked,
    )


def test_a_plan_of_100_000_trials(benchmark, nodes: RayNodes, tmp_path: Path) -> None:
    command = [sys.executable, str(Path(__file__).parent / "big_plan.py"), nodes.address]
    environment = {**os.environ, "CAPBENCH_HOME": str(tmp_path)}
    benchmark.group = "scaling: plan"
    done = benchmark.pedantic(
        subprocess.run, (command,), {"env": environment, "capture_output": True, "text": True, "check": False}, rounds=1
    )
    assert done.returncode == 0, done.stderr
    benchmark.extra_info.update(json.loads(done.stdout))


def test_the_paper_suite(benchmark, registry: Registry, request: pytest.FixtureRequest) -> None:
    """Costs of its groups, timed one by one on one thread, and the schedule of all of them on many workers."""
    measured = {b.group: b.extra_info for b in request.config._benchmarksession.benchmarks}
    if not {"scaling: suite", "scaling: workers"} <= measured.keys():
        pytest.skip("it takes the driver's cost and the share of steps that the other benchmarks measure")
    suite = measured["scaling: suite"]
    driver_seconds = suite["driver_cpu_seconds"] / suite["groups"]
    plan = make_plan(load_suite("paper"), registry, target=ComputeTarget("cpu"))
    benchmark.group = "scaling: paper"
    with one_thread():
        runs, left_out = benchmark.pedantic(costs, (plan, registry, suite["share_taken"]), rounds=1)
    hours = {speed: [makespan(runs, n_gpus, speed, driver_seconds) / 3600 for n_gpus in GPUS] for speed in SPEEDS}
    benchmark.extra_info.update(
        runs=len(runs),
        halved=sum(not run.is_whole for run in runs),
        left_out=left_out,
        groups=sum(len(each) for run in runs for each in run.rounds),
        thread_hours=sum(run.seconds for run in runs) / 3600,
        longest_hours=max(run.seconds for run in runs) / 3600,
        share_taken=suite["share_taken"],
        driver_seconds=driver_seconds,
        gpus=GPUS,
        hours=hours,
    )


@contextmanager
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def costs(plan: SuitePlan, registry: Registry, share_taken: float) -> tuple[list, int]:
    """What each run of a plan would cost; those that cannot be planned on paper are counted."""
    runs, left_out = [], 0
    for cell in plan.cells:
        try:
            runs.append(cost_of(cell, registry, share_taken))
        except CapbenchError:
            left_out += 1
    return runs, left_out
