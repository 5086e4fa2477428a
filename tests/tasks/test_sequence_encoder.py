"""The KL of the best sequence encoder: 0 where theory says so, elsewhere that of a table that exists."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from capbench_tasks.sequence_encoder import fit_encoder_kl, has_zero_kl, kl_to_logits


@pytest.fixture(autouse=True)
def one_thread():
    """On tables this small, more threads only cost time."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def distributions(n_facts: int, n_tokens: int, seed: int = 0, temperature: float = 0.5) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(n_facts, n_tokens, generator=generator, dtype=torch.float64)
    return torch.softmax(logits / temperature, dim=1)


def ones(n_facts: int) -> torch.Tensor:
    return torch.ones(n_facts, dtype=torch.float64)


def mean_encoder_kl(targets: torch.Tensor, weights: torch.Tensor, d: int, **options: float) -> float:
    kl = fit_encoder_kl(targets, weights, d, **options)
    return float((weights.double() * kl).sum() / weights.double().sum())


def test_kl_to_logits_of_a_biased_coin_modelled_as_fair_by_hand():
    coin = torch.tensor([[0.75, 0.25]], dtype=torch.float64)
    by_hand = 0.75 * math.log(1.5) + 0.25 * math.log(0.5)
    assert kl_to_logits(coin, torch.zeros(1, 2, dtype=torch.float64)).item() == pytest.approx(by_hand)


def test_kl_of_a_certain_token_is_finite_although_others_have_probability_zero():
    certain = torch.tensor([[0.0, 1.0, 0.0]])
    assert kl_to_logits(certain, torch.zeros(1, 3)).item() == pytest.approx(math.log(3))


@pytest.mark.parametrize("d", [5, 6, 20])
def test_width_n_minus_one_fits_any_table(d):
    assert mean_encoder_kl(distributions(30, 6), ones(30), d) == 0.0


def test_width_n_minus_two_does_not_fit_any_table():
    assert mean_encoder_kl(distributions(30, 6), ones(30), 4) > 0.01


def test_as_many_dimensions_as_facts_fit_any_table():
    assert mean_encoder_kl(distributions(4, 50), ones(4), 4) == 0.0


def test_a_table_of_low_rank_is_found_by_the_fit_itself():
    generator = torch.Generator().manual_seed(0)
    factors = torch.randn(40, 3, generator=generator).double(), torch.randn(3, 12, generator=generator).double()
    targets = torch.softmax(factors[0] @ factors[1], dim=1)
    assert not has_zero_kl(targets, 4)
    # Centring adds at most one to the rank: 3 dimensions and the shift.
    assert mean_encoder_kl(targets, ones(40), 4) < 1e-8


def test_the_fit_starts_from_a_table_of_low_enough_rank_itself_whatever_the_weights():
    generator = torch.Generator().manual_seed(0)
    factors = torch.randn(40, 3, generator=generator).double(), torch.randn(3, 12, generator=generator).double()
    targets = torch.softmax(factors[0] @ factors[1], dim=1)
    weights = torch.arange(1, 41).double() ** -2
    assert mean_encoder_kl(targets, weights, 4, max_iterations=1) < 1e-8


def test_single_right_tokens_need_two_dimensions_only():
    certain = torch.eye(20, dtype=torch.float64)
    assert mean_encoder_kl(certain, ones(20), 2) == 0.0
    # In one dimension at most two tokens can have the largest logit.
    assert mean_encoder_kl(certain, ones(20), 1) > 0.1


def test_nearly_certain_tokens_are_not_treated_as_certain():
    nearly = 0.9 * torch.eye(8, dtype=torch.float64) + 0.1 / 8
    assert not has_zero_kl(nearly, 2)


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 1000), d=st.integers(1, 6))
def test_no_random_table_of_the_same_rank_is_better(seed, d):
    targets = distributions(30, 8, seed)
    generator = torch.Generator().manual_seed(seed + 1)
    E, W = (torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in ((30, d), (d, 8)))
    assert mean_encoder_kl(targets, ones(30), d) <= kl_to_logits(targets, E @ W).mean().item()


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_more_width_gives_a_lower_kl_and_any_width_beats_the_uniform_guess(seed):
    targets = distributions(60, 10, seed)
    uniform = kl_to_logits(targets, torch.zeros_like(targets)).mean().item()
    by_width = [mean_encoder_kl(targets, ones(60), d, tolerance=1e-5) for d in (1, 2, 4, 6, 8)]
    assert [uniform, *by_width] == sorted([uniform, *by_width], reverse=True)


def test_the_default_tolerance_stops_within_three_percent_of_a_long_fit():
    targets = distributions(150, 20)
    short, long = (mean_encoder_kl(targets, ones(150), 5, tolerance=t) for t in (1e-3, 1e-7))
    assert long <= short <= 1.03 * long


def test_a_fit_cut_short_is_not_better_than_the_finished_one():
    targets = distributions(60, 12)
    short, finished = (mean_encoder_kl(targets, ones(60), 3, max_iterations=n) for n in (10, 2000))
    assert short > finished


def test_facts_with_a_large_weight_are_fitted_best():
    targets = distributions(40, 10)
    weights = torch.cat([ones(3) * 1000, ones(37)])
    heavy = fit_encoder_kl(targets, weights, 3)
    assert heavy[:3].mean() < 0.1 * fit_encoder_kl(targets, ones(40), 3)[:3].mean()


def test_the_scale_of_the_weights_does_not_matter():
    targets = distributions(40, 10)
    small, large = (mean_encoder_kl(targets, ones(40) * scale, 3) for scale in (1e-3, 1e3))
    assert small == pytest.approx(large, rel=1e-3)


def test_the_fit_works_without_gradients_and_in_float32():
    targets = distributions(40, 10)
    with torch.no_grad():
        assert mean_encoder_kl(targets.float(), ones(40).float(), 3) == pytest.approx(
            mean_encoder_kl(targets, ones(40), 3), rel=1e-3
        )


def test_the_targets_are_not_modified():
    targets = distributions(20, 10)
    before = targets.clone()
    fit_encoder_kl(targets, ones(20), 3)
    assert torch.equal(targets, before)
    assert not targets.requires_grad


@pytest.mark.parametrize(
    ("targets", "weights", "d", "message"),
    [
        (torch.ones(3), torch.ones(3), 1, r"\(facts, n\) targets"),
        (torch.ones(3, 2), torch.ones(2), 1, r"\(facts,\) weights"),
        (torch.ones(3, 2), torch.ones(3), 0, "d >= 1, got 0"),
        (torch.ones(3, 2), torch.zeros(3), 1, "weight must be positive"),
    ],
)
def test_bad_input_is_refused_with_the_rule(targets, weights, d, message):
    with pytest.raises(ValueError, match=message):
        fit_encoder_kl(targets, weights, d)
