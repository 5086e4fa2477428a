"""Whole steps on `meta`, a device that is not the CPU: no tensor of the host, no read, no branch on data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.func import vmap
from torch.utils._pytree import tree_map

from capbench.contract.solver import GradientSolver
from capbench.engine.batches import Batches
from capbench.engine.counting import OperationCount
from capbench.engine.stack import Batched, LaneFunctions, Stack, build_stack
from capbench.engine.step import Step
from capbench.engine.trials import Sampling, Setup, TrialGroup, TrialSpec
from capbench.registry.settings import configure
from tests.engine.test_every_pair import PAIRS, REGISTRY, make_pair

SOLVERS = sorted(name for name, each in REGISTRY.solvers.items() if issubclass(each.cls, GradientSolver))
META = torch.device("meta")


def trials_of(setup: Setup) -> tuple[TrialSpec, ...]:
    """Two small trials."""
    return tuple(TrialSpec(min(10, setup.task.plugin.max_load), seed, 0.1) for seed in range(2))


def on_host(setup: Setup) -> Stack:
    """Their stack on the CPU."""
    trials = trials_of(setup)
    stack, _ = build_stack(TrialGroup(setup, setup.slots(trials[0]), trials), torch.device("cpu"))
    return stack


def on_meta(setup: Setup) -> tuple[Stack, Batched]:
    """A stack whose numbers do not exist, and its functions: built without trying them, which reads numbers."""
    host = on_host(setup)
    away = lambda tensor: tensor.to(META)  # noqa: E731
    stack = replace(
        host,
        module=host.module.to(META),
        weights=away(host.weights),
        fixed=tree_map(away, host.fixed),
        problem=tree_map(away, host.problem),
        learning_rate=away(host.learning_rate),
    )
    batched = object.__new__(Batched)
    batched._lane, batched._map = LaneFunctions(setup, host), vmap
    return stack, batched


def take_step(setup: Setup) -> OperationCount:
    """One step and one evaluation on `meta`; returns the count of the step."""
    stack, batched = on_meta(setup)
    solver, count = setup.solver.plugin, OperationCount()
    assert isinstance(solver, GradientSolver)
    state = solver.init(stack.weights)
    with count:
        Step(batched, setup)(stack, state, [torch.zeros((), dtype=torch.float64, device=META)])
    tensors = [*state.values(), *batched.metrics(stack).values()]
    assert {tensor.device.type for tensor in tensors} == {"meta"}
    return count


@pytest.mark.parametrize(("task", "architecture"), PAIRS)
def test_every_pair_takes_a_step_and_is_scored_away_from_the_cpu(task: str, architecture: str) -> None:
    assert not take_step(make_pair(task, architecture)).waits


@pytest.mark.parametrize("name", SOLVERS)
def test_every_solver_takes_a_step_away_from_the_cpu(name: str) -> None:
    setup = make_pair("rgr", "mha")
    assert not take_step(replace(setup, solver=configure(REGISTRY.solver(name), "smoke", {}))).waits


@pytest.mark.parametrize("sampling", [Sampling(4), Sampling(4, n_draws=20), Sampling(64, scored_batches=2)])
def test_every_way_to_draw_batches_takes_a_step_away_from_the_cpu(sampling: Sampling) -> None:
    setup = make_pair("bigrams", "mlp")
    setup = replace(setup, training=replace(setup.training, sampling=sampling))
    stack, batched = on_meta(setup)
    host = on_host(setup)
    batches = Batches(setup, trials_of(setup), host.problem)
    batches._device = META
    for problem in batches.problems(2):
        assert {batched.losses(stack.asking(problem)).device.type} == {"meta"}


@pytest.mark.parametrize(
    "sabotage",
    [
        lambda loss, outputs: (outputs + torch.ones(outputs.shape)).sum(),
        lambda loss, outputs: loss * loss.item(),
        lambda loss, outputs: loss if loss > 0 else -loss,
    ],
    ids=["a tensor of the host", "a read", "a branch on data"],
)
def test_what_must_not_be_in_a_step_is_found(
    sabotage: Callable[[Tensor, Tensor], Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    setup = make_pair("rgr", "mha")
    task = type(setup.task.plugin)
    whole = task.loss
    monkeypatch.setattr(task, "loss", lambda self, out, problem: sabotage(whole(self, out, problem), out))
    with pytest.raises((RuntimeError, NotImplementedError)):
        take_step(setup)
