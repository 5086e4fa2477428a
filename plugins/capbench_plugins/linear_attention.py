"""Linear attention, a baseline for softmax attention: its weights cannot select one item sharply."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from capbench import Architecture, Lookup, Recall, Relation, Signature, UnsupportedSignature, find_shapes, hookimpl
from capbench_plugins.attention import head_grid, heads_fit, init_scales, mix_grid
from capbench_plugins.mha import RecallAttention, TokenAttention


class LinearAttention(Architecture):
    """`mha` with weights φ(q)·φ(k), normalised, φ = elu + 1 (Katharopoulos et al. 2020, arXiv 2006.16236)."""

    name: ClassVar[str] = "linear_attention"
    family: ClassVar[str] = "attention"

    d_model: int = Field(16, ge=1, le=4096, description="width of the token embeddings, on lookup tasks")
    n_heads: int = Field(4, ge=1, le=4096, description="H: number of heads")
    d_qk: int = Field(8, ge=1, le=4096, description="query/key width of a head")
    d_vo: int = Field(8, ge=1, le=4096, description="value/output width of a head")
    init_scale: float = Field(
        2.0, gt=0, description="initial query and key weights have standard deviation init_scale / sqrt(d)"
    )

    def build(self, signature: Signature) -> nn.Module:
        """The module for a lookup or recall task."""
        heads = (self.n_heads, self.d_qk, self.d_vo, self.init_scale)
        if isinstance(signature, Relation):
            raise UnsupportedSignature("relation scores have no softmax to replace, so this would be mha; use mha")
        if isinstance(signature, Recall):
            return LinearRecall(signature.d_input, signature.n_classes, *heads)
        return LinearTokens(signature, self.d_model, *heads)

    def widths(self, signature: Signature) -> tuple[str, ...]:
        """Heads first, then the value width of a head."""
        return ("n_heads", "d_vo")

    def shapes(self, signature: Signature, n_parameters: int) -> Sequence[LinearAttention]:
        """As in mha: more or fewer heads, no wider than what they read, at several initial scales."""
        grid = {**head_grid(signature), "init_scale": init_scales(signature)}
        is_useful = heads_fit if isinstance(signature, Lookup) else None
        return find_shapes(self, signature, n_parameters, grid, is_useful=is_useful)

    def state_size(self, signature: Signature, length: int) -> int | None:
        """One matrix per head, and the sum of the keys, on sequences of tokens."""
        return self.n_heads * self.d_qk * (self.d_vo + 1) if isinstance(signature, Lookup) else None


def features(x: Tensor) -> Tensor:
    """φ(x) = elu(x) + 1, positive everywhere."""
    return F.elu(x) + 1


def attend_linearly(queries: Tensor, contexts: Tensor, W_Q: Tensor, W_K: Tensor, W_V: Tensor, W_O: Tensor) -> Tensor:
    """Σ_h [Σ_n φ(q)·φ(k_n) v_n / Σ_n φ(q)·φ(k_n)] W_O with q = e W_Q, k_n = E_n W_K, v_n = E_n W_V."""
    q = features(queries @ W_Q)  # (heads, slots, d_qk)
    if contexts.shape[0] == 1:  # shared by all queries: projected once
        k, v = features(contexts[0] @ W_K), contexts[0] @ W_V  # (heads, n, d_qk), (heads, n, d_vo)
        weights = q @ k.mT  # (heads, slots, n)
        values = weights / weights.sum(dim=-1, keepdim=True) @ v  # (heads, slots, d_vo)
    else:
        k = features(torch.einsum("snd,hde->hsne", contexts, W_K))  # (heads, slots, n, d_qk)
        weights = torch.einsum("hse,hsne->shn", q, k)  # (slots, heads, n)
        mixed = weights / weights.sum(dim=-1, keepdim=True) @ contexts  # (slots, heads, d)
        values = mixed.transpose(0, 1) @ W_V  # (heads, slots, d_vo)
    return torch.einsum("hsv,hvo->so", values, W_O)


class LinearRecall(RecallAttention):
    """A query attends linearly to its context only."""

    def forward(self, contexts: Tensor, queries: Tensor) -> Tensor:
        """(slots or 1, n, d) contexts, (slots, d) queries -> (slots, n_classes) logits."""
        return attend_linearly(queries, contexts, *self.maps())


class LinearTokens(TokenAttention):
    """The last token attends linearly to all of them, itself included."""

    def forward(self, tokens: Tensor) -> Tensor:
        """(slots, length) tokens -> (slots, n_classes) logits."""
        x = self.W_E[tokens]  # (slots, length, d)
        return attend_linearly(x[:, -1], x, *self.maps())

    def read_grid(self) -> Tensor:
        """The logits of every pair of tokens, (n_combinations, n_classes); each token is projected only once."""
        first, last = (self.W_E[start:stop] for start, stop in self.signature.spans)
        q, own_k = features(last @ self.W_Q), features(last @ self.W_K)  # (heads, last, d_qk)
        to_first = features(first @ self.W_K) @ q.mT  # (heads, first, last)
        a = to_first / (to_first + (q * own_k).sum(dim=-1).unsqueeze(1))  # (heads, first, last)
        return mix_grid(a, first, last, self.W_V @ self.W_O).flatten(0, 1)


@hookimpl
def capbench_architectures() -> list[type[Architecture]]:
    """Linear attention."""
    return [LinearAttention]
