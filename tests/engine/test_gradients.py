"""Compiled gradients: the same numbers, or a warning and the eager ones."""

from __future__ import annotations

import shutil

import pytest
import torch

from capbench.engine.gradients import CompileFailed
from capbench.engine.lanes import LaneGroup, Pair, Training, TrialSpec
from capbench.engine.train import train_group
from capbench.provenance import Provenance
from capbench.settings import Configured
from capbench_plugins.adam import Adam
from capbench_plugins.aot import Aot
from capbench_tasks.triples import Triples


def make_pair(steps: int) -> Pair:
    task = Triples(n_keys=8, n_queries=8, n_values=8)
    plugins = (Configured(p, Provenance("t", "t", "0", "t"), "-") for p in (task, Aot(), Adam()))
    return Pair(*plugins, Training(task.criterion, steps, stops_early=False))


def train(mode: str, steps: int = 50):
    weights, trials = {}, tuple(TrialSpec(40, seed, 0.01) for seed in range(4))
    cost = train_group(
        LaneGroup(make_pair(steps), 64, trials),
        torch.device("cpu"),
        lambda t, w: weights.setdefault(t.seed, w),
        lambda *_: None,
        mode,
    )
    return weights, cost


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
def test_a_compiled_step_agrees_with_the_eager_one_after_50_steps() -> None:
    if shutil.which("g++") is None and shutil.which("clang++") is None:
        pytest.skip("no C++ compiler for torch.compile here")
    eager, cost = train("off")
    compiled, compiled_cost = train("on")
    assert cost.compile_seconds == 0 < compiled_cost.compile_seconds
    for seed, weights in eager.items():
        for name, tensor in weights.items():
            assert torch.allclose(tensor, compiled[seed][name], atol=1e-5)


def test_where_compiling_fails_training_goes_on_without(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> torch.Tensor:
        raise RuntimeError("no compiler on this machine")

    monkeypatch.setattr(torch, "compile", lambda function, dynamic: refuse)
    with pytest.warns(CompileFailed, match="no compiler on this machine"):
        weights, _ = train("on", steps=30)
    eager, _ = train("off", steps=30)
    assert all(torch.equal(w, weights[seed][name]) for seed, named in eager.items() for name, w in named.items())


def test_a_short_run_is_not_worth_compiling() -> None:
    _, cost = train("auto", steps=30)
    assert cost.compile_seconds == 0
