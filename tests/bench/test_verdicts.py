"""Whether compiled training comes to the same verdicts as eager training, and what a change in the last digit does."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from capbench.documents.result import Trial, TrialStatus
from capbench.engine import train
from capbench.engine.stack import build_stack
from capbench.engine.trials import Setup, TrialSpec, group_trials
from capbench.executors.backends import ThisProcess
from capbench.executors.local import LocalExecutor
from capbench.measure.options import RunOptions
from capbench.measure.request import build_request
from capbench.measure.run import execute
from capbench.measure.session import setup_of
from capbench.registry.registry import load_registry
from capbench.store.store import Store

PAIRS = (("triples", "aot", 0.01), ("bigrams", "aot", 0.03), ("sequences", "mha", 0.02), ("rgr", "mha", 0.8))
"""The standard pairs, each at one of its rates."""
TRIALS = 64
LAST_DIGIT = 1e-7
CPU = torch.device("cpu")


class Quiet:
    def compiling(self) -> None: ...
    def plan(self, *_: object) -> None: ...
    def trained(self, *_: object) -> None: ...
    def step(self, *_: object) -> None: ...


def shaken(*args: object):
    """A stack whose initial weights differ in their last digit."""
    stack, examined = build_stack(*args)
    noise = torch.randn(stack.weights.shape, generator=torch.Generator().manual_seed(0))
    stack.weights.mul_(1 + LAST_DIGIT * noise)
    return stack, examined


def along_the_curve(setup: Setup, near: Sequence[Trial]) -> list[TrialSpec]:
    """As many trials, evenly from an eighth of the threshold to twice it, or to all facts that there are."""
    middle = statistics.median(trial.load for trial in near)
    loads = [max(1, min(round(middle * eighths / 8), setup.task.plugin.max_load)) for eighths in range(1, 17)]
    return [
        TrialSpec(load, seed, near[0].learning_rate) for load in dict.fromkeys(loads) for seed in range(TRIALS // 16)
    ]


@pytest.mark.parametrize(("task", "architecture", "rate"), PAIRS, ids=[f"{t} x {a}" for t, a, _ in PAIRS])
def test_verdicts(
    benchmark, task: str, architecture: str, rate: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All trials of a search, near the threshold as they are, and trials of a whole curve, trained in three ways."""
    registry = load_registry()
    options = RunOptions(task=task, arch=architecture, rates=(rate,), budget=TRIALS, compile_mode="off", device="cpu")
    request = build_request(options, registry)
    store = Store(tmp_path)
    benchmark.group = "verdicts"
    trials = benchmark.pedantic(execute, (request, registry, store, Quiet(), ThisProcess(CPU)), rounds=1).trials
    store.close()
    setup = setup_of(request, 1)
    asked = {
        "search": [TrialSpec(trial.load, trial.seed, trial.learning_rate) for trial in trials],
        "curve": along_the_curve(setup, trials),
    }

    def verdicts(specs: list[TrialSpec], is_compiled: bool) -> dict[str, bool]:
        ended: dict[str, Trial] = {}
        groups = [replace(group, is_compiled=is_compiled) for group in group_trials((setup, spec) for spec in specs)]

        def keep(trials: Sequence[Trial]) -> None:
            ended.update({trial.key: trial for trial in trials})

        LocalExecutor(CPU).run(groups, keep, lambda *_: None)
        assert ended.keys() == {setup.key(spec) for spec in specs}
        assert not [trial.error for trial in ended.values() if trial.status is TrialStatus.FAILED]
        return {key: trial.status is TrialStatus.HELD for key, trial in ended.items()}

    eager, compiled = (
        {where: verdicts(specs, is_compiled) for where, specs in asked.items()} for is_compiled in (False, True)
    )
    monkeypatch.setattr(train, "build_stack", shaken)
    again = {where: verdicts(specs, is_compiled=False) for where, specs in asked.items()}
    benchmark.extra_info.update(
        pair=f"{task} × {architecture}",
        asked={
            where: {
                "trials": len(held), "held": sum(held.values()),
                "compiled": agreeing(held, compiled[where]), "shaken": agreeing(held, again[where]),
            }
            for where, held in eager.items()
        },
    )  # fmt: skip


def agreeing(some: dict[str, bool], others: dict[str, bool]) -> int:
    return sum(others[key] == is_held for key, is_held in some.items())
