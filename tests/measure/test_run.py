"""Runs with broken plugins, broken bounds, or a store of a later version."""

from __future__ import annotations

import json
import os
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from typing import ClassVar

import pytest
import torch

from capbench import FACTS, Bound, BoundValue, Kind, NotApplicable, Pedigree
from capbench.errors import BoundBroken, StoreUnavailable
from capbench.executors.backends import ThisProcess
from capbench.executors.worker_pool import WorkerPool
from capbench.measure.options import RunOptions
from capbench.measure.request import build_request
from capbench.measure.run import execute
from capbench.measure.session import NullListener
from capbench.measure.theory import LARGEST_HELD, bracket, compare, refuse_broken
from capbench.registry.registry import load_registry
from capbench.store.store import Store
from capbench_plugins.mha import Mha
from capbench_tasks.rgr import Rgr

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


class Ceiling(Bound):
    """No more than forty-eight facts."""

    name: ClassVar[str] = "test.ceiling"
    kind: ClassVar[Kind] = Kind.UPPER
    statement: ClassVar[str] = "forty-eight and no more"
    formula: ClassVar[str] = "48"
    citation: ClassVar[str] = "this test"
    pedigree: ClassVar[Pedigree] = Pedigree.DERIVED

    def evaluate(self, task, architecture, load) -> BoundValue:
        return BoundValue(48, FACTS)


class Guarantee(Ceiling):
    """At least forty-eight facts."""

    name: ClassVar[str] = "test.guarantee"
    kind: ClassVar[Kind] = Kind.LOWER


class Silent(Ceiling):
    """Never applies."""

    name: ClassVar[str] = "test.silent"

    def evaluate(self, task, architecture, load) -> BoundValue:
        raise NotApplicable("it never does")


def compared(bound: type[Bound], estimate: float, largest_held: float):
    (record,) = compare([bound], Rgr(), Mha(), 10, {FACTS: estimate, LARGEST_HELD: largest_held})
    return record


def test_a_measurement_above_an_upper_bound_raises_with_both_numbers() -> None:
    broken = compared(Ceiling, 49.5, 50)
    assert broken.holds is False
    with pytest.raises(BoundBroken, match=r"measured facts 49\.5 is above the bound 48 of test\.ceiling \[derived\]"):
        refuse_broken([broken])


def test_an_upper_bound_is_judged_by_what_was_held_not_by_an_estimate_between_two_loads() -> None:
    fine = compared(Ceiling, 48.4, 48)
    assert fine.holds is True
    refuse_broken([fine])


def test_a_model_below_a_guarantee_shows_a_gap_and_no_error() -> None:
    gap = compared(Guarantee, 24, 24)
    assert (gap.holds, gap.ratio) == (False, 0.5)
    refuse_broken([gap])


def test_a_bound_that_does_not_apply_says_why_and_gives_no_number() -> None:
    silent = compared(Silent, 1, 1)
    assert (silent.value, silent.ratio, silent.reason) == (None, None, "it never does")


def test_the_search_starts_where_theory_points() -> None:
    low, high = bracket([Guarantee], Rgr(), Mha())
    assert low <= 48 <= high
    assert bracket([Guarantee, Ceiling], Rgr(), Mha())[1] == 48
    assert bracket([Silent], Rgr(), Mha()) == (1.0, float(Rgr().max_load))


def test_a_store_of_a_later_version_is_refused_politely(tmp_path: Path) -> None:
    Store(tmp_path).close()
    with sqlite3.connect(tmp_path / "capbench.sqlite") as db:
        db.execute("PRAGMA user_version=99")
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


class LatencyFloor(Bound):
    """A third party's bound on a quantity that the core has never heard of."""

    name: ClassVar[str] = "elsewhere.latency"
    kind: ClassVar[Kind] = Kind.UPPER
    statement: ClassVar[str] = "No model answers in less than 10."
    formula: ClassVar[str] = "10"
    citation: ClassVar[str] = "test"
    pedigree: ClassVar[Pedigree] = Pedigree.DERIVED

    def evaluate(self, task, architecture, load) -> BoundValue:
        return BoundValue(10.0, "latency")


class StatedLatencyFloor(LatencyFloor):
    lower_is_better: ClassVar[bool | None] = True


@pytest.mark.parametrize(
    ("bound", "measured", "holds"),
    [
        (StatedLatencyFloor, 12.0, True),
        (StatedLatencyFloor, 8.0, False),
        (LatencyFloor, 12.0, False),
        (LatencyFloor, 8.0, True),
    ],
)
def test_a_bound_states_itself_whether_lower_is_better(bound: type[Bound], measured: float, holds: bool) -> None:
    (record,) = compare([bound], Rgr(), Mha(), 10, {"latency": measured})
    assert record.holds is holds
    assert record.lower_is_better is bool(bound.lower_is_better)
    if holds:
        refuse_broken([record])
    else:
        side = "below the floor" if bound.lower_is_better else "above the bound"
        with pytest.raises(BoundBroken, match=side):
            refuse_broken([record])
