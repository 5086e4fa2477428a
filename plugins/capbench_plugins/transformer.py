"""One attention layer and an MLP: the model that the papers compare attention-only models with."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from capbench import Architecture, Lookup, Signature, find_shapes, hookimpl
from capbench_plugins.aot import AttentionOnly, require_lookup
from capbench_plugins.attention import head_grid, heads_fit, uniform

MOST_HIDDEN = 65536


class Transformer(Architecture):
    """A transformer block without LayerNorm, the MLP-based comparator of Dana et al. 2025 (arXiv 2411.10115)."""

    name: ClassVar[str] = "transformer"

    d_model: int = Field(10, ge=1, le=4096, description="d: width of embeddings and residual stream")
    n_heads: int = Field(1, ge=1, le=4096, description="H: number of heads")
    d_qk: int = Field(10, ge=1, le=4096, description="query/key width of a head")
    d_vo: int = Field(10, ge=1, le=4096, description="value/output width of a head")
    d_mlp: int = Field(
        60,
        ge=1,
        le=MOST_HIDDEN,
        description="hidden width of the MLP; 2 d_model (H - 1) matches H heads of width d_model",
    )
    positions: bool = Field(True, description="whether a learned vector is added at each position")

    def build(self, signature: Signature) -> nn.Module:
        """The module for a lookup task."""
        lookup = require_lookup(signature, self.name)
        return AttentionAndMlp(
            lookup, self.d_model, self.n_heads, self.d_qk, self.d_vo, self.d_mlp, positions=self.positions
        )

    def widths(self, signature: Signature) -> tuple[str, ...]:
        """Width of the residual stream, then of the MLP."""
        return ("d_model", "d_mlp")

    def shapes(self, signature: Signature, n_parameters: int) -> Sequence[Transformer]:
        """An MLP of any width beside one to four heads, no wider than the residual stream."""
        grid = {"d_mlp": range(1, MOST_HIDDEN + 1), **head_grid(signature), "n_heads": (1, 2, 4)}
        return find_shapes(self, signature, n_parameters, grid, is_useful=heads_fit)


class AttentionAndMlp(AttentionOnly):
    """T(t) = (y + GELU(y W_1 + b_1) W_2 + b_2) W_U, where y is the residual stream after attention."""

    def __init__(
        self, signature: Lookup, d: int, n_heads: int, d_qk: int, d_vo: int, d_mlp: int, positions: bool
    ) -> None:
        super().__init__(signature, d, n_heads, d_qk, d_vo, positions)
        self.W_1, self.b_1 = uniform(d, d_mlp, limit=1 / math.sqrt(d)), uniform(d_mlp, limit=1 / math.sqrt(d))
        self.W_2, self.b_2 = uniform(d_mlp, d, limit=1 / math.sqrt(d_mlp)), uniform(d, limit=1 / math.sqrt(d_mlp))

    def read_logits(self, y: Tensor) -> Tensor:
        """(slots, d) residual stream after attention -> (slots, n_classes) logits."""
        hidden = F.gelu(y @ self.W_1 + self.b_1)  # (slots, d_mlp)
        return (y + hidden @ self.W_2 + self.b_2) @ self.W_U


@hookimpl
def capbench_architectures() -> list[type[Architecture]]:
    """The transformer block."""
    return [Transformer]
