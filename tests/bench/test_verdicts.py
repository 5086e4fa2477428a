"""Whether compiled training comes to the same verdicts as eager training, and what a change in the last digit does."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from capbench.engine import train
from capbench.engine.compiling import Compiling
from capbench.engine.lanes import TrialSpec, group_trials
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


@pytest.mark.parametrize(("task", "architecture", "rate"), PAIRS, ids=[f"{t} x {a}" for t, a, _ in PAIRS])
def test_verdicts(
    benchmark, task: str, architecture: str, rate: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All trials of a search, near the threshold as they are, trained in three ways."""
    registry = load_registry()
    options = RunOptions(task, architecture, rates=(rate,), budget=TRIALS, compile_mode="off", device="cpu")
    request = build_request(options, registry)
    run = Measurement(request, request.check(), registry, Store(tmp_path), Quiet(), ThisMachine(CPU))
    benchmark.group = "verdicts"
    benchmark.pedantic(measure, (run,), rounds=1)
    held = {trial.key: trial.status is TrialStatus.HELD for trial in run.trials}
    pair = run.pair(1)
    specs = [(pair, TrialSpec(trial.load, trial.seed, trial.learning_rate)) for trial in run.trials]

    def agreeing(compiling: Compiling) -> int:
        again: dict[str, Trial] = {}
        executor = LocalExecutor(CPU, compiling)
        executor.run(group_trials(specs), lambda trial, _: again.update({trial.key: trial}), lambda *_: None)
        assert again.keys() == held.keys()
        assert not [trial.error for trial in again.values() if trial.status is TrialStatus.FAILED]
        return sum((again[key].status is TrialStatus.HELD) == held[key] for key in held)

    compiled = agreeing(Compiling("on", tmp_path / "compiled"))
    monkeypatch.setattr(train, "build_stack", shaken)
    benchmark.extra_info.update(
        pair=f"{task} × {architecture}", trials=len(held), held=sum(held.values()), compiled=compiled,
        shaken=agreeing(Compiling("off")),
    )  # fmt: skip
