"""A measurement stores what has ended before it says that it goes on, and whatever ends it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from capbench.engine.cost import Cost
from capbench.engine.memory import MOST_LANES
from capbench.executors.local import failed_trial
from capbench.executors.workplace import ThisMachine
from capbench.measurement import Measurement
from capbench.options import RunOptions, build_request
from capbench.registry import load_registry
from capbench.store import Store


class Listener:
    """Looks into the store, as another process would, whenever it is told of a step."""

    def __init__(self, folder: Path) -> None:
        self._store = Store(folder)
        self.stored: list[int] = []

    def plan(self, *_: object) -> None: ...
    def trained(self, *_: object) -> None: ...

    def step(self, *_: object) -> None:
        self.stored.append(self._store.counts()[0])


class Ending:
    """An executor that ends every trial at once and breaks down after so many groups."""

    workers = ()

    def __init__(self, breaks_after: int) -> None:
        self._left = breaks_after
        self.sizes: list[int] = []

    def run(self, groups, on_trial, on_progress) -> Cost:
        for group in groups:
            self.sizes.append(len(group.trials))
            for trial in group.trials:
                on_trial(failed_trial(group, trial, "not really"), {})
            self._left -= 1
            if not self._left:
                raise RuntimeError("the executor broke down")
            on_progress(1, 0)
        return Cost()


@dataclass(frozen=True)
class Place(ThisMachine):
    ending: Ending | None = None

    def executor(self, *_: object) -> Ending:
        assert self.ending is not None
        return self.ending


def measurement(folder: Path, ending: Ending) -> tuple[Measurement, Listener]:
    registry, heard = load_registry(), Listener(folder)
    request = build_request(RunOptions("sequences", "mlp", preset="smoke"), registry)
    place = Place(torch.device("cpu"), ending=ending)
    return Measurement(request, request.check(), registry, Store(folder), heard, place), heard


def test_trials_that_ended_are_stored_before_the_next_sign_of_progress(tmp_path: Path) -> None:
    run, heard = measurement(tmp_path, Ending(99))
    run.measure([(load, seed) for load in (2, 4, 8) for seed in range(5)], [0.1])
    assert heard.stored == [5, 10, 15]
    assert run.n_trained == 15
    assert run.cost.phases["store"] > 0


def test_trials_that_ended_are_stored_when_the_executor_breaks_down_right_after(tmp_path: Path) -> None:
    run, heard = measurement(tmp_path, Ending(2))
    with pytest.raises(RuntimeError, match="broke down"):
        run.measure([(load, seed) for load in (2, 4, 8) for seed in range(5)], [0.1])
    assert heard.stored == [5]
    assert run.store.counts()[0] == 10
    assert run.n_trained == 10


def test_a_large_plan_is_handed_out_in_groups_and_claimed_as_they_are_taken(tmp_path: Path) -> None:
    ending = Ending(1)
    run, _ = measurement(tmp_path, ending)
    n_trials = 3 * MOST_LANES["cpu"]
    with pytest.raises(RuntimeError, match="broke down"):
        run.measure([(3, seed) for seed in range(n_trials)], [0.1])
    assert ending.sizes == [MOST_LANES["cpu"]]
    assert run.store.counts()[0] == MOST_LANES["cpu"]
