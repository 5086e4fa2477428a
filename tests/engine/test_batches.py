"""Batches: the drawn facts as often as they were drawn, the same for a trial in any group."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from capbench import Architecture, Problem, Task
from capbench.engine.batches import Batches
from capbench.engine.stack import Batched, _GridModule, build_stack, make_problem
from capbench.engine.train import train_group
from capbench.engine.trials import Sampling, Setup, Training, TrialGroup, TrialSpec
from capbench.registry.provenance import Provenance
from capbench.registry.settings import Configured
from capbench_plugins.adam import Adam
from capbench_plugins.aot import Aot
from capbench_plugins.bilinear import Bilinear
from capbench_plugins.mha import Mha
from capbench_tasks.bigrams import Bigrams
from capbench_tasks.sequences import Sequences
from capbench_tasks.triples import Triples
from tests.engine.test_every_pair import compiles, distance


def make_pair(sampling: Sampling, prior: str = "uniform", architecture: Architecture = Aot()) -> Setup:  # noqa: B008
    task = Bigrams(n_tokens=6, prior=prior)
    plugins = (Configured(p, Provenance("t", "t", "0", "t"), "-") for p in (task, architecture, Adam()))
    return Setup(*plugins, Training(task.criterion, 40, stops_early=False, sampling=sampling))


def stacked(setup: Setup, trials: list[TrialSpec]) -> Problem:
    problems = [make_problem(setup, trial, 36) for trial in trials]
    return tree_map(lambda *same: torch.stack(same), *problems)


def masks_of(setup: Setup, trials: list[TrialSpec], n_steps: int) -> torch.Tensor:
    """How much each of the 36 facts counts in each step, (steps, lanes, 36)."""
    batches = Batches(setup, trials, stacked(setup, trials))
    rows = setup.task.plugin.signature.rows
    return torch.stack([
        torch.zeros(len(trials), 36).scatter_add_(1, rows(p.inputs[0]), p.mask) for p in batches.problems(n_steps)
    ])  # fmt: skip


def test_a_batch_smaller_than_the_facts_is_those_facts_alone() -> None:
    for batch, slots in ((8, 8), (35, 35), (36, 36), (64, 36)):
        setup, trials = make_pair(Sampling(batch=batch, n_draws=64)), [TrialSpec(20, 0, 0.01), TrialSpec(20, 1, 0.01)]
        (problem,) = Batches(setup, trials, stacked(setup, trials)).problems(1)
        assert [tuple(t.shape) for t in (*problem.inputs, problem.targets, problem.mask)] == [
            (2, slots, 2), (2, slots), (2, slots),
        ]  # fmt: skip
        assert (problem.mask.sum(dim=1) == batch).all()


@pytest.mark.parametrize("architecture", [Aot(), Aot(d_model=3, n_heads=5), Aot(n_layers=2)])
@pytest.mark.parametrize("batch", [8, 12], ids=["small: fact by fact", "by its grid"])
@pytest.mark.parametrize("n_draws", [64, None])
def test_the_facts_alone_give_the_gradient_that_a_mask_of_counts_gives(
    architecture: Aot, batch: int, n_draws: int | None
) -> None:
    setup = make_pair(Sampling(batch=batch, n_draws=n_draws), prior="power", architecture=architecture)
    trials = (TrialSpec(20, 0, 0.01), TrialSpec(20, 1, 0.01))
    stack, _ = build_stack(TrialGroup(setup, 36, trials), torch.device("cpu"))
    batched = Batched(setup, stack)
    weights = stack.weights.requires_grad_()
    gradients = []
    for is_picked in (True, False):
        batches = Batches(setup, trials, stack.problem)
        for lane in batches._lanes:
            lane._picks = is_picked
        (problem,) = batches.problems(1)
        loss = batched.losses(stack.asking(problem)).sum()
        gradients.append(torch.autograd.grad(loss, weights)[0])
    assert gradients[0].abs().max() > 1e-3
    assert torch.allclose(*gradients, atol=1e-6)


class TwoWays(nn.Module):
    """Says by which of its two ways it was asked."""

    def forward(self, tokens: Tensor) -> Tensor:
        return torch.zeros(len(tokens), 6)

    def forward_grid(self) -> Tensor:
        return torch.ones(36, 6)


@pytest.mark.parametrize(("batch", "by_grid"), [(8, 0), (9, 1), (36, 1)])
def test_only_for_a_small_batch_the_grid_is_left_alone(batch: int, by_grid: int) -> None:
    signature = Bigrams(n_tokens=6).signature
    logits = _GridModule(TwoWays(), signature)(signature.grid()[:batch])
    assert torch.equal(logits, torch.full((batch, 6), float(by_grid)))


@pytest.mark.parametrize("task", [Bigrams(n_tokens=5), Triples(n_keys=3, n_queries=4)])
def test_the_grid_knows_the_row_of_every_input(task: Task) -> None:
    grid = task.signature.grid()
    order = torch.randperm(len(grid), generator=torch.Generator().manual_seed(0))
    assert torch.equal(task.signature.rows(grid[order]), order)


def test_what_all_examples_share_is_not_picked_from() -> None:
    task = Sequences(shared_context=True)
    plugins = (Configured(p, Provenance("t", "t", "0", "t"), "-") for p in (task, Mha(), Adam()))
    setup = Setup(*plugins, Training(task.criterion, 40, sampling=Sampling(batch=4)))
    drawn = tree_map(lambda tensor: tensor.unsqueeze(0), make_problem(setup, TrialSpec(30, 0, 0.01), 32))
    (problem,) = Batches(setup, [TrialSpec(30, 0, 0.01)], drawn).problems(1)
    assert torch.equal(problem.inputs[0], drawn.inputs[0])
    assert problem.inputs[1].shape[:2] == (1, 4)


def test_a_mask_counts_a_batch_of_draws_among_the_facts() -> None:
    setup, trials = make_pair(Sampling(batch=8, n_draws=64)), [TrialSpec(20, seed, 0.01) for seed in range(3)]
    masks = masks_of(setup, trials, 24)
    facts = torch.stack([make_problem(setup, trial, 36).mask > 0 for trial in trials])
    assert masks.shape == (24, 3, 36)
    assert (masks.sum(dim=-1) == 8).all()
    assert (masks[:, ~facts] == 0).all()
    epoch, again = masks[:8].sum(dim=0), masks[8:16].sum(dim=0)
    assert torch.equal(epoch, again), "64 draws are seen once in 8 batches, then once more"
    assert not torch.equal(masks[:8], masks[8:16]), "in another order"


def test_facts_drawn_once_each_are_seen_once_an_epoch_with_the_weight_they_have() -> None:
    setup = make_pair(Sampling(batch=5), prior="power")
    trial = TrialSpec(20, 0, 0.01)
    masks = masks_of(setup, [trial], 4)
    assert torch.allclose(masks.sum(dim=0)[0], make_problem(setup, trial, 36).mask)


def test_frequent_facts_are_drawn_more_often_under_a_power_law() -> None:
    setup = make_pair(Sampling(batch=64, n_draws=4096), prior="power")
    trial = TrialSpec(36, 0, 0.01)
    drawn = masks_of(setup, [trial], 64).sum(dim=(0, 1))
    weights = make_problem(setup, trial, 36).mask
    assert torch.corrcoef(torch.stack([drawn, weights]))[0, 1] > 0.98


def test_batches_are_the_same_in_any_group() -> None:
    setup = make_pair(Sampling(batch=8, n_draws=64))
    one, other = TrialSpec(20, 1, 0.01), TrialSpec(30, 2, 0.01)
    assert torch.equal(masks_of(setup, [one, other], 9)[:, 0], masks_of(setup, [one], 9)[:, 0])


def test_metrics_are_means_over_the_last_training_batches() -> None:
    found = {}
    for scored in (0, 3):
        setup = make_pair(Sampling(batch=8, n_draws=64, scored_batches=scored))
        group = TrialGroup(setup, 36, (TrialSpec(30, 0, 0.01), TrialSpec(30, 1, 0.01)))
        train_group(
            group,
            torch.device("cpu"),
            lambda trials, s=scored: found.update({(s, t.seed): t for t in trials}),
            lambda *_: None,
        )
    for seed in (0, 1):
        last_batches, all_facts = found[3, seed].metrics["accuracy"] * 24, found[0, seed].metrics["accuracy"] * 30
        assert abs(last_batches - round(last_batches)) < 1e-4, "a share of 3 batches of 8 facts"
        assert abs(all_facts - round(all_facts)) < 1e-4, "a share of the 30 facts"


def test_a_lane_that_diverges_among_the_scored_batches_takes_nobody_with_it() -> None:
    setup = make_pair(Sampling(batch=8, n_draws=64, scored_batches=30))
    calm = [TrialSpec(30, seed, 0.01) for seed in range(2)]
    wild = [TrialSpec(30, seed, 1e38) for seed in range(4)]
    found = {}
    train_group(
        TrialGroup(setup, 36, (*wild, *calm)),
        torch.device("cpu"),
        lambda trials: found.update({(t.seed, t.learning_rate): t for t in trials}),
        lambda *_: None,
    )
    assert {found[seed, 1e38].status.value for seed in range(4)} == {"diverged"}
    assert {found[seed, 0.01].status.value for seed in range(2)} <= {"held", "not_held"}


@compiles
def test_a_compiled_step_takes_batches_too() -> None:
    sampling, found, trials = Sampling(batch=8, n_draws=64), [], tuple(TrialSpec(20, seed, 0.01) for seed in range(9))
    for is_compiled in (False, True):
        ended: dict[int, dict[str, Tensor]] = {}
        cost = train_group(
            TrialGroup(make_pair(sampling, architecture=Bilinear()), 36, trials, is_compiled),
            torch.device("cpu"),
            lambda _: None,
            lambda *_: None,
            on_weights=lambda trial, weights, own=ended: own.update({trial.seed: weights}),
        )
        assert cost.compiled_lane_steps == is_compiled * cost.lane_steps
        found.append(ended)
    assert max(distance(weights, found[1][seed]) for seed, weights in found[0].items()) < 1e-3
