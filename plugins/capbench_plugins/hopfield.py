"""A modern Hopfield layer: the query is drawn to a stored pattern before values are read."""

from __future__ import annotations

from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from capbench import Architecture, hookimpl
from capbench_plugins.heads import CausalHeads, HeadMixer, is_later, join_heads, masked_softmax


class Hopfield(HeadMixer):
    """Hopfield layer: the state pattern is updated several times (Ramsauer et al. 2021, arXiv 2008.02217)."""

    name: ClassVar[str] = "hopfield"
    family: ClassVar[str] = "attention"

    n_updates: int = Field(2, ge=1, le=64, description="updates of the state; with 1 it is softmax attention")

    def mixer(self, d_model: int, length: int) -> nn.Module:
        """A layer of such heads."""
        return HopfieldHeads(d_model, self.n_heads, self.d_qk, self.d_vo, self.n_updates)


class HopfieldHeads(CausalHeads):
    """ξ <- softmax(β ξ Kᵀ) K, n_updates - 1 times, then softmax(β ξ Kᵀ) V W_O; β = 1 / √d_qk is in the first ξ.

    Values are projected from the stream, V = x W_V, where the paper's equation has V = K W_V.
    """

    def __init__(self, d: int, n_heads: int, d_qk: int, d_vo: int, n_updates: int) -> None:
        super().__init__(d, n_heads, d_qk, d_vo)
        self.n_updates = n_updates

    def mix(self, *parts: Tensor) -> Tensor:
        """Retrieval from every position."""
        q, k, v = parts
        beta = self.W_Q.shape[-1] ** -0.5
        for _ in range(self.n_updates - 1):
            q = beta * torch.einsum("bhqk,bkhe->bqhe", self.attention(q, k), k)
        return join_heads(torch.einsum("bhqk,bkhv->bqhv", self.attention(q, k), v), self.W_O)

    def attention(self, q: Tensor, k: Tensor) -> Tensor:
        """softmax(β ξ Kᵀ), (batch, heads, queries, keys)."""
        scores = torch.einsum("bqhe,bkhe->bhqk", q, k)
        return self.weights(scores, is_later(scores))

    def weights(self, scores: Tensor, is_later: Tensor) -> Tensor:
        """Softmax over the positions so far."""
        return masked_softmax(scores, is_later)


@hookimpl
def capbench_architectures() -> list[type[Architecture]]:
    """The Hopfield layer."""
    return [Hopfield]
