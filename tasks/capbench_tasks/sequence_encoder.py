"""The best sequence encoder: how near a rank-d table of logits can come to given next-token distributions.

Dana, Pydi & Chevaleyre, "Memorization in Attention-only Transformers", arXiv 2411.10115, Props 1-3.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

WINDOW = 10
"""L-BFGS iterations between two looks at the progress."""
LEAST_PROBABILITY = 1e-9
"""Where the logarithm of a target is cut off for the starting point; the fit itself uses the target as it is."""


@dataclass(frozen=True)
class EncoderFit:
    """A fitted encoder, by what it leaves unexplained of each fact."""

    kl: Tensor
    """KL(target ‖ encoder) of each fact in nats, (facts,) float64."""
    converged: bool
    """Whether the last look found less progress than the tolerance; the KL is an upper estimate either way."""


def best_encoder_kl(
    targets: Tensor, weights: Tensor, d: int, *, tolerance: float = 1e-3, max_iterations: int = 2000
) -> float:
    """Weighted mean KL in nats of the best logit table W·E(t) of rank d: an upper estimate of the infimum.

    The problem is not convex, so the fit may stop above the infimum; it never reports less than a
    table that exists, except in the cases where the infimum is known to be 0.
    """
    fit = fit_encoder(targets, weights, d, tolerance=tolerance, max_iterations=max_iterations)
    weights = weights.to(fit.kl)
    return float((weights * fit.kl).sum() / weights.sum())


def fit_encoder(
    targets: Tensor, weights: Tensor, d: int, *, tolerance: float = 1e-3, max_iterations: int = 2000
) -> EncoderFit:
    """Fits E (facts, d) and W (d, n) to (facts, n) targets by L-BFGS in float64, from a truncated SVD.

    It has converged when WINDOW iterations lower the KL by less than the share `tolerance`.
    """
    _check(targets, weights, d)
    targets, weights = targets.detach().double(), weights.detach().double()
    weights = weights / weights.mean()
    if has_zero_kl(targets, d):
        return EncoderFit(targets.new_zeros(len(targets)), converged=True)
    factors = [factor.requires_grad_() for factor in _start(targets, weights, d)]
    converged = _descend(factors, targets, weights, tolerance, max_iterations)
    with torch.no_grad():
        kl = kl_to_logits(targets, factors[0] @ factors[1])
    return EncoderFit(kl.clamp(min=0.0), converged)


def has_zero_kl(targets: Tensor, d: int) -> bool:
    """Whether the infimum is known to be 0: enough width for any table, no more facts than width, or Dirac targets.

    d >= n - 1 and Dirac targets at d >= 2 are the paper's Props 1-3; facts <= d is derived.
    """
    n_facts, n_tokens = targets.shape
    return d >= min(n_tokens - 1, n_facts) or (d >= 2 and bool((targets.amax(dim=1) == 1).all()))


def kl_to_logits(targets: Tensor, logits: Tensor) -> Tensor:
    """KL(target ‖ softmax of logits) of each row, in nats."""
    # F.kl_div says the same but has no batching rule under vmap.
    surprise = torch.xlogy(targets, targets) - targets * F.log_softmax(logits, dim=-1)  # (facts, n)
    return surprise.sum(dim=-1)


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
    """The nearest rank-d table to the targets' logits, each row shifted to mean 0: softmax does not see a shift."""
    logits = targets.clamp(min=LEAST_PROBABILITY).log()
    logits = logits - logits.mean(dim=1, keepdim=True)
    root = weights.sqrt().unsqueeze(1)
    left, scale, right = torch.linalg.svd(root * logits, full_matrices=False)
    share = scale[:d].sqrt()
    E, W = left[:, :d] * share / root, share.unsqueeze(1) * right[:d]  # (facts, d), (d, n)
    return E.contiguous(), W.contiguous()


def _descend(factors: list[Tensor], targets: Tensor, weights: Tensor, tolerance: float, max_iterations: int) -> bool:
    """Minimises the weighted KL over the factors in place; whether progress ended before the iterations did."""
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
        now = optimiser.step(total_kl).item()  # type: ignore[no-untyped-call]  # the KL as the window began
        if before - now <= tolerance * now or now <= len(weights) * LEAST_PROBABILITY:
            return True
        before = now
    return False
