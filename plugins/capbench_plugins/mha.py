"""Multi-head attention without skip or MLP: the layer whose capacity the papers count."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from capbench import Architecture, Heads, Lookup, Problem, Recall, Relation, Signature, find_shapes, hookimpl
from capbench_plugins.attention import Maps, attend, attend_grid, gaussian, head_grid, heads_fit, init_scales
from capbench_plugins.relations import Readout, RelationScores, RoutedScores, SoftmaxScores, analyse_scores

SATURATED = 0.99
"""Attention to one vector counts as saturated above this [code]."""


class Mha(Architecture):
    """Multi-head attention: of a query over its context, of the last token over all, or between items."""

    name: ClassVar[str] = "mha"
    family: ClassVar[str] = "attention"

    d_model: int = Field(16, ge=1, le=4096, description="width of the token embeddings, on lookup tasks")
    n_heads: int = Field(4, ge=1, le=4096, description="H: number of heads")
    d_qk: int = Field(8, ge=1, le=4096, description="query/key width of a head; D_K = n_heads * d_qk")
    d_vo: int = Field(8, ge=1, le=4096, description="value/output width of a head, where values are used")
    readout: Readout = Field(
        "max",
        description="how relations are read; max: largest score over heads; softmax: largest attention weight over "
        "heads; routed: from the values that attention moves",
    )
    init_scale: float = Field(
        2.0, gt=0, description="initial query and key weights have standard deviation init_scale / sqrt(d)"
    )

    def build(self, signature: Signature) -> nn.Module:
        """The module for any of the three signatures."""
        if isinstance(signature, Relation):
            return self._relation(signature.d_item)
        if isinstance(signature, Recall):
            return RecallAttention(
                signature.d_input, signature.n_classes, self.n_heads, self.d_qk, self.d_vo, self.init_scale
            )
        return TokenAttention(signature, self.d_model, self.n_heads, self.d_qk, self.d_vo, self.init_scale)

    def _relation(self, d_item: int) -> nn.Module:
        if self.readout == "routed":
            return RoutedScores(d_item, self.n_heads, self.d_qk, self.d_vo, self.init_scale)
        scores = SoftmaxScores if self.readout == "softmax" else RelationScores
        return scores(d_item, self.n_heads, self.d_qk, self.init_scale)

    def widths(self, signature: Signature) -> tuple[str, ...]:
        """Heads first, then the width of a head: query/key width on relations, else value width."""
        return ("n_heads", "d_qk") if isinstance(signature, Relation) else ("n_heads", "d_vo")

    def shapes(self, signature: Signature, n_parameters: int) -> Sequence[Mha]:
        """More or fewer heads of any width up to that of what they read, at several initial scales."""
        grid = {**head_grid(signature), "init_scale": init_scales(signature)}
        if isinstance(signature, Relation) and self.readout == "routed":
            grid["d_vo"] = grid["d_qk"]
        is_useful = heads_fit if isinstance(signature, Lookup) else None
        return find_shapes(self, signature, n_parameters, grid, is_useful=is_useful)

    def heads(self, signature: Signature) -> Heads | None:
        """Its heads as the theorems count them; None with routed values, where scores alone do not decide."""
        if isinstance(signature, Relation):
            return None if self.readout == "routed" else Heads(self.n_heads, signature.d_item, self.d_qk, d_vo=0)
        d_model = signature.d_input if isinstance(signature, Recall) else self.d_model
        return Heads(self.n_heads, d_model, self.d_qk, self.d_vo)

    def analyse(self, module: nn.Module, problem: Problem) -> dict[str, float]:
        """On recall, saturation and the rank of the head outputs; on relations, the margin and what rounding leaves."""
        if isinstance(module, RelationScores):
            return analyse_scores(module, problem)
        return analyse_recall(module, problem) if isinstance(module, RecallAttention) else {}

    def state_size(self, signature: Signature, length: int) -> int | None:
        """The keys and values of all positions, on sequences of tokens."""
        return length * self.n_heads * (self.d_qk + self.d_vo) if isinstance(signature, Lookup) else None


class AttentionHeads(nn.Module):
    """The weights of one layer of heads that outputs logits."""

    def __init__(self, d: int, n_classes: int, n_heads: int, d_qk: int, d_vo: int, init_scale: float) -> None:
        super().__init__()
        self.W_Q = gaussian(n_heads, d, d_qk, std=init_scale / math.sqrt(d))
        self.W_K = gaussian(n_heads, d, d_qk, std=init_scale / math.sqrt(d))
        self.W_V = gaussian(n_heads, d, d_vo, std=1 / math.sqrt(d))
        self.W_O = gaussian(n_heads, d_vo, n_classes, std=1 / math.sqrt(n_heads * d_vo))

    def maps(self) -> Maps:
        """The four matrices of every head."""
        return self.W_Q, self.W_K, self.W_V, self.W_O


class RecallAttention(AttentionHeads):
    """Σ_h softmax(e W_Q W_Kᵀ Eᵀ / √d_qk) E W_V W_O: a query e attends to its context E only.

    Mahdavi et al. 2024, Memorization Capacity of Multi-Head Attention, arXiv 2306.02010.
    """

    def forward(self, contexts: Tensor, queries: Tensor) -> Tensor:
        """(slots or 1, n, d) contexts, (slots, d) queries -> (slots, n_classes) logits."""
        return attend(queries, contexts, *self.maps())

    def attention(self, contexts: Tensor, queries: Tensor) -> Tensor:
        """Each head's softmax(e W_Q W_Kᵀ Eᵀ / √d_qk), (heads, slots, n)."""
        probes = queries @ self.W_Q @ self.W_K.mT / math.sqrt(self.W_Q.shape[-1])  # (heads, slots, d)
        return (probes.unsqueeze(-2) @ contexts.mT).squeeze(-2).softmax(dim=-1)


