"""Ranks of three-way tensors: what is exact, what bounds them, and what can only be estimated.

A database of triples is the tensor D[k, q, v] = 1 iff (k, q) -> v is stored; a layer is the tensor
L[k, q, v] of its logits (Wong 2025, Paying Attention to Facts, arXiv 2502.05076). The rank of a
tensor is NP-hard, so functions named `..._estimate` are numerical and prove nothing.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Generator, Tensor

LEAST_ROUNDINGS = 100
"""Rounding errors, in units of the precision, that logits summed from larger terms may carry at any size."""
ITERATIONS = 300
"""Rounds of alternating least squares before a start is given up."""
LOOK_EVERY = 20
"""Rounds between two looks at the error of a fit."""
STALLED = 0.999
"""A start is given up when its error is still above this share of the last look's."""
RIDGE = 1e-8
"""Pull towards the previous factors, as a share of the mean curvature: keeps the systems solvable."""


class Database(NamedTuple):
    """Stored facts by number: keys, queries and values, each (facts,), and how many there are of each."""

    keys: Tensor
    queries: Tensor
    values: Tensor
    shape: tuple[int, int, int]


def database_tensor(database: Database) -> Tensor:
    """D of (K, Q, V): 1 where a triple is stored, else 0."""
    tensor = torch.zeros(database.shape, dtype=torch.float64, device=database.keys.device)
    tensor[database.keys, database.queries, database.values] = 1.0
    return tensor


def numerical_rank(matrices: Tensor) -> Tensor:
    """Ranks of (..., m, n) matrices up to the rounding of the precision that they come in.

    Slices of one tensor share its rounding, so a slice made small by cancellation is judged by the largest.
    """
    singular: Tensor = torch.linalg.svdvals(matrices.double())  # (..., min(m, n)), falling
    rounding = max(LEAST_ROUNDINGS, *matrices.shape[-2:]) * torch.finfo(matrices.dtype).eps * singular.max()
    rank: Tensor = (singular > rounding).sum(dim=-1)
    return rank


def flattening_ranks(tensor: Tensor) -> tuple[int, int, int]:
    """Matrix ranks of the tensor laid out by key, by query and by value: each a lower bound on its rank [derived]."""
    by_key, by_query, by_value = (int(numerical_rank(tensor.movedim(mode, 0).flatten(1))) for mode in range(3))
    return by_key, by_query, by_value


def distinct_values_bound(database: Database) -> int:
    """rank(D) <= min(sum over k of |V_k|, sum over q of |V_q|) [paper: Wong 2025, Prop 2.1]."""
    n_values = database.shape[2]
    under_keys = torch.unique(database.keys * n_values + database.values)
    under_queries = torch.unique(database.queries * n_values + database.values)
    return min(len(under_keys), len(under_queries))


def slice_rank_bound(tensor: Tensor) -> int:
    """rank(T) <= sum over v of rank(T[:, :, v]) [derived]; on a database never above Prop 2.1's bound."""
    return int(numerical_rank(tensor.movedim(2, 0)).sum())


def largest_query_slice_rank(tensor: Tensor) -> int:
    """The largest rank of T[:, q, :] over q; for a layer at most min(d, 1 + H d_vo) [derived]."""
    return int(numerical_rank(tensor.movedim(1, 0)).max())


def thresholded_softmax(logits: Tensor, tau: float) -> Tensor:
    """1 where the softmax over values is at least tau, else 0: the database that a layer states with confidence."""
    return (logits.softmax(dim=-1) >= tau).double()


def argmax_tensor(logits: Tensor) -> Tensor:
    """1 at the most likely value of every (k, q), else 0: the database that a layer answers with."""
    return torch.nn.functional.one_hot(logits.argmax(dim=-1), logits.shape[-1]).double()


def layer_tensor(W_E: Tensor, W_Q: Tensor, W_K: Tensor, W_V: Tensor, W_O: Tensor, W_U: Tensor, n_keys: int) -> Tensor:
    """L of (K, Q, V) for one attention layer with skip on "k q", read at q.

    L[k,q,v] = (x_q W_U)_v + sum over h of a_kq V[k,v] + (1 - a_kq) V[q,v], with V = W_E W_V W_O W_U and
    a_kq the attention of q to k among {k, q} [derived from L = E + sum over h of A V: Wong 2025].
    W_E is (K + Q, d), keys first; W_Q, W_K, W_V (heads, d, width); W_O (heads, d_vo, d); W_U (d, V).
    """
    x_q = W_E[n_keys:]  # (Q, d)
    scores = (W_E @ W_K) @ (x_q @ W_Q).mT / W_Q.shape[-1] ** 0.5  # (heads, K + Q, Q)
    to_itself = scores[:, n_keys:].diagonal(dim1=1, dim2=2)  # (heads, Q)
    a = torch.sigmoid(scores[:, :n_keys] - to_itself[:, None])  # (heads, K, Q): a softmax over two
    V = W_E @ W_V @ W_O @ W_U  # (heads, K + Q, V)
    from_keys = torch.einsum("hkq,hkv->kqv", a, V[:, :n_keys])
    from_queries = torch.einsum("hkq,hqv->kqv", 1 - a, V[:, n_keys:])
    return x_q @ W_U + from_keys + from_queries  # (K, Q, V)


