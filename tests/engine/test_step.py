"""The training step: compiled it gives the same numbers, or a warning and the eager ones."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from capbench.engine.compiling import (
    EAGER_SPEED,
    FIRST_SECONDS,
    LANES_A_BLOCK,
    SHARE_SAVED,
    Compiling,
)
from capbench.engine.lanes import LaneGroup, Pair, Training, TrialSpec
from capbench.engine.step import TRACED_AFTER, CompileFailed, compiler_options
from capbench.engine.traced import traced
from capbench.engine.train import train_group
from capbench.protocols import Sampling
from capbench.provenance import Provenance
from capbench.results import TrialStatus
from capbench.settings import Configured
from capbench_plugins.adam import Adam
from capbench_plugins.aot import Aot
from capbench_plugins.mha import Mha
from capbench_tasks.rgr import Rgr
from capbench_tasks.triples import Triples
from tests.engine.test_every_pair import steps_replayed


def make_pair(steps: int, dtype: str = "float32") -> Pair:
    task = Triples(n_keys=8, n_queries=8, n_values=8)
    plugins = (Configured(p, Provenance("t", "t", "0", "t"), "-") for p in (task, Aot(), Adam()))
    return Pair(*plugins, Training(task.criterion, steps, dtype, stops_early=False))


def train(mode: str, steps: int = 50, dtype: str = "float32"):
    weights, trials = {}, tuple(TrialSpec(40, seed, 0.01) for seed in range(4))
    cost = train_group(
        LaneGroup(make_pair(steps, dtype), 64, trials),
        torch.device("cpu"),
        lambda t, w: weights.setdefault(t.seed, w),
        lambda *_: None,
        Compiling(mode),
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
    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("no compiler on this machine")

    monkeypatch.setattr("torch._inductor.compile", refuse)
    with pytest.warns(CompileFailed, match="no compiler on this machine"):
        weights, _ = train("on", steps=30)
    eager, _ = train("off", steps=30)
    assert all(torch.equal(w, weights[seed][name]) for seed, named in eager.items() for name, w in named.items())


def test_where_tracing_fails_training_goes_on_without(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, _ = train("off", steps=30)
    monkeypatch.setattr("capbench.engine.step.TRACED_AFTER", 0)
    attempts = []

    def refuse(*_: object) -> None:
        attempts.append(1)
        raise RuntimeError("this cannot be written down")

    monkeypatch.setattr("capbench.engine.step.traced", refuse)
    weights, _ = train("off", steps=30)
    assert len(attempts) == 1
    assert all(torch.equal(w, weights[seed][name]) for seed, named in plain.items() for name, w in named.items())


def test_a_group_too_large_to_trace_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    def fill_memory(*_: object) -> None:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 99 bytes")

    monkeypatch.setattr("capbench.engine.step.traced", fill_memory)
    with pytest.raises(RuntimeError, match="can't allocate memory"):
        train("off", steps=TRACED_AFTER + 1)


def test_a_step_is_traced_once_its_lanes_have_stayed_together_and_anew_when_some_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = []
    monkeypatch.setattr(
        "capbench.engine.step.traced", lambda f, tensors: seen.append(len(tensors[0])) or traced(f, tensors)
    )
    train("off", steps=TRACED_AFTER)
    assert seen == []
    train("off", steps=TRACED_AFTER + 1)
    assert seen == [4]
    trials = (*(TrialSpec(2, seed, 0.01) for seed in range(6)), *(TrialSpec(64, seed, 1e-6) for seed in range(2)))
    pair = make_pair(steps=300)
    group = LaneGroup(replace(pair, training=replace(pair.training, stops_early=True)), 64, trials)

    def weights() -> dict[str, torch.Tensor]:
        ended: dict[str, torch.Tensor] = {}
        train_group(group, torch.device("cpu"), lambda t, w: ended.update({t.key: w["W_E"]}), lambda *_: None)
        return ended

    plain = weights()
    seen.clear()
    monkeypatch.setattr("capbench.engine.step.TRACED_AFTER", 10)
    retraced = weights()
    assert (seen[0], seen[-1]) == (8, 2)
    assert all(torch.equal(w, retraced[key]) for key, w in plain.items())


def test_traced_products_in_bfloat16_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, _ = train("off", dtype="bfloat16")
    steps = steps_replayed(monkeypatch)
    weights, _ = train("off", dtype="bfloat16")
    assert len(steps) == 50
    assert all(torch.equal(w, weights[seed][name]) for seed, named in plain.items() for name, w in named.items())


@pytest.mark.parametrize(("bits", "options"), [(512, {"cpp.simdlen": 256}), (256, {}), (128, {})])
@pytest.mark.filterwarnings("ignore::capbench.engine.step.CompileFailed")
def test_vectors_longer_than_most_axes_are_not_used(bits: int, options: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    told = []

    def compile_nothing(*_: object, options: dict) -> None:
        told.append(options)
        raise RuntimeError("only listening")

    machine = SimpleNamespace(bit_width=lambda: bits)
    monkeypatch.setattr("torch._inductor.cpu_vec_isa.pick_vec_isa", lambda: machine)
    monkeypatch.setattr("torch._inductor.compile", compile_nothing)
    train("on", steps=1)
    assert told == [options]
    assert compiler_options(torch.device("cuda")) == {}


def test_a_short_run_is_not_worth_compiling() -> None:
    _, cost = train("auto", steps=30)
    assert (cost.compile_seconds, cost.compiled_lane_steps) == (0, 0)


def test_long_work_is_worth_compiling_and_less_is_where_the_shape_is_known(tmp_path: Path) -> None:
    auto, cpu = Compiling("auto", tmp_path), torch.device("cpu")
    work = FIRST_SECONDS / SHARE_SAVED * EAGER_SPEED  # lane-steps × bytes at which it begins to pay
    group = LaneGroup(make_pair(steps=1000), 64, tuple(TrialSpec(40, seed, 0.01) for seed in range(100)))
    assert auto.block(group, int(1.01 * work / 1e5), cpu) == LANES_A_BLOCK["cpu"]
    assert auto.block(group, int(0.99 * work / 1e5), cpu) is None
    assert auto.block(replace(group, n_ahead=5), int(0.99 * work / 1e5), cpu) == LANES_A_BLOCK["cpu"]
    assert auto.elsewhere(group, cpu).block(group, int(0.3 * work / 1e5), cpu) is None
    auto.remember(group, cpu)
    for chosen in (auto, auto.elsewhere(group, cpu)):
        assert chosen.block(group, int(0.3 * work / 1e5), cpu) == LANES_A_BLOCK["cpu"]
    assert Compiling("auto").block(group, int(0.3 * work / 1e5), cpu) is None
    assert Compiling("off", tmp_path).block(group, int(9 * work), cpu) is None


def test_steps_that_see_a_share_of_the_facts_are_less_work() -> None:
    pair, cpu = make_pair(steps=1000), torch.device("cpu")
    sampled = replace(pair, training=replace(pair.training, sampling=Sampling(batch=16)))
    work = FIRST_SECONDS / SHARE_SAVED * EAGER_SPEED
    trials = tuple(TrialSpec(40, seed, 0.01) for seed in range(100))
    for each, share in ((pair, 1), (sampled, 16 / 64)):
        group = LaneGroup(each, 64, trials)
        assert Compiling("auto").block(group, int(1.01 * work / 1e5 / share), cpu) is not None
        assert Compiling("auto").block(group, int(0.99 * work / 1e5 / share), cpu) is None


WHERE_COMPILED = """
import os, sys, torch
from pathlib import Path
from capbench.engine.compiling import Compiling
from capbench.executors.local import LocalExecutor
LocalExecutor(torch.device("cpu"), Compiling("auto", Path(sys.argv[1])))
import torch._dynamo  # as a module on its own way may
print(os.environ["TORCHINDUCTOR_CACHE_DIR"])
"""


def test_what_is_compiled_is_kept_beside_the_store_unless_the_user_says_where(tmp_path: Path) -> None:
    for said, kept in ({}, tmp_path / "kernels"), ({"TORCHINDUCTOR_CACHE_DIR": "/elsewhere"}, Path("/elsewhere")):
        free = {name: value for name, value in os.environ.items() if name != "TORCHINDUCTOR_CACHE_DIR"}
        run = [sys.executable, "-c", WHERE_COMPILED, str(tmp_path)]
        done = subprocess.run(run, env={**free, **said}, capture_output=True, text=True, check=True)
        assert Path(done.stdout.strip()) == kept


def verdicts(mode: str):
    """A whole curve of trials at standard size: several blocks, an odd rest, and one lane that diverges."""
    task = Rgr()
    plugins = (Configured(p, Provenance("t", "t", "0", "t"), "-") for p in (task, Mha(), Adam()))
    pair, held = Pair(*plugins, Training(task.criterion, 800)), {}
    trials = [
        TrialSpec(load, seed, 0.8) for load in (60, 120, 180, 240, 280, 300, 320, 400, 600, 900) for seed in range(10)
    ]
    wild = TrialSpec(240, 999, 1e38)
    cost = train_group(
        LaneGroup(pair, 1024, (*trials, wild)),
        torch.device("cpu"),
        lambda t, _: held.setdefault(TrialSpec(t.load, t.seed, t.learning_rate), t.status),
        lambda *_: None,
        Compiling(mode),
    )
    assert held.pop(wild) is TrialStatus.DIVERGED
    return {spec: status is TrialStatus.HELD for spec, status in held.items()}, cost


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
def test_compiled_and_eager_agree_on_the_verdicts_of_99_in_100_trials() -> None:
    if shutil.which("g++") is None and shutil.which("clang++") is None:
        pytest.skip("no C++ compiler for torch.compile here")
    eager, _ = verdicts("off")
    compiled, cost = verdicts("on")
    assert cost.compiled_lane_steps == cost.lane_steps
    assert 0.3 < sum(eager.values()) / len(eager) < 0.7  # the transition is in it
    assert sum(eager[spec] == compiled[spec] for spec in eager) >= 0.99 * len(eager)


def test_the_number_of_threads_changes_no_verdict_and_weights_hardly() -> None:
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one, _ = train("off")
        torch.set_num_threads(2)
        two, _ = train("off")
    finally:
        torch.set_num_threads(threads)
    assert all(
        torch.allclose(w, two[seed][name], atol=1e-5) for seed, named in one.items() for name, w in named.items()
    )


def test_products_in_bfloat16_are_coarser_and_weights_stay_float32() -> None:
    exact, _ = train("off")
    coarse, _ = train("off", dtype="bfloat16")
    W, W_coarse = exact[0]["W_U"], coarse[0]["W_U"]
    assert W_coarse.dtype is torch.float32
    assert 1e-6 < (W - W_coarse).abs().max() < 0.5
