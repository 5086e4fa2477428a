"""Multi-head attention without skip or MLP: the layer whose capacity the papers count."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from capbench import Architecture, Heads, Relation, Signature, UnsupportedSignature, hookimpl


class Mha(Architecture):
    """Multi-head attention; on relation tasks only its key-query channel speaks."""

    name: ClassVar[str] = "mha"

    n_heads: int = Field(4, ge=1, le=4096, description="H: number of heads")
    d_qk: int = Field(8, ge=1, le=4096, description="query/key width of a head; D_K = n_heads * d_qk")
    init_scale: float = Field(
        2.0, gt=0, description="initial query and key weights have standard deviation init_scale / sqrt(d)"
    )

    def build(self, signature: Signature) -> nn.Module:
        """The module for a relation task."""
        if not isinstance(signature, Relation):
            raise UnsupportedSignature(
                f"mha scores relations between items; it has no read-out for {type(signature).__name__}"
            )
        return RelationScores(signature.d_item, self.n_heads, self.d_qk, self.init_scale)

    def heads(self, signature: Signature) -> Heads | None:
        """Its heads as the theorems count them."""
        if not isinstance(signature, Relation):
            return None
        return Heads(self.n_heads, signature.d_item, self.d_qk, d_vo=0)


class RelationScores(nn.Module):
    """Edge iff max over heads of (x_i W_Q)·(x_j W_K) exceeds a threshold (Adler 2025, arXiv 2509.22840, §2)."""

    def __init__(self, d_item: int, n_heads: int, d_qk: int, init_scale: float) -> None:
        super().__init__()
        std = init_scale / math.sqrt(d_item)
        self.W_Q = nn.Parameter(torch.randn(n_heads, d_item, d_qk) * std)
        self.W_K = nn.Parameter(torch.randn(n_heads, d_item, d_qk) * std)
        self.scale = nn.Parameter(torch.ones(()))
        self.threshold = nn.Parameter(torch.full((), 0.5))

    def forward(self, items: Tensor) -> Tensor:
        """(items, d) vectors -> (items, items) scores, positive where an edge is predicted."""
        queries = items @ self.W_Q  # (heads, items, d_qk)
        keys = items @ self.W_K  # (heads, items, d_qk)
        scores = (queries @ keys.mT).amax(dim=0)  # (items, items)
        return self.scale * (scores - self.threshold)


@hookimpl
def capbench_architectures() -> list[type[Architecture]]:
    """Multi-head attention."""
    return [Mha]
