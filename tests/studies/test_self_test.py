"""The self-test of a device: what it counts, and what it calls wrong."""

from __future__ import annotations

import warnings
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

from capbench.engine import counting
from capbench.engine.counting import OperationCount, count_launches, cuda_waits
from capbench.engine.trials import TrialGroup
from capbench.registry.registry import load_registry
from capbench.studies import self_test

CPU = torch.device("cpu")
MOST_OPERATIONS = {"step": 95, "evaluation": 332}
"""Operations that are not views, for the pair of the self-test: fewer are welcome here, more need a reason."""


def test_a_step_and_an_evaluation_take_no_more_operations_than_they_did() -> None:
    setup = self_test._setup(load_registry())
    group = TrialGroup(setup, setup.task.plugin.max_load, self_test._trials(setup))
    step, evaluation = self_test._Stepped(group, torch.device("cpu")).count()
    assert step.operations.total() <= MOST_OPERATIONS["step"]
    assert evaluation.operations.total() <= MOST_OPERATIONS["evaluation"]
    assert not step.waits


def test_reads_of_the_host_are_counted_and_views_are_not() -> None:
    with OperationCount() as count:
        own = torch.ones(3).view(3, 1) + 1
        own.sum().item()
        own.nonzero()
    assert count.operations["view"] == 0
    assert count.operations["add"] == 1
    assert count.waits == {"_local_scalar_dense": 1, "nonzero": 1}


@pytest.mark.parametrize(
    ("found", "problems"),
    [
        ((0, 0.0, ()), []),
        ((1, 0.0, ()), ["1 trials end otherwise than on the CPU"]),
        ((0, 0.5, ()), ["weights differ by 5.0e-01 after 50 steps"]),
        ((0, 0.0, ("nonzero",)), ["the host waits within a step, for nonzero"]),
    ],
)
def test_a_device_is_ready_unless_one_of_three_things_is_wrong(
    found: tuple[int, float, tuple[str, ...]], problems: list[str]
) -> None:
    assert self_test._problems(*found) == problems


def stepped() -> self_test._Stepped:
    setup = self_test._setup(load_registry())
    return self_test._Stepped(TrialGroup(setup, setup.task.plugin.max_load, self_test._trials(setup)), CPU)


def test_sizes_that_would_take_too_long_are_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(self_test, "SPEED_SECONDS", 1e-9)
    found = list(stepped().speeds((2, 4, 8)))
    assert [each.lanes for each in found] == [2, 4, 8]
    assert [each.lane_steps_per_second is not None for each in found] == [True, False, False]


def test_sizes_beyond_one_that_does_not_fit_are_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []

    def fail(n_lanes: int) -> float:
        tried.append(n_lanes)
        raise RuntimeError("CUDA error: out of memory" if n_lanes == 4 else "a defect")

    own = stepped()
    monkeypatch.setattr(own, "_speed", fail)
    assert [each.lane_steps_per_second for each in own.speeds((4, 8))] == [None, None]
    assert tried == [4]
    with pytest.raises(RuntimeError, match="a defect"):
        list(own.speeds((2,)))


def test_waits_that_cuda_reports_are_counted_and_its_mode_is_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    modes: list[object] = []
    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: 0)
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", modes.append)
    with cuda_waits(torch.device("cuda")) as found:
        warnings.warn("called a synchronizing CUDA operation (at c10/cuda/CUDAFunctions.h)", stacklevel=1)
        warnings.warn("called a synchronizing CUDA operation (at c10/cuda/CUDAFunctions.h)", stacklevel=1)
        warnings.warn("something else", stacklevel=1)
    assert (len(found), modes) == (2, ["warn", 0])
    with cuda_waits(CPU) as found:
        pass
    assert not found


def test_launches_of_kernels_are_counted_on_cuda_and_nowhere_else(monkeypatch: pytest.MonkeyPatch) -> None:
    events = [
        SimpleNamespace(key="cudaLaunchKernel", count=81),
        SimpleNamespace(key="cudaMemcpyAsync", count=2),
        SimpleNamespace(key="aten::add", count=40),
    ]
    monkeypatch.setattr(counting, "profile", lambda **_: nullcontext(SimpleNamespace(key_averages=lambda: events)))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _: None)
    assert count_launches(lambda: None, torch.device("cuda")) == 83
    assert count_launches(lambda: None, CPU) is None
