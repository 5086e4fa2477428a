"""Runs with broken plugins, broken bounds, or a store of a later version."""

from __future__ import annotations

import json
import os
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import pytest
import torch

from capbench.errors import StoreUnavailable
from capbench.executors.backends import ThisProcess
from capbench.executors.worker_pool import WorkerPool
from capbench.measure.options import RunOptions
from capbench.measure.request import build_request
from capbench.measure.run import execute
from capbench.measure.session import NullListener
from capbench.registry.registry import load_registry
from capbench.store.store import Store

FLAKY = '''
import torch
from typing import ClassVar
from capbench import Architecture, hookimpl

class Flaky(Architecture):
    """Fails to build every third model."""
    name: ClassVar[str] = "flaky"

    def build(self, signature):
        print("building")
        if torch.rand(()) < {share}:
            raise RuntimeError("out of luck")
        return Scores(signature.d_item)

class Scores(torch.nn.Module):
    def __init__(self, d):
        super().__init__()
        self.W = torch.nn.Parameter(torch.randn(d, d))

    def forward(self, items):
        return items @ self.W @ items.T - 0.5

@hookimpl
def capbench_architectures():
    return [Flaky]
'''
RUN = ("run", "--task", "rgr", "--arch", "flaky", "--preset", "smoke", "--set", "task.d_item=16")


def test_a_trial_that_raises_costs_that_trial_and_is_shown(distribution, capbench, monkeypatch) -> None:
    distribution("flaky", FLAKY.format(share=0.4))
    monkeypatch.setattr("capbench.measure.request.build_module", lambda task, architecture: torch.nn.Linear(16, 16))
    done = capbench(*RUN, "--json")
    assert done.code == 0, done.err
    document = json.loads(done.out)
    failed = [trial for trial in document["trials"] if trial["status"] == "failed"]
    assert 0 < len(failed) < len(document["trials"])
    assert all("RuntimeError: out of luck" in trial["error"] for trial in failed)
    text = capbench(*RUN)
    assert "trials failed to run and are left out" in text.out
    assert "out of luck" in text.out


def test_a_run_in_which_everything_fails_says_why_and_exits_1(distribution, capbench, monkeypatch) -> None:
    distribution("flaky", FLAKY.format(share=2))
    monkeypatch.setattr("capbench.measure.request.build_module", lambda task, architecture: torch.nn.Linear(16, 16))
    done = capbench(*RUN)
    assert (done.code, done.out) == (1, "")
    assert "trials failed; the first: RuntimeError: out of luck" in done.err


def test_what_a_plugin_prints_stays_out_of_the_document(distribution, capbench) -> None:
    distribution("flaky", "print('loud on import')\n" + FLAKY.format(share=-1))
    done = capbench(*RUN, "--json")
    json.loads(done.out)
    assert "loud on import" in done.err


def test_a_store_of_a_later_version_is_refused_politely(tmp_path: Path) -> None:
    Store(tmp_path).close()
    with sqlite3.connect(tmp_path / "capbench.sqlite") as db:
        db.execute("PRAGMA user_version=99")
        db.execute("CREATE TABLE later (key TEXT)")
    with pytest.raises(StoreUnavailable, match=r"has version 99.*upgrade capbench"):
        Store(tmp_path)


def test_a_file_that_is_no_store_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "capbench.sqlite").write_bytes(b"x" * 4096)
    with pytest.raises(StoreUnavailable, match="cannot be used"):
        Store(tmp_path)


@pytest.mark.skipif(sys.platform != "linux", reason="workers are forked on Linux only")
def test_a_single_run_shares_its_trials_among_one_thread_workers(tmp_path: Path, monkeypatch) -> None:
    registry = load_registry()
    options = RunOptions(task="rgr", arch="mha", preset="smoke", at=12, seeds=20, rates=(0.4,), steps=50)
    request = build_request(options, registry)
    with closing(Store(tmp_path / "alone")) as store:
        alone = execute(request, registry, store, NullListener(), ThisProcess(torch.device("cpu")))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    sizes: list[int] = []
    submit = WorkerPool.submit
    monkeypatch.setattr(WorkerPool, "submit", lambda *args: (sizes.append(len(args[1].trials)), submit(*args))[1])
    with closing(Store(tmp_path / "pool")) as store:
        pooled = execute(request, registry, store, NullListener())
        assert store.counts() == (20, 1)
    assert sizes == [10, 10]
    assert pooled.environment.threads == 1
    assert pooled.trials == alone.trials


@pytest.mark.parametrize("mode", ["auto", "on"])
def test_constructed_weights_need_no_compiled_step(mode: str, capbench, monkeypatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    words = ("--task", "rgr", "--arch", "mha", "--solver", "construct", "--preset", "smoke", "--compile", mode)
    done = capbench("run", *words, "--json")
    assert done.code == 0, done.err
    assert not any(trial["compiled"] for trial in json.loads(done.out)["trials"])
