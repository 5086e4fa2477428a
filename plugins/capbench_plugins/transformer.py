"""One attention layer and an MLP: the model that the papers compare attention-only models with."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from capbench import Architecture, Lookup, Signature, find_shapes, hookimpl
from capbench_plugins.aot import AttentionOnly, CausalLayer, require_lookup
from capbench_plugins.attention import head_grid, heads_fit, uniform

MOST_HIDDEN = 65536


class Transformer(Architecture):
    """A transformer block without LayerNorm, the MLP-based comparator of Dana et al. 2025 (arXiv 2411.10115)."""

    name: ClassVar[str] = "transformer"
    family: ClassVar[str] = "attention"
    later_fields: ClassVar = {"n_layers": 1}

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
    n_layers: int = Field(1, ge=1, le=64, description="blocks of attention and MLP, one after the other")
    positions: bool = Field(True, description="whether a learned vector is added at each position")

    def build(self, signature: Signature) -> nn.Module:
        """The module for a lookup task."""
        lookup = require_lookup(signature, self.name)
        return AttentionAndMlp(
            lookup, self.d_model, self.n_heads, self.d_qk, self.d_vo, self.d_mlp, self.positions, self.n_layers
        )

    def widths(self, signature: Signature) -> tuple[str, ...]:
        """Width of the residual stream, then of the MLP."""
        return ("d_model", "d_mlp")

    def shapes(self, signature: Signature, n_parameters: int) -> Sequence[Transformer]:
        """An MLP of any width beside one to four heads, no wider than the residual stream."""
        grid = {"d_mlp": range(1, MOST_HIDDEN + 1), **head_grid(signature), "n_heads": (1, 2, 4)}
        return find_shapes(self, signature, n_parameters, grid, is_useful=heads_fit)

    def state_size(self, signature: Signature, length: int) -> int | None:
        """The keys and values of all positions in all blocks."""
        return length * self.n_layers * self.n_heads * (self.d_qk + self.d_vo)


class AttentionAndMlp(AttentionOnly):
    """T(t) = (y + GELU(y W_1 + b_1) W_2 + b_2) W_U, where y is the residual stream after the last attention."""

    def __init__(
        self,
        signature: Lookup,
        d: int,
        n_heads: int,
        d_qk: int,
        d_vo: int,
        d_mlp: int,
        positions: bool,
        n_layers: int = 1,
    ) -> None:
        super().__init__(signature, d, n_heads, d_qk, d_vo, positions, n_layers)
        self.earlier = nn.ModuleList(CausalBlock(d, n_heads, d_qk, d_vo, d_mlp) for _ in range(n_layers - 1))
        self.W_1, self.b_1, self.W_2, self.b_2 = initial_mlp(d, d_mlp)

    def read_logits(self, y: Tensor) -> Tensor:
        """(slots, d) residual stream after attention -> (slots, n_classes) logits."""
        hidden = F.gelu(y @ self.W_1 + self.b_1)  # (slots, d_mlp)
        return (y + hidden @ self.W_2 + self.b_2) @ self.W_U


class CausalBlock(CausalLayer):
    """Causal attention and an MLP at every position, each added to the residual stream."""

    def __init__(self, d: int, n_heads: int, d_qk: int, d_vo: int, d_mlp: int) -> None:
        super().__init__(d, n_heads, d_qk, d_vo)
        self.W_1, self.b_1, self.W_2, self.b_2 = initial_mlp(d, d_mlp)

    def forward(self, x: Tensor) -> Tensor:
        """(slots, length, d) residual stream -> the same, with the outputs of attention and MLP added."""
        y = super().forward(x)
        return y + F.gelu(y @ self.W_1 + self.b_1) @ self.W_2 + self.b_2


def initial_mlp(d: int, d_mlp: int) -> tuple[nn.Parameter, ...]:
    """W_1, b_1, W_2 and b_2 of an MLP, drawn as torch draws them for linear layers."""
    W_1, b_1 = uniform(d, d_mlp, limit=1 / math.sqrt(d)), uniform(d_mlp, limit=1 / math.sqrt(d))
    return W_1, b_1, uniform(d_mlp, d, limit=1 / math.sqrt(d_mlp)), uniform(d, limit=1 / math.sqrt(d_mlp))


@hookimpl
def capbench_architectures() -> list[type[Architecture]]:
    """The transformer block."""
    return [Transformer]
