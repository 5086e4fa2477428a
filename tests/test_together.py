"""Runs that differ in their load alone are trained in one go, and their documents say what each took."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from capbench.engine import train
from capbench.engine.lanes import LaneGroup
from capbench.errors import RunInterrupted
from capbench.executors import local
from capbench.options import RunOptions, build_request
from capbench.registry import load_registry
from capbench.runner import execute
from capbench.store import Store
from capbench.sweep import parse_grid, results_of, run_sweep
from capbench.together import bundles

OPTIONS = RunOptions("rgr", "mha", preset="smoke", seeds=3, rates=(0.4,), sets=("task.n_items=12",), compile_mode="off")


class Quiet:
    """Hears of a series and of a run, and says nothing."""

    @property
    def run(self) -> Quiet:
        return self

    def begins(self, *_: object) -> None: ...
    def ended(self, *_: object) -> None: ...
    def plan(self, *_: object) -> None: ...
    def trained(self, *_: object) -> None: ...
    def step(self, *_: object) -> None: ...


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch) -> list[LaneGroup]:
    """The groups that are trained."""
    seen: list[LaneGroup] = []

    def spy(group: LaneGroup, *rest: object):
        seen.append(group)
        return train.train_group(group, *rest)

    monkeypatch.setattr(local, "train_group", spy)
    return seen


def test_loads_share_a_stack_and_give_the_same_trials_as_alone(tmp_path: Path, groups: list[LaneGroup]) -> None:
    registry = load_registry()
    store, alone = Store(tmp_path / "together"), Store(tmp_path / "alone")
    grid = parse_grid(["at=4,9,20", "arch.n_heads=1,2"])
    results = results_of(run_sweep(OPTIONS, grid, registry, store, Quiet()))
    assert sorted(len(group.trials) for group in groups) == [9, 9], "one group a head count, all loads in it"
    for result in results:
        words = RunOptions(**{**vars(OPTIONS), "at": result.protocol.at})
        sets = (*words.sets, f"arch.n_heads={result.architecture.params['n_heads']}")
        own = execute(build_request(RunOptions(**{**vars(words), "sets": sets}), registry), registry, alone, Quiet())
        assert own.trials == result.trials
        assert result.timing.trials_trained == 3
        assert result.timing.trials_reused == 0
        assert result.timing.lane_steps == pytest.approx(own.timing.lane_steps, abs=1)
        assert 0 < result.timing.train_seconds <= result.timing.wall_seconds
    again = results_of(run_sweep(OPTIONS, grid, registry, store, Quiet()))
    assert [(r.timing.trials_trained, r.timing.trials_reused) for r in again] == [(0, 3)] * 6
    assert [r.trials for r in again] == [r.trials for r in results]


def test_only_runs_that_differ_in_nothing_else_are_bundled() -> None:
    registry = load_registry()

    def request(at: int | None, **words):
        return build_request(RunOptions(**{**vars(OPTIONS), "at": at, **words}), registry)

    requests = [
        request(4), request(9, steps=7), request(9), request(None), request(4, seeds=2), request(20),
        request(9, rates=(0.1,)), request(12, sets=("task.n_items=13",)),
    ]  # fmt: skip
    assert bundles(requests) == [[0, 2, 5]]


def test_trials_that_fail_together_are_told_and_not_tried_twice(capbench, tmp_path: Path) -> None:
    plugin, calls = tmp_path / "broken.py", tmp_path / "calls"
    plugin.write_text(f"""
import capbench
from capbench_tasks.rgr import Rgr

class Broken(Rgr):
    name = "broken"

    def problem(self, load, slots, generator):
        if load == 9:
            with open({str(calls)!r}, "a") as file:
                file.write("called\\n")
            raise ValueError("nine")
        return super().problem(load, slots, generator)

@capbench.hookimpl
def capbench_tasks():
    return [Broken]
""")
    words = ("--task", "broken", "--arch", "mha", "--preset", "smoke", "--seeds", "1", "--set", "task.n_items=12")
    done = capbench("--plugin", str(plugin), "sweep", *words, "--lr", "0.4", "--grid", "at=4,9", "--json")
    assert done.code == 1
    assert [result["protocol"]["at"] for result in json.loads(done.out)] == [4]
    assert "at=9: failed: all 1 trials failed; the first: ValueError: nine" in done.err
    assert calls.read_text().count("called") == 2, "in the group, and alone"


def test_an_interrupt_ends_the_series_and_keeps_what_has_ended(tmp_path: Path) -> None:
    class Impatient(Quiet):
        def trained(self, *_: object) -> None:
            raise KeyboardInterrupt

    store = Store(tmp_path)
    with pytest.raises(RunInterrupted, match="0 of 2 runs done; all finished trials are stored"):
        run_sweep(OPTIONS, parse_grid(["at=4,9"]), load_registry(), store, Impatient())
    assert store.counts()[0] > 0