def analyse_recall(module: RecallAttention, problem: Problem) -> dict[str, float]:
    """The share of (example, head) pairs in which one vector gets nearly all the attention, and the rank of Z.

    The threshold is that of the authors' code (Mahdavi et al. 2024, arXiv 2306.02010); Z, the stacked outputs of the
    heads before W_V, is that of its Proposition 2.
    """
    contexts, is_fact = problem.inputs[0], problem.mask > 0
    attention = module.attention(*problem.inputs).detach()[:, is_fact]  # (heads, examples, n)
    own = contexts[0] if len(contexts) == 1 else contexts[is_fact]  # (n, d), or one for each example
    mixed = attention @ own if own.dim() == 2 else (attention.unsqueeze(-2) @ own).squeeze(-2)
    Z = mixed.transpose(0, 1).flatten(1).double()  # (examples, heads * d)
    rounding = max(Z.shape) * torch.finfo(attention.dtype).eps
    return {
        "saturation_share": float((attention.amax(dim=-1) > SATURATED).double().mean()),
        "head_output_rank": float(torch.linalg.matrix_rank(Z, rtol=rounding)),
    }


class TokenAttention(AttentionHeads):
    """Σ_h softmax(x_S W_Q W_Kᵀ xᵀ / √d_qk) x W_V W_O with x_s = W_E[t_s]: the last token attends to all tokens."""

    def __init__(self, signature: Lookup, d_model: int, n_heads: int, d_qk: int, d_vo: int, init_scale: float) -> None:
        super().__init__(d_model, signature.n_classes, n_heads, d_qk, d_vo, init_scale)
        self.signature = signature
        self.W_E = gaussian(signature.n_tokens, d_model, std=1.0)
        if signature.length == 2:
            self.forward_grid = self.read_grid  # with two tokens, all pairs can be scored at once

    def forward(self, tokens: Tensor) -> Tensor:
        """(slots, length) tokens -> (slots, n_classes) logits."""
        x = self.W_E[tokens]  # (slots, length, d)
        return attend(x[:, -1], x, *self.maps())

    def read_grid(self) -> Tensor:
        """The logits of every pair of tokens, (n_combinations, n_classes); each token is projected only once."""
        first, last = (self.W_E[start:stop] for start, stop in self.signature.spans)
        return attend_grid(first, last, *self.maps()).flatten(0, 1)


@hookimpl
def capbench_architectures() -> list[type[Architecture]]:
    """Multi-head attention."""
    return [Mha]
