"""What CUDA and Apple's GPUs need, shown without one: calls are recorded by fakes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from capbench.documents.result import TrialStatus
from capbench.engine import evaluation, memory, train
from capbench.engine.batches import Batches
from capbench.engine.checks import is_out_of_memory
from capbench.engine.devices import check_precision
from capbench.engine.evaluation import Lane, PendingEvaluations
from capbench.engine.memory import free_memory
from capbench.engine.stack import build_stack
from capbench.engine.trials import Setup, TrialGroup, TrialSpec
from capbench.errors import DeviceFailed, DeviceUnavailable
from capbench.executors import local
from capbench.executors.local import LocalExecutor
from capbench.registry.registry import load_registry
from capbench.registry.settings import configure
from tests.engine.test_every_pair import make_pair

CUDA_1 = torch.device("cuda:1")
TRIALS = tuple(TrialSpec(10, seed, 0.1) for seed in range(4))


@pytest.fixture
def group() -> TrialGroup:
    setup = make_pair("rgr", "mha")
    return TrialGroup(setup, setup.slots(TRIALS[0]), TRIALS)


def test_a_group_trains_with_its_device_as_the_current_one(group: TrialGroup, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[object] = []

    @contextmanager
    def current(device: torch.device) -> Iterator[None]:
        seen.append(device)
        yield
        seen.append("left")

    monkeypatch.setattr(torch.cuda, "device", current)
    monkeypatch.setattr(train, "matmul_precision", lambda *_: nullcontext())
    monkeypatch.setattr(train, "_train_stack", lambda *_: seen.append("trained"))
    train.train_group(group, CUDA_1, lambda _: None, lambda *_: None)
    assert seen == [CUDA_1, "trained", "left"]


def test_numbers_are_waited_for_on_the_device_that_copies_them(monkeypatch: pytest.MonkeyPatch) -> None:
    streams: list[object] = []
    event = SimpleNamespace(record=streams.append, synchronize=lambda: None)
    cuda = SimpleNamespace(Event=lambda: event, current_stream=lambda device: f"stream of {device}")
    host = SimpleNamespace(copy_=lambda *_, **__: None)
    monkeypatch.setattr(evaluation, "torch", SimpleNamespace(empty=lambda *_, **__: host, cuda=cuda))
    read = evaluation._start_copy(SimpleNamespace(device=CUDA_1, shape=(2,), dtype=torch.float64))  # type: ignore[arg-type]
    assert read() is host
    assert streams == ["stream of cuda:1"]


@pytest.mark.parametrize("keeps", [True, False])
def test_late_evaluations_copy_weights_only_where_they_are_read(group: TrialGroup, keeps: bool) -> None:
    stack, _ = build_stack(group, torch.device("cpu"))
    lanes = [Lane(trial, {}) for trial in TRIALS]
    taken = PendingEvaluations(True, keeps).take(25, lanes, stack, {"bits": stack.weights[:, 0]})
    assert (taken.stack.weights is stack.weights) == (not keeps)


@pytest.mark.parametrize(
    "text",
    [
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
        "CUDA error: out of memory",
        "MPS backend out of memory",
    ],
)
def test_cuda_libraries_without_memory_are_out_of_memory(text: str) -> None:
    assert is_out_of_memory(RuntimeError(text))
    assert not is_out_of_memory(RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED"))


def fail_from(n_lanes: int, text: str, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Groups of so many lanes or more fail with this text; returns the list of sizes that were tried."""
    tried: list[int] = []

    def failing(group: TrialGroup, *_: object) -> object:
        tried.append(len(group.trials))
        if len(group.trials) >= n_lanes:
            raise RuntimeError(text)
        return train.Cost()

    monkeypatch.setattr(local, "train_group", failing)
    monkeypatch.setattr(local, "lanes_that_fit", lambda *_: 4)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    return tried


def answer_with(text: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The device computes, or fails with this text."""

    def ones(*_: object, **__: object) -> Tensor:
        if text is not None:
            raise RuntimeError(text)
        return torch.zeros(1)

    monkeypatch.setattr(torch, "ones", ones)


def test_after_an_error_that_stays_no_other_trial_is_blamed(group: TrialGroup, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "CUDA error: device-side assert triggered\nCUDA kernel errors might be reported late"
    tried, ended = fail_from(1, text, monkeypatch), []
    answer_with(text, monkeypatch)
    with pytest.raises(DeviceFailed, match=r"^cuda:1 no longer works in this process: CUDA error: device-side assert"):
        LocalExecutor(CUDA_1).run([group], ended.extend, lambda *_: None)
    assert (tried, ended) == ([4], [])


@pytest.mark.parametrize("answer", [None, "CUDA error: out of memory"])
def test_where_the_device_still_works_a_group_that_failed_is_halved(
    group: TrialGroup, answer: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried, ended = fail_from(1, "CUDA error: invalid configuration argument", monkeypatch), []
    answer_with(answer, monkeypatch)
    LocalExecutor(CUDA_1).run([group], ended.extend, lambda *_: None)
    assert tried == [4, 2, 1, 1, 2, 1, 1]
    assert [trial.status for trial in ended] == [TrialStatus.FAILED] * 4


@pytest.mark.parametrize(
    ("free", "reserved", "used", "share", "expected"),
    [
        (10, 0, 0, 1.0, 10),
        (10, 6, 2, 1.0, 14),  # torch holds 4 that it does not use
        (70, 10, 5, 0.25, 20),  # of a quarter of 100, 5 are used
    ],
)
def test_free_memory_counts_what_torch_holds_and_the_share_of_the_process(
    free: int, reserved: int, used: int, share: float, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (free, 100))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: reserved)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _: used)
    monkeypatch.setattr(memory, "_device_share", share)
    assert free_memory(CUDA_1) == expected


def test_double_precision_is_refused_on_apples_gpus() -> None:
    with pytest.raises(DeviceUnavailable, match="no double precision, got float64 on mps; add --device cpu"):
        check_precision("float64", torch.device("mps"))
    check_precision("float32", torch.device("mps"))
    check_precision("float64", torch.device("cuda"))


def test_explicit_weights_are_scored_on_the_cpu_beside_a_run_on_an_apple_gpu() -> None:
    registry, trained = load_registry(), make_pair("rgr", "mha")
    solver = configure(registry.solver("construct"), "smoke", {})
    setup = Setup(trained.task, trained.architecture, solver, replace(trained.training, dtype="float64"))
    found: dict[str, list[object]] = {"cpu": [], "mps": []}
    for name, ended in found.items():
        spec = TrialSpec(2, 0, None)
        group = TrialGroup(setup, setup.slots(spec), (spec,))
        LocalExecutor(torch.device(name)).run([group], ended.extend, lambda *_: None)
    assert found["mps"] == found["cpu"]
    assert [trial.status for trial in found["mps"]] == [TrialStatus.HELD]  # type: ignore[attr-defined]


def test_batches_reach_cuda_from_pinned_memory_and_are_not_waited_for() -> None:
    batches, asked = object.__new__(Batches), []
    batches._device = CUDA_1
    pinned = SimpleNamespace(to=lambda device, **options: asked.append((device, options)))
    batches._moved(SimpleNamespace(pin_memory=lambda: pinned))  # type: ignore[arg-type]
    assert asked == [(CUDA_1, {"non_blocking": True})]
