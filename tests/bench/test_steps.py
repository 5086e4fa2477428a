"""One training step of many models against the loop that a careful researcher writes for one."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from cases import CASES, LANES, Case, case_work, compiled_step, eager_step, loop_step
from machine import peaks

from capbench.engine.devices import keep_memory


def measure(benchmark, case: Case, variant: str, step: Callable[[], None], models: int, **extra: float) -> None:
    benchmark.group = f"steps: {case.name}"
    benchmark.extra_info.update(case=case.name, variant=variant, models=models, **extra)
    benchmark.pedantic(step, rounds=40, warmup_rounds=5)


@pytest.fixture
def one_thread() -> Iterator[None]:
    """As in a run's plain loop: models this small gain nothing from a second thread."""
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(n_threads)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_loop(benchmark, case: Case) -> None:
    """First of all, while the C library still treats memory as it does in a researcher's script."""
    measure(benchmark, case, "loop", loop_step(case), models=1)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_eager(benchmark, case: Case) -> None:
    keep_memory()
    measure(benchmark, case, "eager", eager_step(case), case.n_models)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_compiled(benchmark, case: Case) -> None:
    keep_memory()
    started = time.perf_counter()
    step = compiled_step(case)
    step()
    seconds, work = time.perf_counter() - started, case_work(case)
    measure(
        benchmark, case, "compiled", step, LANES, compile_seconds=seconds, flops=work.flops, n_bytes=work.n_bytes,
        peak_flops=peaks().flops_per_second, peak_bytes=peaks().bytes_per_second,
    )  # fmt: skip


STEPS_TOGETHER = 10
"""Steps per call when all cores compute, so that starting the threads does not count."""


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_compiled_on_all_cores(benchmark, case: Case) -> None:
    """One thread per core, each with lanes of its own, as the workers of a run; compiled steps hold no lock."""
    keep_memory()
    n_cores = os.cpu_count() or 1
    steps = [compiled_step(case, STEPS_TOGETHER) for _ in range(n_cores)]
    with ThreadPoolExecutor(n_cores) as threads:
        measure(
            benchmark, case, "all cores", lambda: list(threads.map(lambda step: step(), steps)),
            LANES * n_cores * STEPS_TOGETHER,
        )  # fmt: skip


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_loop_again(benchmark, case: Case) -> None:
    """Last of all too: the machine may have become slower or faster meanwhile."""
    measure(benchmark, case, "loop, after", loop_step(case), models=1)
