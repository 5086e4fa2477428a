"""Linear independence of vectors and of random subsets of them."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from capbench_tasks.kruskal import CHUNK, full_rank_share, has_full_rank, kruskal_share, random_subsets


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@given(st.integers(1, 12), st.integers(1, 12), st.integers(0, 1000))
def test_subsets_are_distinct_indices_in_range(n: int, k: int, seed: int):
    k = min(n, k)
    subsets = random_subsets(n, k, 20, seeded(seed))
    assert subsets.shape == (20, k)
    assert all(len(set(row)) == k and set(row) <= set(range(n)) for row in subsets.tolist())


def test_every_subset_is_drawn_about_as_often():
    counts = Counter(tuple(sorted(row)) for row in random_subsets(5, 2, 20_000, seeded()).tolist())
    assert set(counts) == set(itertools.combinations(range(5), 2))
    assert all(abs(count - 2000) < 5 * math.sqrt(2000) for count in counts.values())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_full_rank_agrees_with_the_singular_values_at_any_scale(dtype: torch.dtype, scale: float):
    random = torch.rand(40, 4, 6, generator=seeded(), dtype=torch.float64)
    random[::2, 3] = random[::2, :3].mean(dim=1)  # every other one dependent
    expected = torch.linalg.matrix_rank(random) == 4
    assert expected.tolist() == [False, True] * 20
    if dtype is torch.float32:  # rounding moves the mean of three rows by 1e-7, which is within CLEAR
        random = random.float()
    assert has_full_rank(random * scale).tolist() == expected.tolist()


def test_a_zero_row_a_repeated_row_and_too_many_rows_are_dependent():
    identity = torch.eye(3)
    zero, repeated = identity.clone(), identity.clone()
    zero[1], repeated[2] = 0.0, repeated[0]
    assert has_full_rank(torch.stack([identity, zero, repeated])).tolist() == [True, False, False]
    assert not has_full_rank(torch.rand(4, 3, generator=seeded()))


def test_nearly_dependent_rows_do_not_hide_a_dependent_one():
    # The first two are 1e-4 apart, which would square to 1e-8 in their products; the third is between them.
    close = torch.tensor([[1.0, 0.0, 0.0], [1.0, 1e-4, 0.0], [2.0, 1e-4, 0.0]], dtype=torch.float64)
    assert has_full_rank(close[:2])
    assert not has_full_rank(close)


def test_share_counts_the_matrices_of_full_rank():
    matrices = torch.stack([torch.eye(2), torch.ones(2, 2), torch.eye(2), torch.eye(2)])
    assert full_rank_share(matrices) == 0.75


def test_kruskal_share_of_generic_vectors_is_one_up_to_their_width_and_zero_beyond():
    vectors = torch.rand(50, 6, generator=seeded())
    assert kruskal_share(vectors, 6, 300, seeded()) == 1.0
    assert kruskal_share(vectors, 7, 300, seeded()) == 0.0


def test_kruskal_share_of_one_repeated_vector_is_that_of_the_pairs_without_it():
    # Of C(4, 2) = 6 pairs of {a, a, b, c} one is dependent.
    vectors = torch.tensor([[1.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    n_subsets = 10 * CHUNK + 1
    assert kruskal_share(vectors, 2, n_subsets, seeded()) == pytest.approx(5 / 6, abs=0.03)


def test_fewer_vectors_than_k_are_tested_together():
    vectors = torch.eye(5)[:3]
    assert kruskal_share(vectors, 4, 10, seeded()) == 1.0
    assert kruskal_share(torch.cat([vectors[:2], vectors[:1]]), 4, 10, seeded()) == 0.0
