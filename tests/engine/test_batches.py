"""Batches: masks that count draws, the same for a trial in any company."""

from __future__ import annotations

import torch

from capbench.engine.batches import Batches
from capbench.engine.lanes import LaneGroup, Pair, Training, TrialSpec
from capbench.engine.stack import make_problem
from capbench.engine.train import train_group
from capbench.protocols import Sampling
from capbench.provenance import Provenance
from capbench.settings import Configured
from capbench_plugins.adam import Adam
from capbench_plugins.aot import Aot
from capbench_tasks.bigrams import Bigrams


def make_pair(sampling: Sampling, prior: str = "uniform") -> Pair:
    task = Bigrams(n_tokens=6, prior=prior)
    plugins = (Configured(p, Provenance("t", "t", "0", "t"), "-") for p in (task, Aot(), Adam()))
    return Pair(*plugins, Training(task.criterion, 40, stops_early=False, sampling=sampling))


def masks_of(pair: Pair, trials: list[TrialSpec], n_steps: int) -> torch.Tensor:
    mask = torch.stack([make_problem(pair, trial, 36).mask for trial in trials])
    return Batches(pair.training.sampling, pair, trials, mask).masks(n_steps)


def test_a_mask_counts_a_batch_of_draws_among_the_facts() -> None:
    pair, trials = make_pair(Sampling(batch=8, n_draws=64)), [TrialSpec(20, seed, 0.01) for seed in range(3)]
    masks = masks_of(pair, trials, 24)
    facts = torch.stack([make_problem(pair, trial, 36).mask > 0 for trial in trials])
    assert masks.shape == (24, 3, 36)
    assert (masks.sum(dim=-1) == 8).all()
    assert (masks[:, ~facts] == 0).all()
    epoch, again = masks[:8].sum(dim=0), masks[8:16].sum(dim=0)
    assert torch.equal(epoch, again), "64 draws are seen once in 8 batches, then once more"
    assert not torch.equal(masks[:8], masks[8:16]), "in another order"


def test_facts_drawn_once_each_are_seen_once_an_epoch_with_the_weight_they_have() -> None:
    pair = make_pair(Sampling(batch=5), prior="power")
    trial = TrialSpec(20, 0, 0.01)
    masks = masks_of(pair, [trial], 4)
    assert torch.allclose(masks.sum(dim=0)[0], make_problem(pair, trial, 36).mask)


def test_frequent_facts_are_drawn_more_often_under_a_power_law() -> None:
    pair = make_pair(Sampling(batch=64, n_draws=4096), prior="power")
    trial = TrialSpec(36, 0, 0.01)
    drawn = masks_of(pair, [trial], 64).sum(dim=(0, 1))
    weights = make_problem(pair, trial, 36).mask
    assert torch.corrcoef(torch.stack([drawn, weights]))[0, 1] > 0.98


def test_batches_are_the_same_in_any_company() -> None:
    pair = make_pair(Sampling(batch=8, n_draws=64))
    one, other = TrialSpec(20, 1, 0.01), TrialSpec(30, 2, 0.01)
    assert torch.equal(masks_of(pair, [one, other], 9)[:, 0], masks_of(pair, [one], 9)[:, 0])


def test_metrics_are_means_over_the_last_training_batches() -> None:
    found = {}
    for scored in (0, 3):
        pair = make_pair(Sampling(batch=8, n_draws=64, scored_batches=scored))
        group = LaneGroup(pair, 36, (TrialSpec(30, 0, 0.01), TrialSpec(30, 1, 0.01)))
        train_group(
            group, torch.device("cpu"), lambda t, _, s=scored: found.setdefault((s, t.seed), t), lambda *_: None
        )
    for seed in (0, 1):
        last_batches, all_facts = found[3, seed].metrics["accuracy"] * 24, found[0, seed].metrics["accuracy"] * 30
        assert abs(last_batches - round(last_batches)) < 1e-4, "a share of 3 batches of 8 facts"
        assert abs(all_facts - round(all_facts)) < 1e-4, "a share of the 30 facts"


def test_a_lane_that_diverges_among_the_scored_batches_takes_nobody_with_it() -> None:
    pair = make_pair(Sampling(batch=8, n_draws=64, scored_batches=30))
    calm = [TrialSpec(30, seed, 0.01) for seed in range(2)]
    wild = [TrialSpec(30, seed, 1e38) for seed in range(4)]
    found = {}
    train_group(
        LaneGroup(pair, 36, (*wild, *calm)),
        torch.device("cpu"),
        lambda t, _: found.setdefault((t.seed, t.learning_rate), t),
        lambda *_: None,
    )
    assert {found[seed, 1e38].status.value for seed in range(4)} == {"diverged"}
    assert {found[seed, 0.01].status.value for seed in range(2)} <= {"held", "not_held"}
