"""Every built-in pair: trains, keeps to its device, and gives the same numbers in any company."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor
from torch.func import functional_call, vmap
from torch.utils._pytree import tree_map

from capbench.engine.compiling import Compiling
from capbench.engine.lanes import LaneGroup, Pair, Training, TrialSpec
from capbench.engine.stack import build_stack
from capbench.engine.traced import traced
from capbench.engine.train import train_group
from capbench.registry import load_registry
from capbench.report.catalogue import catalogue
from capbench.results import Trial, TrialStatus
from capbench.settings import configure

REGISTRY = load_registry()
NOT_TAKEN = {("sequences", "linear_attention")}
"""Steps that torch 2.13 compiles wrongly (it mistakes the layout of elu's gradient), which is noticed."""
PAIRS = [(fit.task, fit.architecture) for fit in catalogue(REGISTRY).pairs if fit.fits]


def compiles(test: Callable[..., None]) -> Callable[..., None]:
    """A test that compiles."""
    for mark in (
        pytest.mark.slow,
        pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
        pytest.mark.skipif(not (shutil.which("g++") or shutil.which("clang++")), reason="no C++ compiler here"),
    ):
        test = mark(test)
    return test


def make_pair(task: str, architecture: str, steps: int = 40) -> Pair:
    configured = configure(REGISTRY.task(task), "smoke", {})
    return Pair(
        configured,
        configure(REGISTRY.architecture(architecture), "smoke", {}),
        configure(REGISTRY.solver("adam"), "smoke", {}),
        Training(configured.plugin.criterion, steps, stops_early=False),
    )


def train(
    pair: Pair,
    *trials: TrialSpec,
    compiling: Compiling = Compiling(),  # noqa: B008 - frozen
) -> dict[TrialSpec, tuple[Trial, dict[str, torch.Tensor]]]:
    ended = {}
    slots = max(pair.slots(trial) for trial in trials)
    train_group(
        LaneGroup(pair, slots, trials),
        torch.device("cpu"),
        lambda t, w: ended.setdefault(TrialSpec(t.load, t.seed, t.learning_rate), (t, w)),
        lambda *_: None,
        compiling,
    )
    return ended


def steps_replayed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Has every step traced; grows with each step that was taken by traced operations."""
    taken: list[int] = []

    def watched(*asked: object) -> Callable[[Sequence[Tensor]], None]:
        program = traced(*asked)
        return lambda given: taken.append(len(taken)) or program(given)

    monkeypatch.setattr("capbench.engine.step.TRACED_AFTER", 0)
    monkeypatch.setattr("capbench.engine.step.traced", watched)
    return taken


def test_there_are_four_tasks_and_eight_architectures() -> None:
    assert len({task for task, _ in PAIRS}) == 4
    assert len({architecture for _, architecture in PAIRS}) == 8


@pytest.mark.parametrize(("task", "architecture"), PAIRS)
def test_it_trains_by_vmap_and_does_not_depend_on_company(task: str, architecture: str) -> None:
    pair = make_pair(task, architecture)
    rate = pair.task.plugin.recipe.learning_rates[0]
    crowd = [TrialSpec(40, seed, rate) for seed in range(5)]
    together = train(pair, *crowd)  # a LoopFallback warning would be an error here
    alone = train(pair, crowd[2])[crowd[2]]
    assert all(t.status is not TrialStatus.FAILED and t.metrics["bits"] >= 0 for t, _ in together.values())
    assert all(torch.equal(alone[1][name], w) for name, w in together[crowd[2]][1].items())


@pytest.mark.parametrize(("task", "architecture"), PAIRS)
def test_operations_written_down_give_the_same_numbers(
    task: str, architecture: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = make_pair(task, architecture, steps=30)
    rate = pair.task.plugin.recipe.learning_rates[0]
    trials = [TrialSpec(40, seed, rate) for seed in range(3)]
    asked_at_every_step = train(pair, *trials)
    steps = steps_replayed(monkeypatch)
    written_down = train(pair, *trials)
    assert len(steps) == 30
    for trial, (_, weights) in asked_at_every_step.items():
        assert all(torch.equal(w, written_down[trial][1][name]) for name, w in weights.items())


@compiles
@pytest.mark.filterwarnings("ignore::capbench.engine.step.CompileFailed")
@pytest.mark.parametrize(("task", "architecture"), PAIRS)
def test_compiled_it_gives_the_same_numbers(task: str, architecture: str) -> None:
    pair, compiling = make_pair(task, architecture, steps=30), Compiling("on")
    rate = pair.task.plugin.recipe.learning_rates[0]
    trials = [TrialSpec(40, seed, rate) for seed in range(3)]
    eager, compiled = train(pair, *trials), train(pair, *trials, compiling=compiling)
    assert compiling.programs or (task, architecture) in NOT_TAKEN
    for trial, (_, weights) in eager.items():
        assert all(torch.equal(w, compiled[trial][1][name]) for name, w in weights.items())


@pytest.mark.parametrize(("task", "architecture"), PAIRS)
def test_no_tensor_is_left_behind_on_another_device(task: str, architecture: str) -> None:
    """On `meta`, a tensor made on the host by module, loss or metrics meets another device and raises."""
    pair = make_pair(task, architecture)
    trials = tuple(TrialSpec(10, seed, 0.1) for seed in range(2))
    stack, _ = build_stack(LaneGroup(pair, pair.slots(trials[0]), trials), torch.device("cpu"))
    weights, fixed, problem = tree_map(
        lambda tensor: tensor.to("meta"), (stack.layout.split(stack.weights), stack.fixed, stack.problem)
    )
    module = stack.module.to("meta")

    def everything(weights, fixed, problem):
        outputs = functional_call(module, {**weights, **fixed}, problem.inputs)
        return pair.task.plugin.loss(outputs, problem), pair.task.plugin.metrics(outputs, problem)

    loss, metrics = vmap(everything)(weights, fixed, problem)
    assert loss.shape == (2,)
    assert {value.device.type for value in metrics.values()} == {"meta"}
