"""One training step of many models against the loop that a careful researcher writes for one."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from cases import CASES, Case, engine_step, loop_step

from capbench.engine.devices import keep_memory


def measure(benchmark, case: Case, variant: str, step: Callable[[], None], models: int, **extra: float) -> None:
    benchmark.group = f"steps: {case.name}"
    benchmark.extra_info.update(case=case.name, variant=variant, models=models, **extra)
    benchmark.pedantic(step, rounds=40, warmup_rounds=5)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_loop(benchmark, case: Case) -> None:
    """First of all, while the C library still treats memory as it does in a researcher's script."""
    measure(benchmark, case, "loop", loop_step(case), models=1)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_eager(benchmark, case: Case) -> None:
    keep_memory()
    measure(benchmark, case, "eager", engine_step(case, is_compiled=False), case.n_models)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_compiled(benchmark, case: Case) -> None:
    keep_memory()
    started = time.perf_counter()
    step = engine_step(case, is_compiled=True)
    step()
    measure(benchmark, case, "compiled", step, case.n_models, compile_seconds=time.perf_counter() - started)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_loop_again(benchmark, case: Case) -> None:
    """Last of all too: the machine may have become slower or faster meanwhile."""
    measure(benchmark, case, "loop, after", loop_step(case), models=1)
