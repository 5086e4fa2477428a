"""The training step: compiled it gives the same numbers, or a warning and the eager ones."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from capbench.engine.compiling import (
    AGAIN_SECONDS,
    FIRST_SECONDS,
    LANES_A_BLOCK,
    MOST_SAVED,
    SHARE_TAKEN,
    Compiling,
    lane_steps_ahead,
    lanes_for,
)
from capbench.engine.lanes import LaneGroup, Pair, Training, TrialSpec
from capbench.engine.program import Program, compiled
from capbench.engine.step import TRACED_AFTER, CompileFailed
from capbench.engine.traced import traced
from capbench.engine.train import CONSIDERED_AT, train_group
from capbench.provenance import Provenance
from capbench.results import TrialStatus
from capbench.settings import Configured
from capbench_plugins.adam import Adam
from capbench_plugins.aot import Aot
from capbench_plugins.mha import Mha
from capbench_tasks.rgr import Rgr
from capbench_tasks.triples import Triples
from tests.engine.test_every_pair import compiles, steps_replayed


def make_pair(steps: int, dtype: str = "float32") -> Pair:
    task = Triples(n_keys=8, n_queries=8, n_values=8)
    plugins = (Configured(p, Provenance("t", "t", "0", "t"), "-") for p in (task, Aot(), Adam()))
    return Pair(*plugins, Training(task.criterion, steps, dtype, stops_early=False))


def train(compiling: str | Compiling, steps: int = 50, dtype: str = "float32", n_trials: int = 4):
    weights, trials = {}, tuple(TrialSpec(40, seed, 0.01) for seed in range(n_trials))
    cost = train_group(
        LaneGroup(make_pair(steps, dtype), 64, trials),
        torch.device("cpu"),
        lambda t, w: weights.setdefault(t.seed, w),
        lambda *_: None,
        compiling if isinstance(compiling, Compiling) else Compiling(compiling),
    )
    return weights, cost


def same(some: dict[int, dict[str, Tensor]], others: dict[int, dict[str, Tensor]]) -> bool:
    return all((w == others[seed][name]).all() for seed, named in some.items() for name, w in named.items())


@compiles
def test_a_compiled_step_gives_the_numbers_of_the_eager_one_to_the_last_bit() -> None:
    for dtype in ("float32", "float64", "bfloat16"):
        eager, cost = train("off", dtype=dtype)
        compiled, compiled_cost = train("on", dtype=dtype)
        assert cost.compile_seconds == 0 < compiled_cost.compile_seconds
        assert compiled_cost.compiled_lane_steps == compiled_cost.lane_steps
        assert same(eager, compiled)


@compiles
def test_a_step_is_compiled_once_in_a_process() -> None:
    compiling, eager = Compiling("auto"), train("off")[0]
    first, cost = train(replace(compiling, mode="on"))
    again, cost_again = train(compiling)
    assert cost.compile_seconds > 0 == cost_again.compile_seconds
    assert cost_again.compiled_lane_steps == cost_again.lane_steps
    assert same(eager, first)
    assert same(eager, again)


@compiles
def test_a_group_that_has_begun_eagerly_goes_on_compiled_with_the_same_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    eager, _ = train("off", steps=CONSIDERED_AT + 40)
    monkeypatch.setattr("capbench.engine.compiling.FIRST_SECONDS", 0)
    compiled, cost = train("auto", steps=CONSIDERED_AT + 40)
    assert (cost.lane_steps, cost.compiled_lane_steps) == (4 * (CONSIDERED_AT + 40), 4 * 40)
    assert same(eager, compiled)


@compiles
def test_no_lane_is_left_alone_beside_the_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """One lane alone would take other kernels than in company."""
    monkeypatch.setattr("capbench.engine.compiling.FIRST_SECONDS", 0)
    monkeypatch.setattr("capbench.engine.compiling.LANES_A_BLOCK", {"cpu": (4, 4)})
    steps = CONSIDERED_AT + 100
    for n_trials, n_compiled in ((9, 4), (10, 8), (5, 0)):
        eager, _ = train("off", steps, n_trials=n_trials)
        compiled, cost = train("auto", steps, n_trials=n_trials)
        assert cost.compiled_lane_steps == 100 * n_compiled
        assert same(eager, compiled)


def test_other_numbers_than_the_eager_ones_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("capbench.engine.step.compiled", lambda *_: lambda given: given[0].add_(1e-7))
    with pytest.warns(CompileFailed, match="does not come to the same numbers"):
        weights, _ = train("on", steps=30)
    assert same(train("off", steps=30)[0], weights)


@compiles
def test_compiled_without_keeping_to_the_order_it_agrees_closely(monkeypatch: pytest.MonkeyPatch) -> None:
    """What other devices than the CPU get, tried here."""
    tried = []

    def freely(function: Callable[..., None], tensors: list[Tensor], is_exact: bool) -> Program:
        program = compiled(function, tensors, is_exact=False)
        tried.append(program)
        return program

    monkeypatch.setattr("capbench.engine.step.compiled", freely)
    monkeypatch.setattr("torch.equal", lambda *_: True)
    eager, free = train("off")[0], train("on")[0]
    assert len(tried) == 1
    assert not same(eager, free)
    assert all(torch.allclose(w, free[seed][name], atol=1e-5) for seed in eager for name, w in eager[seed].items())


def test_where_compiling_fails_training_goes_on_without(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("no compiler on this machine")

    monkeypatch.setattr("torch._inductor.compile_fx.compile_fx_inner", refuse)
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


def test_traced_numbers_other_than_the_eager_ones_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, _ = train("off", steps=30)
    monkeypatch.setattr("capbench.engine.step.TRACED_AFTER", 0)
    tried = []
    monkeypatch.setattr("capbench.engine.step.traced", lambda *_: lambda given: tried.append(1) or given[0].add_(1e-7))
    weights, _ = train("off", steps=30)
    assert len(tried) == 1
    assert same(plain, weights)


class Rebinding(Adam):
    """Makes new tensors of its state, which the contract does not allow and an eager step bears."""

    def update(self, weights, gradient, state, learning_rate, step, steps) -> None:
        super().update(weights, gradient, state, learning_rate, step, steps)
        state["mean"] = state["mean"].clone()


class Adding(Adam):
    """Adds to its state as it goes."""

    def update(self, weights, gradient, state, learning_rate, step, steps) -> None:
        super().update(weights, gradient, state, learning_rate, step, steps)
        state.setdefault("count", torch.zeros(len(weights))).add_(1)


@pytest.mark.parametrize("solver", [Rebinding, Adding])
def test_a_solver_that_makes_new_tensors_of_its_state_loses_none(
    solver: type[Adam], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, _ = train("off", steps=30)
    monkeypatch.setattr("capbench.engine.step.TRACED_AFTER", 0)
    monkeypatch.setitem(globals(), "Adam", solver)
    assert same(plain, train("off", steps=30)[0])
    with pytest.warns(CompileFailed, match="adam makes new tensors of its state"):
        assert same(plain, train("on", steps=30)[0])


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
        "capbench.engine.step.traced",
        lambda f, tensors, changed: seen.append(len(tensors[0])) or traced(f, tensors, changed),
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


@pytest.mark.parametrize(("capability", "bits"), [("AVX512", 256), ("AVX2", None), ("DEFAULT", None)])
@pytest.mark.filterwarnings("ignore::capbench.engine.step.CompileFailed", "ignore::DeprecationWarning")
def test_vectors_longer_than_most_axes_are_not_used(
    capability: str, bits: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch._inductor import config

    told = []

    def listen(*_: object) -> None:
        told.append((config.cpp.simdlen, config.fallback_by_default))
        raise RuntimeError("heard")

    monkeypatch.setattr("torch.backends.cpu.get_cpu_capability", lambda: capability)
    monkeypatch.setattr("torch._inductor.compile_fx.compile_fx_inner", listen)
    train("on", steps=1)
    assert told == [(bits, True)]


def test_a_short_run_is_not_worth_compiling() -> None:
    _, cost = train("auto", steps=30)
    assert (cost.compile_seconds, cost.compiled_lane_steps) == (0, 0)


def test_long_work_is_worth_compiling_and_less_is_where_the_shape_is_known(tmp_path: Path) -> None:
    auto, cpu = Compiling("auto", tmp_path), torch.device("cpu")
    group = LaneGroup(make_pair(steps=1000), 64, tuple(TrialSpec(40, seed, 0.01) for seed in range(100)))

    def block(compiling: Compiling, seconds: float) -> int | None:
        return compiling.block_later(group, cpu, seconds, lambda: 0.5)

    assert block(auto, 2.02 * FIRST_SECONDS) == 100
    assert block(auto, 1.98 * FIRST_SECONDS) is None
    assert block(auto.elsewhere(group, cpu), 1.98 * FIRST_SECONDS) is None
    auto.remember(group, cpu)
    for chosen in (auto, auto.elsewhere(group, cpu)):
        assert block(chosen, 2.02 * AGAIN_SECONDS) == 100
        assert block(chosen, 1.98 * AGAIN_SECONDS) is None
    assert block(Compiling("auto"), 1.98 * FIRST_SECONDS) is None
    assert block(Compiling("off", tmp_path), 99 * FIRST_SECONDS) is None


@pytest.mark.parametrize(("n_trials", "n_ahead", "place"), [(300, 0, 1), (300, 9, 0)])
def test_blocks_are_smaller_where_smaller_groups_may_follow(n_trials: int, n_ahead: int, place: int) -> None:
    trials = tuple(TrialSpec(40, seed, 0.01) for seed in range(n_trials))
    group = LaneGroup(make_pair(steps=9), 64, trials, n_ahead)
    assert Compiling("on").block(group, torch.device("cpu")) == LANES_A_BLOCK["cpu"][place]
    assert Compiling("on").block(group.part(trials[:1]), torch.device("cpu")) == 2


def test_what_compiling_saves_is_not_asked_where_it_cannot_be_enough() -> None:
    group = LaneGroup(make_pair(steps=1000), 64, (TrialSpec(40, 0, 0.01),))
    asked = []
    for seconds in (0.99 * FIRST_SECONDS / MOST_SAVED, 1.01 * FIRST_SECONDS / MOST_SAVED):
        Compiling("auto").block_later(group, torch.device("cpu"), seconds, lambda: asked.append(1) or 0.0)
    assert len(asked) == 1


def test_the_work_ahead_is_that_of_the_group_and_of_what_may_follow() -> None:
    pair = make_pair(steps=1000)
    group = LaneGroup(pair, 64, tuple(TrialSpec(40, seed, 0.01) for seed in range(10)), n_ahead=5)
    assert lane_steps_ahead(group, 10, 950) == 10 * 950 + 5 * 1000
    stopping = replace(group, pair=replace(pair, training=replace(pair.training, stops_early=True)))
    assert lane_steps_ahead(stopping, 10, 950) == pytest.approx(SHARE_TAKEN * (10 * 950 + 5 * 1000))


@pytest.mark.parametrize(
    ("n_alive", "block", "n_lanes"),
    [(7, None, 7), (1, None, 2), (32, 32, 32), (33, 32, 34), (40, 32, 40), (60, 32, 64), (1, 32, 2), (20, 32, 20)],
)
def test_a_stack_has_the_lanes_alive_and_fills_a_block_that_is_almost_full(
    n_alive: int, block: int | None, n_lanes: int
) -> None:
    assert lanes_for(n_alive, block) == n_lanes


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
    pair, ended = Pair(*plugins, Training(task.criterion, 800)), {}
    trials = [
        TrialSpec(load, seed, 0.8) for load in (60, 120, 180, 240, 280, 300, 320, 400, 600, 900) for seed in range(10)
    ]
    wild = TrialSpec(240, 999, 1e38)
    cost = train_group(
        LaneGroup(pair, 1024, (*trials, wild), n_ahead=1),
        torch.device("cpu"),
        lambda t, _: ended.setdefault(TrialSpec(t.load, t.seed, t.learning_rate), t),
        lambda *_: None,
        Compiling(mode),
    )
    assert ended.pop(wild).status is TrialStatus.DIVERGED
    return ended, cost


@compiles
def test_compiled_and_eager_come_to_the_same_end_trial_by_trial() -> None:
    eager, _ = verdicts("off")
    compiled, cost = verdicts("on")
    assert 0.5 * cost.lane_steps < cost.compiled_lane_steps < cost.lane_steps  # blocks, and a rest
    ends = [trial.status is TrialStatus.HELD for trial in eager.values()]
    assert 0.3 < sum(ends) / len(ends) < 0.7  # the transition is in it
    assert compiled == eager


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
