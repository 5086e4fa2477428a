"""Ranks of three-way tensors: exact matrix ranks, bounds on the tensor rank, and estimates of it.

A database of triples is the tensor D[k, q, v] = 1 iff (k, q) -> v is stored; a layer is the tensor
L[k, q, v] of its logits (Wong 2025, Paying Attention to Facts, arXiv 2502.05076). Computing the rank
of a tensor is NP-hard, so functions named `..._estimate` are numerical and prove nothing.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Generator, Tensor

LEAST_ROUNDINGS = 100
"""Rounding error assumed at any size, in units of the precision: logits are sums of larger terms."""
ITERATIONS = 300
"""Iterations of alternating least squares before a random start is given up."""
CHECK_EVERY = 20
"""Iterations between two checks of the error of a fit."""
STALLED = 0.999
"""A start is given up when its error is still above this share of the one at the previous check."""
RIDGE = 1e-8
"""Pull towards the previous factors, as a share of the mean curvature: keeps the systems solvable."""


class Database(NamedTuple):
    """Stored facts as indices: keys, queries and values, each (facts,); and the sizes (K, Q, V)."""

    keys: Tensor
    queries: Tensor
    values: Tensor
    shape: tuple[int, int, int]


def database_tensor(database: Database) -> Tensor:
    """D, of shape (K, Q, V): 1 where a triple is stored, else 0."""
    tensor = torch.zeros(database.shape, dtype=torch.float64, device=database.keys.device)
    tensor[database.keys, database.queries, database.values] = 1.0
    return tensor


def numerical_rank(matrices: Tensor) -> Tensor:
    """Ranks of (..., m, n) matrices, up to rounding in their own precision.

    Slices of one tensor share its rounding error, so the largest singular value of all sets the threshold.
    """
    singular: Tensor = torch.linalg.svdvals(matrices.double())  # (..., min(m, n)), descending
    rounding = max(LEAST_ROUNDINGS, *matrices.shape[-2:]) * torch.finfo(matrices.dtype).eps * singular.max()
    rank: Tensor = (singular > rounding).sum(dim=-1)
    return rank


def flattening_ranks(tensor: Tensor) -> tuple[int, int, int]:
    """Matrix ranks of the tensor flattened by key, by query and by value: lower bounds on its rank [derived]."""
    by_key, by_query, by_value = (int(numerical_rank(tensor.movedim(mode, 0).flatten(1))) for mode in range(3))
    return by_key, by_query, by_value


def distinct_values_bound(database: Database) -> int:
    """rank(D) <= min(sum over k of |V_k|, sum over q of |V_q|) [paper: Wong 2025, Prop 2.1]."""
    n_values = database.shape[2]
    under_keys = torch.unique(database.keys * n_values + database.values)
    under_queries = torch.unique(database.queries * n_values + database.values)
    return min(len(under_keys), len(under_queries))


def slice_rank_bound(tensor: Tensor) -> int:
    """rank(T) <= sum over v of rank(T[:, :, v]) [derived]; on a database at most the bound of Prop 2.1."""
    return int(numerical_rank(tensor.movedim(2, 0)).sum())


def largest_query_slice_rank(tensor: Tensor) -> int:
    """The largest rank of T[:, q, :] over q; for a layer at most min(d, 1 + H d_vo) [derived]."""
    return int(numerical_rank(tensor.movedim(1, 0)).max())


def thresholded_softmax(logits: Tensor, tau: float) -> Tensor:
    """1 where the softmax over values is at least tau, else 0: the database that a layer states with confidence."""
    return (logits.softmax(dim=-1) >= tau).double()


def argmax_tensor(logits: Tensor) -> Tensor:
    """1 at the most likely value of every (k, q), else 0: the database of a layer's answers."""
    return torch.nn.functional.one_hot(logits.argmax(dim=-1), logits.shape[-1]).double()


def cp_rank_estimate(
    tensor: Tensor, generator: Generator, *, tolerance: float = 0.01, starts: int = 3, at_least: int = 1
) -> int:
    """An estimate of the rank: the smallest R at which alternating least squares fits within `tolerance`.

    The tolerance is on the relative error. The estimate is too high if every start ends in a poor
    optimum, and too low if tensors of lower rank come arbitrarily close, which is possible.
    """
    return _least_rank(tensor, torch.ones(tensor.shape[:2]), generator, tolerance, starts, at_least)