def cp_rank_estimate(
    tensor: Tensor, generator: Generator, *, tolerance: float = 0.01, starts: int = 3, at_least: int = 1
) -> int:
    """An ESTIMATE of the rank: the least R at which alternating least squares fits within `tolerance`.

    The tolerance is on the relative error. Too high where every start ends in a poor optimum; too low
    where tensors of lower rank come arbitrarily near, as they can.
    """
    return _least_rank(tensor, torch.ones(tensor.shape[:2]), generator, tolerance, starts, at_least)


def effective_rank_estimate(
    tensor: Tensor, stored: Tensor, generator: Generator, *, tolerance: float = 0.01, starts: int = 3
) -> int:
    """An ESTIMATE of the effective rank: as `cp_rank_estimate`, but only the `stored` (K, Q) fibres must be right."""
    return _least_rank(tensor, stored, generator, tolerance, starts, 1)


def _least_rank(
    tensor: Tensor, stored: Tensor, generator: Generator, tolerance: float, starts: int, at_least: int
) -> int:
    """Bisection: one component more never makes the best fit worse. The tensor itself has at most `high`."""
    target, weight = tensor.detach().double().cpu(), stored.detach().double().cpu()
    target = target * weight[:, :, None]
    if not target.any():
        return 0
    low = at_least
    high = max(low, min(int(numerical_rank(target.movedim(mode, 0)).sum()) for mode in range(3)))
    while low < high:
        middle = (low + high) // 2
        fits = any(_fit_error(target, weight, middle, generator, tolerance) < tolerance for _ in range(starts))
        low, high = (low, middle) if fits else (middle + 1, high)
    return low


def _fit_error(target: Tensor, weight: Tensor, rank: int, generator: Generator, tolerance: float) -> float:
    """Relative error of one rank-R fit on the weighted fibres, from a random start."""
    A, B, C = (torch.randn(size, rank, generator=generator, dtype=target.dtype) for size in target.shape)
    by_key, by_query, by_value = (target.movedim(mode, 0).flatten(1) for mode in range(3))
    of_key, of_query = weight, weight.T
    if weight.all():  # every row has the same system to solve: build it once
        of_key, of_query = of_key[:1], of_query[:1]
    error = float("inf")
    for iteration in range(1, ITERATIONS + 1):
        A = _solved(A, _grams(of_key, B) * (C.T @ C), by_key @ _khatri_rao(B, C))
        B = _solved(B, _grams(of_query, A) * (C.T @ C), by_query @ _khatri_rao(A, C))
        C = _solved(C, _value_gram(_grams(of_key, B), A), by_value @ _khatri_rao(A, B))
        if iteration % LOOK_EVERY == 0:
            fit = (A @ _khatri_rao(B, C).T).view_as(target) * weight[:, :, None]
            last, error = error, float((fit - target).norm() / target.norm())
            if error < tolerance or error > STALLED * last:
                break
    return error


def _khatri_rao(first: Tensor, second: Tensor) -> Tensor:
    return (first[:, None] * second[None]).flatten(0, 1)  # (rows of first * rows of second, R)


def _grams(weight: Tensor, factor: Tensor) -> Tensor:
    """For each row of (n, m) weights, the weighted sum over m of the factor's outer products: (n, R, R)."""
    return (weight[:, None] * factor.T) @ factor


def _value_gram(grams: Tensor, A: Tensor) -> Tensor:
    """The system that all values share, (1, R, R), from those of the keys, which may be one for all."""
    if len(grams) == 1:
        return grams * (A.T @ A)
    return torch.einsum("krs,kr,ks->rs", grams, A, A)[None]


def _solved(previous: Tensor, gram: Tensor, right: Tensor) -> Tensor:
    """Rows a with gram a = right, held lightly to the previous rows; one gram for all rows, or one each."""
    n_systems, rank = gram.shape[:2]
    ridge = RIDGE * gram.diagonal(dim1=1, dim2=2).mean(1).clamp(min=1e-30)[:, None, None]
    root = torch.linalg.cholesky(gram + ridge * torch.eye(rank, dtype=gram.dtype))
    columns = (right.view(n_systems, -1, rank) + ridge * previous.view(n_systems, -1, rank)).mT  # (systems, R, rows)
    return torch.cholesky_solve(columns, root).mT.reshape(-1, rank)
