"""A session stores trials as they end, and compiles the steps of large requests."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from capbench.engine.cost import Cost
from capbench.engine.memory import MOST_LANES
from capbench.executors.backends import ThisProcess
from capbench.executors.local import failed_trial
from capbench.executors.target import CompileMode
from capbench.measure.options import RunOptions
from capbench.measure.request import build_request
from capbench.measure.session import COMPILED_LANE_STEPS, Session, wants_compiled
from capbench.registry.registry import load_registry
from capbench.store.store import Store

REGISTRY = load_registry()


class CountingListener:
    """Counts the stored trials at every step, through its own connection."""

    def __init__(self, folder: Path) -> None:
        self._store = Store(folder)
        self.stored: list[int] = []

    def compiling(self) -> None: ...
    def plan(self, *_: object) -> None: ...
    def trained(self, *_: object) -> None: ...

    def step(self, *_: object) -> None:
        self.stored.append(self._store.counts()[0])


class InstantExecutor:
    """Ends every trial at once, and fails after a number of groups."""

    workers = ()

    def __init__(self, fails_after: int) -> None:
        self._n_left = fails_after
        self.sizes: list[int] = []
        self.compiled: list[bool] = []

    def run(self, groups, on_trials, on_progress) -> Cost:
        for group in groups:
            self.sizes.append(len(group.trials))
            self.compiled.append(group.is_compiled)
            on_trials([failed_trial(group, trial, "not trained") for trial in group.trials])
            self._n_left -= 1
            if not self._n_left:
                raise RuntimeError("the executor failed")
            on_progress(1, 0)
        return Cost()


@dataclass(frozen=True)
class InstantBackend(ThisProcess):
    instant: InstantExecutor | None = None

    def executor(self, *_: object) -> InstantExecutor:
        assert self.instant is not None
        return self.instant


def session(
    folder: Path, executor: InstantExecutor, compile_mode: CompileMode = "auto"
) -> tuple[Session, CountingListener]:
    listener = CountingListener(folder)
    request = build_request(
        RunOptions(task="sequences", arch="mlp", preset="smoke", compile_mode=compile_mode), REGISTRY
    )
    backend = InstantBackend(torch.device("cpu"), instant=executor)
    return Session(request, REGISTRY, Store(folder), listener, backend), listener


def test_trials_are_stored_before_the_next_progress_event(tmp_path: Path) -> None:
    run, listener = session(tmp_path, InstantExecutor(99))
    run.measure([(load, seed) for load in (2, 4, 8) for seed in range(5)], [0.1])
    assert listener.stored == [5, 10, 15]
    assert run.n_trained == 15
    assert run.cost.phases["store"] > 0


def test_trials_are_stored_when_the_executor_fails_right_after(tmp_path: Path) -> None:
    run, listener = session(tmp_path, InstantExecutor(2))
    with pytest.raises(RuntimeError, match="executor failed"):
        run.measure([(load, seed) for load in (2, 4, 8) for seed in range(5)], [0.1])
    assert listener.stored == [5]
    assert run.store.counts()[0] == 10
    assert run.n_trained == 10


def test_a_large_plan_is_handed_out_in_groups_and_leased_as_they_are_taken(tmp_path: Path) -> None:
    executor = InstantExecutor(1)
    run, _ = session(tmp_path, executor)
    n_trials = 3 * MOST_LANES["cpu"]
    with pytest.raises(RuntimeError, match="executor failed"):
        run.measure([(3, seed) for seed in range(n_trials)], [0.1])
    assert executor.sizes == [MOST_LANES["cpu"]]
    assert run.store.counts()[0] == MOST_LANES["cpu"]


def compiled(**options: object) -> bool:
    """Whether a request is to be compiled."""
    return wants_compiled(
        build_request(RunOptions(**{"task": "rgr", "arch": "mha", "preset": "standard", **options}), REGISTRY)
    )


@pytest.mark.parametrize("preset", ["smoke", "standard"])
def test_a_request_is_compiled_always_or_never_where_the_user_says_so(preset: str) -> None:
    assert compiled(preset=preset, compile_mode="on")
    assert not compiled(preset=preset, compile_mode="off")


def test_by_default_a_request_is_compiled_where_it_is_large() -> None:
    assert compiled()  # 144 trials of 1500 steps
    assert compiled(preset="quick")  # 32 of them
    assert not compiled(preset="smoke")
    n_steps = COMPILED_LANE_STEPS // 100
    assert compiled(at=100, seeds=50, rates=(0.1, 0.2), steps=n_steps)
    assert not compiled(at=100, seeds=50, rates=(0.1, 0.2), steps=n_steps - 1)
    assert not compiled(at=100, seeds=50, rates=(0.1,), steps=n_steps)


def test_by_default_a_search_for_the_least_value_of_a_field_is_not_compiled() -> None:
    assert not compiled(at=100, minimize="n_heads", preset="paper")  # another shape for every value


def test_by_default_explicit_weights_are_not_compiled() -> None:
    assert not compiled(preset="paper", solver="construct")


def test_the_groups_of_a_session_are_compiled_as_its_request_says(tmp_path: Path) -> None:
    for mode in ("on", "off"):
        executor = InstantExecutor(99)
        run, _ = session(tmp_path / mode, executor, compile_mode=mode)
        run.measure([(3, seed) for seed in range(20)], [0.1])
        assert executor.compiled == [mode == "on"] * len(executor.sizes)
