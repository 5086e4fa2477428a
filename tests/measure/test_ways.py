"""Compiled trials are equal to the last bit, whichever way they are run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from capbench.documents.result import Result
from capbench.executors import worker_pool
from capbench.measure.options import RunOptions
from capbench.measure.request import build_request
from capbench.measure.run import execute
from capbench.measure.session import NullListener
from capbench.registry.registry import load_registry
from capbench.store.store import Store

REGISTRY = load_registry()


def run(folder: Path, seeds: int = 6) -> Result:
    options = RunOptions(
        task="rgr", arch="mha", preset="smoke", at=20, seeds=seeds, rates=(0.4,), steps=50, compile_mode="on"
    )
    store = Store(folder)
    try:
        return execute(build_request(options, REGISTRY), REGISTRY, store, NullListener())
    finally:
        store.close()


@pytest.mark.slow
def test_one_process_a_pool_and_a_resumed_run_give_compiled_trials_that_are_equal_to_the_last_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    alone = run(tmp_path / "alone")
    run(tmp_path / "resumed", seeds=2)
    resumed = run(tmp_path / "resumed")
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(worker_pool, "QUOTA", Path("/there/is/none"))
    pool = run(tmp_path / "pool")
    assert (resumed.timing.trials_reused, resumed.timing.trials_trained) == (2, 4)
    assert all(trial.compiled for trial in alone.trials)
    assert alone.trials == resumed.trials == pool.trials