def effective_rank_estimate(
    tensor: Tensor, stored: Tensor, generator: Generator, *, tolerance: float = 0.01, starts: int = 3
) -> int:
    """An estimate of the effective rank: like `cp_rank_estimate`, but only the `stored` (K, Q) fibres must fit."""
    return _least_rank(tensor, stored, generator, tolerance, starts, 1)


def _least_rank(
    tensor: Tensor, stored: Tensor, generator: Generator, tolerance: float, starts: int, at_least: int
) -> int:
    """The smallest rank that fits, by bisection: one component more never makes the best fit worse."""
    target, weight = tensor.detach().double().cpu(), stored.detach().double().cpu()
    target = target * weight[:, :, None]
    if not target.any():
        return 0
    low = at_least
    # The rank is at most the sum of the slices' ranks in any direction.
    high = max(low, min(int(numerical_rank(target.movedim(mode, 0)).sum()) for mode in range(3)))
    while low < high:
        middle = (low + high) // 2
        fits = any(_fit_error(target, weight, middle, generator, tolerance) < tolerance for _ in range(starts))
        low, high = (low, middle) if fits else (middle + 1, high)
    return low


def _fit_error(target: Tensor, weight: Tensor, rank: int, generator: Generator, tolerance: float) -> float:
    """Relative error on the weighted fibres of one rank-R fit Σ_r A_kr B_qr C_vr, from a random start."""
    A, B, C = (torch.randn(size, rank, generator=generator, dtype=target.dtype) for size in target.shape)
    by_key, by_query, by_value = (target.movedim(mode, 0).flatten(1) for mode in range(3))
    of_key, of_query = weight, weight.T
    if weight.all():  # all rows share one linear system: build it once
        of_key, of_query = of_key[:1], of_query[:1]
    error = float("inf")
    for iteration in range(1, ITERATIONS + 1):
        A = _solve(A, _grams(of_key, B) * (C.T @ C), by_key @ _khatri_rao(B, C))
        B = _solve(B, _grams(of_query, A) * (C.T @ C), by_query @ _khatri_rao(A, C))
        C = _solve(C, _value_gram(_grams(of_key, B), A), by_value @ _khatri_rao(A, B))
        if iteration % CHECK_EVERY == 0:
            fit = (A @ _khatri_rao(B, C).T).view_as(target) * weight[:, :, None]
            last, error = error, float((fit - target).norm() / target.norm())
            if error < tolerance or error > STALLED * last:
                break
    return error


def _khatri_rao(first: Tensor, second: Tensor) -> Tensor:
    return (first[:, None] * second[None]).flatten(0, 1)  # (rows of first * rows of second, R)


def _grams(weight: Tensor, factor: Tensor) -> Tensor:
    """For each row of (n, m) weights, the weighted sum over m of the factor's outer products, (n, R, R)."""
    return (weight[:, None] * factor.T) @ factor


def _value_gram(grams: Tensor, A: Tensor) -> Tensor:
    """The linear system shared by all values, (1, R, R), from those of the keys, of which there may be only one."""
    if len(grams) == 1:
        return grams * (A.T @ A)
    return torch.einsum("krs,kr,ks->rs", grams, A, A)[None]


def _solve(previous: Tensor, gram: Tensor, right: Tensor) -> Tensor:
    """Rows a with gram a = right, regularised towards the previous rows; one gram for all rows, or one per row."""
    n_systems, rank = gram.shape[:2]
    ridge = RIDGE * gram.diagonal(dim1=1, dim2=2).mean(1).clamp(min=1e-30)[:, None, None]
    root = torch.linalg.cholesky(gram + ridge * torch.eye(rank, dtype=gram.dtype))
    columns = (right.view(n_systems, -1, rank) + ridge * previous.view(n_systems, -1, rank)).mT  # (systems, R, rows)
    return torch.cholesky_solve(columns, root).mT.reshape(-1, rank)
