"""Whether compiled training comes to the same verdicts as eager training, and what a change in the last digit does."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest
import torch

from capbench.engine import train
from capbench.engine.compiling import Compiling
from capbench.engine.lanes import Pair, TrialSpec, group_trials
from capbench.engine.stack import build_stack
from capbench.executors.local import LocalExecutor
from capbench.executors.workplace import ThisMachine
from capbench.measurement import Measurement
from capbench.options import RunOptions, build_request
from capbench.registry import load_registry
from capbench.results import Trial, TrialStatus
from capbench.runner import measure
from capbench.store import Store

PAIRS = (("triples", "aot", 0.01), ("bigrams", "aot", 0.03), ("sequences", "mha", 0.02), ("rgr", "mha", 0.8))
"""The standard pairs, each at one of its rates."""
TRIALS = 64
LAST_DIGIT = 1e-7
CPU = torch.device("cpu")


class Quiet:
    def plan(self, *_: object) -> None: ...
    def trained(self, *_: object) -> None: ...
    def step(self, *_: object) -> None: ...


def shaken(*args: object):
    """A stack whose initial weights differ in their last digit."""
    stack, examined = build_stack(*args)
    noise = torch.randn(stack.weights.shape, generator=torch.Generator().manual_seed(0))
    stack.weights.mul_(1 + LAST_DIGIT * noise)
    return stack, examined


def along_the_curve(pair: Pair, near: list[Trial]) -> list[TrialSpec]:
    """As many trials, evenly from an eighth of the threshold to twice it, or to all facts that there are."""
    middle = statistics.median(trial.load for trial in near)
    loads = [max(1, min(round(middle * eighths / 8), pair.task.plugin.max_load)) for eighths in range(1, 17)]
    return [
        TrialSpec(load, seed, near[0].learning_rate) for load in dict.fromkeys(loads) for seed in range(TRIALS // 16)
    ]


@pytest.mark.parametrize(("task", "architecture", "rate"), PAIRS, ids=[f"{t} x {a}" for t, a, _ in PAIRS])
def test_verdicts(
    benchmark, task: str, architecture: str, rate: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All trials of a search, near the threshold as they are, and trials of a whole curve, trained in three ways."""
    registry = load_registry()
    options = RunOptions(task, architecture, rates=(rate,), budget=TRIALS, compile_mode="off", device="cpu")
    request = build_request(options, registry)
    run = Measurement(request, request.check(), registry, Store(tmp_path), Quiet(), ThisMachine(CPU))
    benchmark.group = "verdicts"
    benchmark.pedantic(measure, (run,), rounds=1)
    pair = run.pair(1)
    asked = {
        "search": [TrialSpec(trial.load, trial.seed, trial.learning_rate) for trial in run.trials],
        "curve": along_the_curve(pair, run.trials),
    }

    def verdicts(specs: list[TrialSpec], compiling: Compiling) -> dict[str, bool]:
        ended: dict[str, Trial] = {}
        groups = group_trials((pair, spec) for spec in specs)
        LocalExecutor(CPU, compiling).run(groups, lambda trial, _: ended.update({trial.key: trial}), lambda *_: None)
        assert ended.keys() == {pair.key(spec) for spec in specs}
        assert not [trial.error for trial in ended.values() if trial.status is TrialStatus.FAILED]
        return {key: trial.status is TrialStatus.HELD for key, trial in ended.items()}

    eager, compiled = (
        {where: verdicts(specs, compiling) for where, specs in asked.items()}
        for compiling in (Compiling("off"), Compiling("on", tmp_path / "compiled"))
    )
    monkeypatch.setattr(train, "build_stack", shaken)
    again = {where: verdicts(specs, Compiling("off")) for where, specs in asked.items()}
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
