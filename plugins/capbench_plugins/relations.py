"""Three ways to read from attention heads which items are related."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call

from capbench import Problem
from capbench_plugins.attention import gaussian

Readout = Literal["max", "softmax", "routed"]
ABSENT = -1e4
"""Added to the score of an item that is not in the context: its weight is 0 in float32."""
ROUNDED_BITS = (2, 3, 4, 6, 8)
"""Bits per weight to which the weights of a trained model are rounded."""


class RelationScores(nn.Module):
    """Edge iff max over heads of (x_i W_Q)·(x_j W_K) exceeds a threshold (Adler 2025, arXiv 2509.22840, §2).

    The learned scale is kept positive: a negative one would make the rule "iff all heads are below the threshold",
    which is another readout with another capacity.
    """

    def __init__(self, d_item: int, n_heads: int, d_qk: int, init_scale: float) -> None:
        super().__init__()
        std = init_scale / math.sqrt(d_item)
        self.W_Q = gaussian(n_heads, d_item, d_qk, std=std)
        self.W_K = gaussian(n_heads, d_item, d_qk, std=std)
        self.log_scale = nn.Parameter(torch.zeros(()))
        self.threshold = nn.Parameter(torch.full((), 0.5))

    def forward(self, items: Tensor, contexts: Tensor | None = None) -> Tensor:
        """(items, d) vectors -> (items, items) scores, positive where an edge is predicted, in any context."""
        scores = max_over_heads(self.head_scores(items))  # (items, items)
        return self.log_scale.exp() * (scores - self.threshold)

    def head_scores(self, items: Tensor) -> Tensor:
        """(x_i W_Q)·(x_j W_K) in each head, (heads, items, items)."""
        return project(items, self.W_Q) @ project(items, self.W_K).mT


class SoftmaxScores(RelationScores):
    """Edge iff some head's attention weight a_ij = softmax_j of its scores in the context exceeds a threshold.

    A capbench variant in the spirit of version 3 of Adler 2025, which normalises by softmax. The logarithms of
    weight and threshold are compared: the same decision, with gradients that do not vanish with the weight. A
    uniform weight 1/|C| counts as 0 before the threshold.
    """

    def forward(self, items: Tensor, contexts: Tensor | None = None) -> Tensor:
        """(items, d) vectors and (contexts, items) -> (contexts, items, items) scores; one context has no axis."""
        log_a = max_over_heads(in_context(self.head_scores(items), contexts).log_softmax(dim=-1))
        log_size = math.log(len(items)) if contexts is None else contexts.sum(dim=-1).log()[:, None, None]
        return self.log_scale.exp() * (log_a + log_size - self.threshold)


class RoutedScores(RelationScores):
    """Edge iff y_i·x_j exceeds a threshold, where y_i = Σ_h Σ_j a^h_ij x_j W_V W_O is the output of attention at i.

    A capbench variant in the spirit of the value routing in version 3 of Adler 2025: the relation has to pass
    through the softmax, the value width and the sum over heads.
    """

    def __init__(self, d_item: int, n_heads: int, d_qk: int, d_vo: int, init_scale: float) -> None:
        super().__init__(d_item, n_heads, d_qk, init_scale)
        self.W_V = gaussian(n_heads, d_item, d_vo, std=init_scale / math.sqrt(d_item))
        self.W_O = gaussian(n_heads, d_vo, d_item, std=init_scale / math.sqrt(n_heads * d_vo))

    def forward(self, items: Tensor, contexts: Tensor | None = None) -> Tensor:
        """(items, d) vectors and (contexts, items) -> (contexts, items, items) scores; one context has no axis."""
        a = in_context(self.head_scores(items), contexts).softmax(dim=-1)  # (heads, [contexts,] items, items)
        values = items @ self.W_V  # (heads, items, d_vo)
        routed = a @ (values if contexts is None else values.unsqueeze(1))  # (heads, [contexts,] items, d_vo)
        y = torch.einsum("h...iv,hvd->...id", routed, self.W_O)  # ([contexts,] items, d)
        return self.log_scale.exp() * (y @ items.mT - self.threshold)


def in_context(scores: Tensor, contexts: Tensor | None) -> Tensor:
    """(heads, items, items) scores in each context, (heads, contexts, items, items), with those of absent items low."""
    if contexts is None:
        return scores
    # A finite number, because a softmax over nothing but -inf has no gradient.
    return scores.unsqueeze(1) + ABSENT * (1 - contexts.unsqueeze(1))  # (heads, contexts, items, items)


def project(items: Tensor, W: Tensor) -> Tensor:
    """(items, d) vectors times each head's (d, width) matrix, as one wide product: (heads, items, width)."""
    wide = items @ W.transpose(0, 1).flatten(1)  # (items, heads * width)
    return wide.view(len(items), len(W), -1).transpose(0, 1)


def max_over_heads(scores: Tensor) -> Tensor:
    """The largest of (heads, …) scores over the heads."""
    # `max` keeps the index of the maximum; `amax` searches for it again in the backward pass.
    return scores.max(dim=0).values


def analyse_scores(module: RelationScores, problem: Problem) -> dict[str, float]:
    """The margin of a trained model, and its F1 after its query and key weights are rounded to a few bits.

    The margin is that of constant-margin recovery (Adler 2025, arXiv 2509.22840, Definition 7.1): how far every edge
    is above the threshold and every other pair below it, as a share of the largest score; negative if a pair is wrong.
    """
    edges = problem.targets > 0
    scores = module(*problem.inputs).detach()  # (items, items), or one such table per context
    is_scored = (problem.mask > 0).expand_as(scores)
    clear = torch.where(edges.expand_as(scores), scores, -scores)[is_scored]
    found = {"margin": float(clear.min() / scores[is_scored].abs().max().clamp(min=1e-30))}
    for bits in ROUNDED_BITS:
        rounded = functional_call(module, _rounded(module, bits), problem.inputs).detach()
        found[f"f1_at_{bits}_bits"] = _f1((rounded > 0)[is_scored], edges.expand_as(scores)[is_scored])
    return found


def _rounded(module: RelationScores, bits: int) -> dict[str, Tensor]:
    """W_Q and W_K with each head's matrix rounded to 2^bits - 1 evenly spaced values around 0."""
    return {name: round_weights(getattr(module, name).detach(), bits) for name in ("W_Q", "W_K")}


def round_weights(W: Tensor, bits: int) -> Tensor:
    """(heads, …) weights, each head's on a grid of 2^bits - 1 values from its largest magnitude to minus that."""
    steps = max(1, 2 ** (bits - 1) - 1)
    largest = W.abs().flatten(1).amax(dim=1).clamp(min=1e-30).view(-1, *[1] * (W.dim() - 1))
    rounded: Tensor = (W / largest * steps).round() / steps * largest
    return rounded


def _f1(predicted: Tensor, edges: Tensor) -> float:
    """F1 of predicted edges among the scored pairs."""
    total = int(predicted.sum()) + int(edges.sum())
    return 2 * int((predicted & edges).sum()) / total if total else 1.0
