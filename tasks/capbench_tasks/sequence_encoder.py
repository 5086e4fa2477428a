"""The best sequence encoder: how well a rank-d table of logits can fit given next-token distributions.

Dana, Pydi & Chevaleyre, "Memorization in Attention-only Transformers", arXiv 2411.10115, Props 1-3.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

WINDOW = 10
"""L-BFGS iterations between two convergence checks."""
LEAST_PROBABILITY = 1e-9
"""Targets are raised to at least this in the starting point, to take logarithms; the fit uses them as they are."""


class FittedEncoder(NamedTuple):
    """The best logit table found: its KL on each fact in nats, and the norm of each fact's centred logits."""

    kl: Tensor
    norms: Tensor


def fit_encoder_kl(
    targets: Tensor, weights: Tensor, d: int, *, tolerance: float = 1e-3, max_iterations: int = 2000
) -> Tensor:
    """KL(target ‖ softmax E W) of each fact, as `fit_encoder` finds it."""
    return fit_encoder(targets, weights, d, tolerance=tolerance, max_iterations=max_iterations).kl


def fit_encoder(
    targets: Tensor, weights: Tensor, d: int, *, tolerance: float = 1e-3, max_iterations: int = 2000
) -> FittedEncoder:
    """The best logit table E W of rank d for (facts, n) targets, both of its columns (facts,) float64.

    E (facts, d) and W (d, n) are fitted to the (facts, n) targets by L-BFGS in float64, from a truncated
    SVD, until WINDOW iterations lower the weighted KL by less than the share `tolerance`. The problem is
    not convex, so the weighted mean is an upper estimate of the infimum: 0 where that is known to be 0,
    elsewhere the KL of a table that exists.
    """
    _check(targets, weights, d)
    targets, weights = targets.detach().double(), weights.detach().double()
    weights = weights / weights.mean()
    if has_zero_kl(targets, d):
        logits = targets.clamp(min=LEAST_PROBABILITY).log()  # (facts, n)
        return FittedEncoder(targets.new_zeros(len(targets)), _centred_norms(logits))
    factors = [factor.requires_grad_() for factor in _start(targets, weights, d)]
    _minimise(factors, targets, weights, tolerance, max_iterations)
    with torch.no_grad():
        logits = factors[0] @ factors[1]  # (facts, n)
        return FittedEncoder(kl_to_logits(targets, logits).clamp(min=0.0), _centred_norms(logits))


def _centred_norms(logits: Tensor) -> Tensor:
    """The norm of each row after its mean is taken off, to which softmax is blind."""
    norms: Tensor = torch.linalg.vector_norm(logits - logits.mean(dim=1, keepdim=True), dim=1)
    return norms


def has_zero_kl(targets: Tensor, d: int) -> bool:
    """Whether the infimum is known to be 0: d wide enough for any table, no more facts than d, or Dirac targets.

    d >= n - 1 and Dirac targets at d >= 2 are the paper's Props 1-3; facts <= d is derived.
    """
    n_facts, n_tokens = targets.shape
    return d >= min(n_tokens - 1, n_facts) or (d >= 2 and bool((targets.amax(dim=1) == 1).all()))


def kl_to_logits(targets: Tensor, logits: Tensor) -> Tensor:
    """KL(target ‖ softmax(logits)) of each row, in nats."""
    # F.kl_div computes the same but has no batching rule under vmap.
    terms = torch.xlogy(targets, targets) - targets * F.log_softmax(logits, dim=-1)  # (facts, n)
    return terms.sum(dim=-1)


def _check(targets: Tensor, weights: Tensor, d: int) -> None:
    if targets.ndim != 2 or weights.shape != targets.shape[:1]:
        raise ValueError(
            f"an encoder is fitted to (facts, n) targets with (facts,) weights, "
            f"got {tuple(targets.shape)} and {tuple(weights.shape)}"
        )
    if d < 1:
        raise ValueError(f"an encoder needs a width d >= 1, got {d}")
    if not bool((weights > 0).all()):
        raise ValueError("every weight must be positive; leave out the facts that do not count")


def _start(targets: Tensor, weights: Tensor, d: int) -> tuple[Tensor, Tensor]:
    """Factors of the rank-d table nearest to the targets' logits, rows centred: softmax is invariant to a shift."""
    logits = targets.clamp(min=LEAST_PROBABILITY).log()  # (facts, n)
    logits = logits - logits.mean(dim=1, keepdim=True)
    root = weights.sqrt().unsqueeze(1)
    left, scale, right = torch.linalg.svd(root * logits, full_matrices=False)
    half = scale[:d].sqrt()
    E, W = left[:, :d] * half / root, half.unsqueeze(1) * right[:d]  # (facts, d), (d, n)
    return E.contiguous(), W.contiguous()


def _minimise(factors: list[Tensor], targets: Tensor, weights: Tensor, tolerance: float, max_iterations: int) -> None:
    """Minimises the weighted KL over the factors, in place, until it converges or the iterations are used up."""
    optimiser = torch.optim.LBFGS(
        factors,
        max_iter=WINDOW,
        history_size=WINDOW,
        tolerance_grad=0.0,
        tolerance_change=0.0,
        line_search_fn="strong_wolfe",
    )

    def total_kl() -> Tensor:
        optimiser.zero_grad()
        with torch.enable_grad():
            total = (weights * kl_to_logits(targets, factors[0] @ factors[1])).sum()
        total.backward()  # type: ignore[no-untyped-call]
        return total

    before = math.inf
    for _ in range(max(1, max_iterations // WINDOW)):
        now = optimiser.step(total_kl).item()  # type: ignore[no-untyped-call]  # the KL at the start of the window
        if before - now <= tolerance * now or now <= len(weights) * LEAST_PROBABILITY:
            return
        before = now
