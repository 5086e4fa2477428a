"""Every built-in pair: trains by vmap, depends on no other trial, and compiles."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from statistics import median

import pytest
import torch

from capbench.documents.result import Trial, TrialStatus
from capbench.engine.stack import Batched, build_stack
from capbench.engine.train import train_group
from capbench.engine.trials import Setup, Training, TrialGroup, TrialSpec
from capbench.registry.registry import load_registry
from capbench.registry.settings import configure
from capbench.report.catalogue import build_catalogue

REGISTRY = load_registry()
PAIRS = [(fit.task, fit.architecture) for fit in build_catalogue(REGISTRY).pairs if fit.fits]
COMPILED_PAIRS = sorted(
    {**{task: (task, name) for task, name in PAIRS}, **{name: (task, name) for task, name in PAIRS}}.values()
)
"""A pair of every task and of every architecture."""


def compiles(test: Callable[..., None]) -> Callable[..., None]:
    """A test that compiles."""
    for mark in (
        pytest.mark.slow,
        pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
        pytest.mark.skipif(not (shutil.which("g++") or shutil.which("clang++")), reason="no C++ compiler here"),
    ):
        test = mark(test)
    return test


def make_pair(task: str, architecture: str, steps: int = 40, preset: str = "smoke", **fields: float) -> Setup:
    configured = configure(REGISTRY.task(task), preset, {})
    return Setup(
        configured,
        configure(REGISTRY.architecture(architecture), "smoke", fields),
        configure(REGISTRY.solver("adam"), "smoke", {}),
        Training(configured.plugin.criterion, steps, stops_early=False),
    )


def train(
    setup: Setup, *trials: TrialSpec, is_compiled: bool = False
) -> dict[TrialSpec, tuple[Trial, dict[str, torch.Tensor]]]:
    ended = {}
    slots = max(setup.slots(trial) for trial in trials)
    train_group(
        TrialGroup(setup, slots, trials, is_compiled),
        torch.device("cpu"),
        lambda _: None,
        lambda *_: None,
        on_weights=lambda t, w: ended.setdefault(TrialSpec(t.load, t.seed, t.learning_rate), (t, w)),
    )
    return ended


def distance(weights: dict[str, torch.Tensor], others: dict[str, torch.Tensor]) -> float:
    """The largest relative difference of a parameter, in the Euclidean norm."""
    return max(((others[name] - w).norm() / w.norm()).item() for name, w in weights.items())


def small_load(setup: Setup, load: int) -> int:
    """A load, or the largest of the task."""
    return min(load, setup.task.plugin.max_load)


def test_there_are_seven_tasks_and_32_architectures() -> None:
    assert len({task for task, _ in PAIRS}) == 7
    assert len({architecture for _, architecture in PAIRS}) == 32


@pytest.mark.parametrize(("task", "architecture"), PAIRS)
def test_it_trains_by_vmap_lowers_its_loss_and_does_not_depend_on_its_group(task: str, architecture: str) -> None:
    setup = make_pair(task, architecture, steps=10)
    rate = setup.task.plugin.recipe.learning_rates[0]
    crowd = [TrialSpec(small_load(setup, 40), seed, rate) for seed in range(5)]
    together = train(setup, *crowd)  # a LoopFallback warning would be an error here
    alone = train(setup, crowd[2])[crowd[2]]
    assert all(t.status is not TrialStatus.FAILED and t.metrics.get("bits", 0) >= 0 for t, _ in together.values())
    assert distance(alone[1], together[crowd[2]][1]) < 1e-6, "but for rounding"
    stack, _ = build_stack(TrialGroup(setup, setup.slots(crowd[0]), tuple(crowd)), torch.device("cpu"))
    ended = {name: torch.stack([together[trial][1][name] for trial in crowd]) for name in stack.layout.names}
    losses = Batched(setup, stack).losses
    falls = losses(stack, ended) < losses(stack)
    assert falls.sum() >= len(falls) - setup.task.plugin.is_fresh, "fresh batches are not what is scored"


@compiles
def test_a_step_is_compiled_although_adam_makes_rounding_as_large_as_gradients() -> None:
    # With d_qk = 1 the normalisation cancels the queries, whose gradients are nothing but rounding.
    setup = make_pair("sequences", "linear_attention", preset="standard", d_qk=1, d_vo=2, n_heads=3, init_scale=0.5)
    ended = train(setup, TrialSpec(20, 0, 0.01), is_compiled=True)  # a CompileFailed warning would be an error here
    assert all(trial.compiled for trial, _ in ended.values())


@compiles
@pytest.mark.parametrize(("task", "architecture"), COMPILED_PAIRS)
def test_compiled_it_ends_with_the_weights_of_the_eager_step(task: str, architecture: str) -> None:
    setup = make_pair(task, architecture, steps=50)
    rate = setup.task.plugin.recipe.learning_rates[0]
    trials = [TrialSpec(small_load(setup, 40), seed, rate) for seed in range(3)]
    eager, compiled = train(setup, *trials), train(setup, *trials, is_compiled=True)
    assert all(trial.compiled for trial, _ in compiled.values())
    assert not any(trial.compiled for trial, _ in eager.values())
    # Of most trials: where a model selects (product_key_memory), rounding may decide between two equals.
    assert median(distance(weights, compiled[spec][1]) for spec, (_, weights) in eager.items()) < 1e-3
    for together, is_compiled in ((eager, False), (compiled, True)):
        alone = train(setup, trials[1], is_compiled=is_compiled)[trials[1]]
        assert distance(alone[1], together[trials[1]][1]) < 1e-6, "it does not depend on its company"
