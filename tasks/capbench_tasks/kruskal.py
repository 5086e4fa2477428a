"""Linear independence of many small sets of vectors: the assumptions of a theorem, checked on data.

The Kruskal rank of a set is the largest k for which every k of its vectors are independent. To find
it is NP-hard, so a sample of the k-subsets is tested, as Mahdavi et al. do (arXiv 2306.02010, their code).
"""

from __future__ import annotations

import torch
from torch import Generator, Tensor

CLEAR = 1e-6
"""A vector nearer than this share of its length to the span of others counts as dependent on them."""
CHUNK = 512
"""Subsets tested in one go: few enough to stay in the cache, which makes it several times as fast."""


def full_rank_share(matrices: Tensor) -> float:
    """Share of (many, k, d) matrices whose k rows are linearly independent."""
    return float(has_full_rank(matrices).double().mean())


def kruskal_share(vectors: Tensor, k: int, n_subsets: int, generator: Generator) -> float:
    """Share of independent ones among random k-subsets of (many, d) vectors; of all together where they are fewer."""
    if len(vectors) <= k:
        return full_rank_share(vectors[None])
    subsets = random_subsets(len(vectors), k, n_subsets, generator)  # (n_subsets, k)
    independent = [has_full_rank(vectors[some]) for some in torch.split(subsets, CHUNK)]
    return float(torch.cat(independent).double().mean())


def has_full_rank(matrices: Tensor) -> Tensor:
    """Whether the rows of each (..., k, d) matrix are independent: none lies in the span of those before it."""
    k, d = matrices.shape[-2:]
    if k > d:
        return matrices.new_zeros(matrices.shape[:-2], dtype=torch.bool)
    length = matrices.double().norm(dim=-1, keepdim=True)
    rows = matrices.double() / length.clamp(min=torch.finfo(torch.float64).tiny)
    # QR has on the diagonal of R the distance of each row to that span, at a fraction of the cost of an SVD.
    R = torch.linalg.qr(rows.mT, mode="r").R  # (..., k, k)
    return torch.all(R.diagonal(dim1=-2, dim2=-1).abs() > CLEAR, dim=-1)


def random_subsets(n: int, k: int, n_subsets: int, generator: Generator) -> Tensor:
    """(n_subsets, k) numbers below n, distinct in each row and every k-subset as likely (Floyd's algorithm)."""
    chosen = torch.empty(n_subsets, 0, dtype=torch.int64)
    for last in range(n - k, n):
        drawn = torch.randint(last + 1, (n_subsets, 1), generator=generator)
        is_taken = (chosen == drawn).any(dim=1, keepdim=True)
        chosen = torch.cat([chosen, torch.where(is_taken, last, drawn)], dim=1)
    return chosen
