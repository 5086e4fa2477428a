"""Linear independence of many small sets of vectors: the assumptions of Mahdavi et al. 2024, checked on data.

The Kruskal rank of a set is the largest k for which any k of its vectors are independent. Finding it is
NP-hard, so a sample of the k-subsets is tested, as in the authors' code (arXiv 2306.02010).
"""

from __future__ import annotations

import torch
from torch import Generator, Tensor

CLEAR = 1e-6
"""A vector counts as dependent on others if its distance to their span is below this share of its length."""
CHUNK = 512
"""Subsets tested in one batch: small enough to stay in the cache, which is several times faster."""


def full_rank_share(matrices: Tensor) -> float:
    """Share of (many, k, d) matrices whose k rows are linearly independent."""
    return float(has_full_rank(matrices).double().mean())


def kruskal_share(vectors: Tensor, k: int, n_subsets: int, generator: Generator) -> float:
    """Share of random k-subsets of (many, d) vectors that are independent; with at most k vectors, of the whole set."""
    if len(vectors) <= k:
        return full_rank_share(vectors[None])
    subsets = random_subsets(len(vectors), k, n_subsets, generator)  # (n_subsets, k)
    independent = [has_full_rank(vectors[chunk]) for chunk in torch.split(subsets, CHUNK)]
    return float(torch.cat(independent).double().mean())


def kruskal_rank(vectors: Tensor, at_most: int, n_subsets: int) -> int:
    """The largest k up to `at_most` for which every k-subset in a random sample is independent, by bisection."""
    low, high = 0, at_most
    while low < high:
        middle = (low + high + 1) // 2
        share = kruskal_share(vectors, middle, n_subsets, torch.Generator().manual_seed(0))
        low, high = (middle, high) if share == 1 else (low, middle - 1)
    return low


def has_full_rank(matrices: Tensor) -> Tensor:
    """Whether the rows of each (..., k, d) matrix are independent: none lies in the span of those before it."""
    k, d = matrices.shape[-2:]
    if k > d:
        return matrices.new_zeros(matrices.shape[:-2], dtype=torch.bool)
    length = matrices.double().norm(dim=-1, keepdim=True)
    rows = matrices.double() / length.clamp(min=torch.finfo(torch.float64).tiny)
    # The diagonal of R holds the distance of each row to that span; QR costs a fraction of an SVD.
    R = torch.linalg.qr(rows.mT, mode="r").R  # (..., k, k)
    return torch.all(R.diagonal(dim1=-2, dim2=-1).abs() > CLEAR, dim=-1)


def random_subsets(n: int, k: int, n_subsets: int, generator: Generator) -> Tensor:
    """(n_subsets, k) indices below n, distinct in each row, every k-subset equally likely (Floyd's algorithm)."""
    chosen = torch.empty(n_subsets, 0, dtype=torch.int64)
    for last in range(n - k, n):
        drawn = torch.randint(last + 1, (n_subsets, 1), generator=generator)
        is_taken = (chosen == drawn).any(dim=1, keepdim=True)
        chosen = torch.cat([chosen, torch.where(is_taken, last, drawn)], dim=1)
    return chosen
