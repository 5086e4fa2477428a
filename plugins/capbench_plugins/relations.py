"""Three ways to read from attention heads which items are related."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn

from capbench_plugins.attention import gaussian

Readout = Literal["max", "softmax", "routed"]


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

    def forward(self, items: Tensor) -> Tensor:
        """(items, d) vectors -> (items, items) scores, positive where an edge is predicted."""
        scores = max_over_heads(self.head_scores(items))  # (items, items)
        return self.log_scale.exp() * (scores - self.threshold)

    def head_scores(self, items: Tensor) -> Tensor:
        """(x_i W_Q)·(x_j W_K) in each head, (heads, items, items)."""
        return project(items, self.W_Q) @ project(items, self.W_K).mT


class SoftmaxScores(RelationScores):
    """Edge iff some head's attention weight a_ij = softmax_j of its scores exceeds a threshold.

    A capbench variant in the spirit of version 3 of Adler 2025, which normalises by softmax. The logarithms of
    weight and threshold are compared: the same decision, with gradients that do not vanish with the weight. A
    uniform weight 1/m counts as 0 before the threshold.
    """

    def forward(self, items: Tensor) -> Tensor:
        """(items, d) vectors -> (items, items) scores, positive where an edge is predicted."""
        log_a = max_over_heads(self.head_scores(items).log_softmax(dim=-1))  # (items, items)
        return self.log_scale.exp() * (log_a + math.log(len(items)) - self.threshold)


class RoutedScores(RelationScores):
    """Edge iff y_i·x_j exceeds a threshold, where y_i = Σ_h Σ_j a^h_ij x_j W_V W_O is the output of attention at i.

    A capbench variant in the spirit of the value routing in version 3 of Adler 2025: the relation has to pass
    through the softmax, the value width and the sum over heads.
    """

    def __init__(self, d_item: int, n_heads: int, d_qk: int, d_vo: int, init_scale: float) -> None:
        super().__init__(d_item, n_heads, d_qk, init_scale)
        self.W_V = gaussian(n_heads, d_item, d_vo, std=init_scale / math.sqrt(d_item))
        self.W_O = gaussian(n_heads, d_vo, d_item, std=init_scale / math.sqrt(n_heads * d_vo))

    def forward(self, items: Tensor) -> Tensor:
        """(items, d) vectors -> (items, items) scores, positive where an edge is predicted."""
        a = self.head_scores(items).softmax(dim=-1)  # (heads, items, items)
        values = a @ (items @ self.W_V)  # (heads, items, d_vo)
        y = torch.einsum("hiv,hvd->id", values, self.W_O)  # (items, d)
        return self.log_scale.exp() * (y @ items.mT - self.threshold)


def project(items: Tensor, W: Tensor) -> Tensor:
    """(items, d) vectors times each head's (d, width) matrix, as one wide product: (heads, items, width)."""
    wide = items @ W.transpose(0, 1).flatten(1)  # (items, heads * width)
    return wide.view(len(items), len(W), -1).transpose(0, 1)


def max_over_heads(scores: Tensor) -> Tensor:
    """The largest of (heads, …) scores over the heads."""
    # `max` keeps the index of the maximum; `amax` searches for it again in the backward pass.
    return scores.max(dim=0).values
