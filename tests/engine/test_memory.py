"""The memory estimate: near what a large group really takes, and what sizes groups."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from pydantic import PrivateAttr
from torch import Tensor

from capbench import Problem
from capbench.documents.result import TrialStatus
from capbench.engine import memory
from capbench.engine.memory import lanes_that_fit, memory_need
from capbench.engine.trials import Setup, Training, TrialGroup, TrialSpec
from capbench.executors.local import LocalExecutor
from capbench.registry.provenance import Provenance
from capbench.registry.settings import Configured
from capbench_plugins.adam import Adam
from capbench_plugins.mha import Mha
from capbench_tasks.rgr import Rgr

CPU = torch.device("cpu")

MEASURE = """
import os, sys, threading, torch
from capbench.engine.trials import TrialGroup, Setup, Training, TrialSpec
from capbench.engine.memory import memory_need
from capbench.executors.local import LocalExecutor
from capbench.registry.registry import load_registry
from capbench.registry.settings import configure

def resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

def run(n_lanes):
    trials = tuple(TrialSpec(load, seed, 0.01) for seed in range(n_lanes))
    executor.run([TrialGroup(setup, slots, trials)], lambda *_: None, lambda *_: None)

task, architecture, load, registry = sys.argv[1], sys.argv[2], int(sys.argv[3]), load_registry()
task = configure(registry.task(task), "standard", {})
setup = Setup(task, configure(registry.architecture(architecture), "standard", {}),
            configure(registry.solver("adam"), "standard", {}), Training(task.plugin.criterion, 50, stops_early=False))
slots = setup.slots(TrialSpec(load, 0, 0.01))
executor, peak, done = LocalExecutor(torch.device("cpu")), [0], threading.Event()
run(2)
before = resident()

def watch():
    while not done.wait(0.002):
        peak[0] = max(peak[0], resident())

watcher = threading.Thread(target=watch)
watcher.start()
run(512)
done.set()
watcher.join()
print((peak[0] - before) / memory_need(setup, slots).bytes(512))
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc to see what a process takes")
@pytest.mark.parametrize("case", [("rgr", "mha", "200"), ("triples", "aot", "200")], ids=" x ".join)
def test_512_lanes_take_what_was_estimated_within_30_percent(case: tuple[str, ...]) -> None:
    run = subprocess.run([sys.executable, "-c", MEASURE, *case], capture_output=True, text=True, check=True)
    share = float(run.stdout)
    assert 0.7 <= share <= 1.3


def make_pair() -> Setup:
    task = Rgr(n_items=24, d_item=8)
    plugins = (Configured(p, Provenance("t", "t", "0", "t"), "-") for p in (task, Mha(), Adam()))
    return Setup(*plugins, Training(task.criterion, 50))


def forget_peaks() -> None:
    memory_need.cache_clear()
    memory._peak.cache_clear()
    memory._smallest_group.cache_clear()


def refuse_numbers(_: object) -> int:
    raise NotImplementedError("Tensor.item() cannot be called on meta tensors")


def test_a_peak_is_counted_without_memory_as_it_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    forget_peaks()
    with monkeypatch.context() as patch:
        patch.setattr(memory, "free_memory", lambda _: 0)
        counted = [memory._peak(make_pair(), slots, 6) for slots in (64, 256)]
    forget_peaks()
    monkeypatch.setattr(memory, "_peak_without_numbers", refuse_numbers)
    assert [memory._peak(make_pair(), slots, 6) for slots in (64, 256)] == pytest.approx(counted, rel=0.05)
    forget_peaks()


class Keeping(Rgr):
    """Keeps the first tensor that it makes."""

    _kept: dict[str, Tensor] = PrivateAttr(default_factory=dict)

    def loss(self, outputs: Tensor, problem: Problem) -> Tensor:
        ones = self._kept.setdefault("ones", torch.ones(outputs.shape, device=outputs.device))
        return super().loss(outputs * ones, problem)


def test_a_tensor_that_a_plugin_keeps_is_not_one_without_numbers() -> None:
    task = Keeping(n_items=24, d_item=8)
    plugins = (Configured(p, Provenance("t", "t", "0", "t"), "-") for p in (task, Mha(), Adam()))
    setup, found = Setup(*plugins, Training(task.criterion, 50)), []
    group = TrialGroup(setup, 256, tuple(TrialSpec(10, seed, 0.2) for seed in range(3)))
    LocalExecutor(CPU).run([group], found.extend, lambda *_: None)
    assert task._kept["ones"].device == CPU
    assert all(trial.status is not TrialStatus.FAILED for trial in found)


def test_a_small_host_does_not_limit_the_groups_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    forget_peaks()
    cuda = torch.device("cuda")
    monkeypatch.setattr(memory, "free_memory", lambda device: 1 << 24 if device == cuda else 0)
    need = memory_need(make_pair(), 64, cuda)
    assert lanes_that_fit(make_pair(), 64, cuda) == int((memory.SHARE * (1 << 24) - need.fixed) / need.per_lane) > 2
    assert need.bytes(100) == pytest.approx(memory_need(make_pair(), 64).bytes(100) * memory.ELSEWHERE / 1.95, rel=0.01)


def test_fewer_lanes_fit_a_smaller_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    need = memory_need(make_pair(), 64)
    monkeypatch.setattr(memory, "free_memory", lambda _: 2 * need.bytes(20))
    assert lanes_that_fit(make_pair(), 64, CPU) == 20
    monkeypatch.setattr(memory, "free_memory", lambda _: 0)
    assert lanes_that_fit(make_pair(), 64, CPU) == 2
    monkeypatch.setattr(memory, "free_memory", lambda _: 1 << 50)
    assert lanes_that_fit(make_pair(), 64, CPU) == memory.MOST_LANES["cpu"]


def test_where_only_the_smaller_probe_fits_its_peak_is_the_lanes(monkeypatch: pytest.MonkeyPatch) -> None:
    need = memory_need(make_pair(), 64)
    forget_peaks()
    monkeypatch.setattr(memory, "_peak_without_numbers", refuse_numbers)
    monkeypatch.setattr(memory, "free_memory", lambda _: 2 * need.bytes(3))
    cautious = memory_need(make_pair(), 64)
    assert cautious.fixed == 0
    assert cautious.bytes(2) == pytest.approx(need.bytes(2), rel=0.01)
    forget_peaks()


def test_what_does_not_fit_this_machine_is_recorded_before_it_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    forget_peaks()
    monkeypatch.setattr(memory, "free_memory", lambda _: 50_000)
    group, found = TrialGroup(make_pair(), 256, tuple(TrialSpec(60, seed, 0.2) for seed in range(3))), []
    LocalExecutor(CPU).run([group], found.extend, lambda *_: None)
    assert [trial.status for trial in found] == [TrialStatus.FAILED] * 3
    assert "takes more than 0.0 GB, 70% of what is free; make the task or the architecture smaller" in found[0].error


def test_the_size_of_groups_changes_no_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    trials = tuple(TrialSpec(load, seed, 0.2) for load in (10, 60, 150) for seed in range(4))
    group = TrialGroup(make_pair(), 256, trials)

    def ended(n_lanes: int):
        found, sizes = {}, []
        monkeypatch.setattr("capbench.executors.local.lanes_that_fit", lambda *_: n_lanes)
        LocalExecutor(CPU).run(
            [group], lambda trials: found.update({t.key: t for t in trials}), lambda _, n: sizes.append(n)
        )
        return found, max(sizes)

    whole, most = ended(512)
    parts, fewer = ended(5)
    assert fewer <= 5 < most
    assert parts == whole
