"""Ranks of databases and layers: bounds, estimates, and the ranks of real attention layers."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from capbench import Lookup
from capbench_plugins.aot import AttentionOnly
from capbench_tasks.tensor_rank import (
    Database,
    argmax_tensor,
    cp_rank_estimate,
    database_tensor,
    distinct_values_bound,
    effective_rank_estimate,
    flattening_ranks,
    largest_query_slice_rank,
    numerical_rank,
    slice_rank_bound,
    thresholded_softmax,
)

sizes = st.integers(1, 5)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def random_database(shape: tuple[int, int, int], load: int, seed: int) -> Database:
    K, Q, V = shape
    pair = torch.randperm(K * Q, generator=seeded(seed))[:load]
    return Database(pair // Q, pair % Q, torch.randint(V, (len(pair),), generator=seeded(seed + 1)), shape)


def diagonal(n: int) -> Database:
    return Database(torch.arange(n), torch.arange(n), torch.zeros(n, dtype=torch.int64), (n, n, 3))


def random_layer(K: int, Q: int, V: int, d: int, H: int, d_vo: int, seed: int) -> torch.Tensor:
    """The logits L, (K, Q, V), of an attention layer with normal weights."""
    module = AttentionOnly(Lookup(K + Q, 2, V, ((0, K), (K, K + Q))), d, H, 2, d_vo).double().requires_grad_(False)
    generator = seeded(seed)
    for weight in module.parameters():
        weight.normal_(generator=generator)
    return module.forward_grid().view(K, Q, V)


def test_a_database_tensor_is_one_exactly_at_its_triples():
    database = Database(torch.tensor([0, 1]), torch.tensor([1, 0]), torch.tensor([2, 2]), (2, 2, 3))
    tensor = database_tensor(database)
    assert tensor.nonzero().tolist() == [[0, 1, 2], [1, 0, 2]]
    assert tensor.sum() == 2


def test_five_diagonal_triples_with_one_value_have_rank_five_and_effective_rank_one():
    database = diagonal(5)
    tensor = database_tensor(database)
    assert flattening_ranks(tensor) == (5, 5, 1)
    assert distinct_values_bound(database) == slice_rank_bound(tensor) == 5
    assert cp_rank_estimate(tensor, seeded()) == 5
    assert effective_rank_estimate(tensor, tensor.sum(2), seeded()) == 1


def test_bounds_match_numbers_worked_by_hand():
    # key 0 has the values {0, 1}, key 1 has {0}: 3 pairs; query 0 has {0}, query 1 has {1}, query 2 has {0}: 3 pairs.
    database = Database(torch.tensor([0, 0, 1, 1]), torch.tensor([0, 1, 0, 2]), torch.tensor([0, 1, 0, 0]), (2, 3, 2))
    tensor = database_tensor(database)
    assert distinct_values_bound(database) == 3
    assert slice_rank_bound(tensor) == 2 + 1  # [[1,0,0],[1,0,1]] and [[0,1,0],[0,0,0]]
    assert flattening_ranks(tensor) == (2, 3, 2)


def test_a_constant_database_has_rank_one_however_large():
    database = Database(*torch.cartesian_prod(torch.arange(6), torch.arange(7)).T, torch.full((42,), 2), (6, 7, 4))
    tensor = database_tensor(database)
    assert slice_rank_bound(tensor) == max(flattening_ranks(tensor)) == cp_rank_estimate(tensor, seeded()) == 1
    assert distinct_values_bound(database) == 6


@settings(max_examples=300, deadline=None)
@given(sizes, sizes, sizes, st.integers(1, 25), st.integers(0, 10**6))
def test_lower_bounds_never_exceed_upper_bounds_on_databases(K, Q, V, load, seed):
    database = random_database((K, Q, V), load, seed)
    tensor, n_facts = database_tensor(database), len(database.keys)
    by_key, by_query, by_value = flattening_ranks(tensor)
    assert by_value == len(database.values.unique())
    assert max(by_key, by_query, by_value) <= slice_rank_bound(tensor) <= distinct_values_bound(database) <= n_facts


@pytest.mark.parametrize("seed", range(12))
def test_the_estimate_lies_between_the_bounds_and_effective_rank_below_it(seed):
    database = random_database((4, 4, 3), 4 + seed % 6, seed)
    tensor = database_tensor(database)
    estimate = cp_rank_estimate(tensor, seeded(seed))
    assert max(flattening_ranks(tensor)) <= estimate <= slice_rank_bound(tensor)
    assert 1 <= effective_rank_estimate(tensor, tensor.sum(2), seeded(seed)) <= estimate


@pytest.mark.parametrize("rank", [1, 2, 3, 4])
def test_the_estimate_finds_a_planted_rank(rank):
    A, B, C = (torch.randn(n, rank, generator=seeded(n), dtype=torch.float64) for n in (5, 6, 7))
    tensor = torch.einsum("kr,qr,vr->kqv", A, B, C)
    assert cp_rank_estimate(tensor, seeded(), tolerance=1e-3) == rank
    assert flattening_ranks(tensor) == (rank, rank, rank)


def test_an_empty_tensor_has_rank_zero():
    assert cp_rank_estimate(torch.zeros(2, 3, 4), seeded()) == 0


@settings(max_examples=200, deadline=None)
@given(sizes, sizes, sizes, sizes, st.integers(1, 3), st.integers(1, 3), st.integers(0, 10**6))
def test_random_layers_satisfy_the_rank_bounds(K, Q, V, d, H, d_vo, seed):
    L, side = random_layer(K, Q, V, d, H, d_vo, seed), min(K, Q)
    bound = min(min(d, Q, V) + H * d_vo * side, d * side)
    assert max(flattening_ranks(L)) <= bound
    assert flattening_ranks(L)[2] <= min(d, V)
    assert largest_query_slice_rank(L) <= min(d, 1 + H * d_vo)


@pytest.mark.parametrize("seed", range(4))
def test_the_estimated_rank_of_a_narrow_layer_satisfies_its_bound_and_a_wide_layer_has_more(seed):
    narrow, wide = random_layer(6, 6, 6, 1, 1, 1, seed), random_layer(6, 6, 6, 4, 1, 3, seed)
    assert cp_rank_estimate(narrow, seeded(), tolerance=1e-6) <= 6
    assert largest_query_slice_rank(narrow) == 1
    assert cp_rank_estimate(wide, seeded(), tolerance=1e-3) > 6


@pytest.mark.parametrize("n", [3, 8, 40])
def test_points_on_a_circle_have_rank_two_logits_whose_argmax_is_the_identity(n):
    angle = torch.arange(n, dtype=torch.float64) * (2 * math.pi / n)
    L = torch.cos(angle[:, None] - angle)[:, None]  # (n, 1, n): keys, one query, values
    assert max(flattening_ranks(L)) == 2
    assert torch.equal(argmax_tensor(L)[:, 0], torch.eye(n, dtype=torch.float64))
    assert slice_rank_bound(argmax_tensor(L)) == max(flattening_ranks(argmax_tensor(L))) == n
    confident = thresholded_softmax(
        1e4 * L, 0.95
    )  # scaled up, the logits still have rank 2 and softmax raises the rank as much as argmax
    assert torch.equal(confident, argmax_tensor(L))


def test_a_higher_threshold_states_no_more_triples():
    L = 3 * torch.randn(5, 5, 4, generator=seeded())
    counts = [thresholded_softmax(L, tau).sum().item() for tau in (0.5, 0.7, 0.9, 0.99)]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] > counts[-1]


def test_rounding_in_float32_does_not_raise_the_rank():
    exact = torch.outer(torch.randn(30, generator=seeded(1)), torch.randn(40, generator=seeded(2)))
    noisy = exact.float() * (1 + 1e-7 * torch.randn(30, 40, generator=seeded(3)))
    assert numerical_rank(noisy) == 1
    assert numerical_rank(noisy.double()) > 1
