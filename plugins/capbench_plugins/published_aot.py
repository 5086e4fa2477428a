"""The attention-only transformer as the published code of Dana et al. has it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from capbench import Architecture, Lookup, Signature, find_shapes, hookimpl
from capbench_plugins.aot import attend_pairs, initial_maps, require_lookup
from capbench_plugins.attention import attend, head_grid, uniform


class PublishedAot(Architecture):
    """Attention-only transformer of the code published with Dana et al. 2025 (arXiv 2411.10115).

    Positions reach the heads only: the residual stream carries embeddings without them. Where d_head differs from
    d_model, the heads of a layer share one affine map to d_head and one back, and positions are added after the
    first. At H = 20, d_h = 10 and d = 5 to 15 it is within .02 of every accuracy that the authors report (recipe
    dana2025-model-width); with positions added before the map it reaches .216 and .627 at d = 5 and 9, where they
    report .264 and .697.
    """

    name: ClassVar[str] = "published_aot"
    family: ClassVar[str] = "attention"

    d_model: int = Field(8, ge=1, le=4096, description="d: width of embeddings and residual stream")
    n_heads: int = Field(2, ge=1, le=4096, description="H: heads per layer")
    d_head: int = Field(8, ge=1, le=4096, description="d_h: query, key, value and output width of a head")
    n_layers: int = Field(1, ge=1, le=64, description="attention layers, each added to the residual stream")

    def build(self, signature: Signature) -> nn.Module:
        """The module for a lookup task."""
        lookup = require_lookup(signature, self.name)
        return PublishedModel(lookup, self.d_model, self.n_heads, self.d_head, self.n_layers)

    def widths(self, signature: Signature) -> tuple[str, ...]:
        """Width of the residual stream, then heads."""
        return ("d_model", "n_heads")

    def shapes(self, signature: Signature, n_parameters: int) -> Sequence[PublishedAot]:
        """More or fewer heads of the width of the stream, which need no shared maps."""
        grid = head_grid(signature)
        return find_shapes(
            self, signature, n_parameters, {"n_heads": grid["n_heads"], "d_model+d_head": grid["d_model"]}
        )

    def state_size(self, signature: Signature, length: int) -> int | None:
        """The keys and values of all positions in all layers."""
        return length * self.n_layers * self.n_heads * 2 * self.d_head


class PublishedModel(nn.Module):
    """T(t) = x_S W_U, where every layer adds A_s(x) to x_s, which starts as W_E[t_s]."""

    def __init__(self, signature: Lookup, d: int, n_heads: int, d_head: int, n_layers: int) -> None:
        super().__init__()
        limit = 1 / math.sqrt(d)
        self.W_E = uniform(signature.n_tokens, d, limit=limit)
        self.P = uniform(signature.length, d_head, limit=1 / math.sqrt(d_head))
        self.layers = nn.ModuleList(PublishedLayer(d, n_heads, d_head) for _ in range(n_layers))
        self.W_U = uniform(d, signature.n_classes, limit=limit)

    def forward(self, tokens: Tensor) -> Tensor:
        """(slots, length) tokens -> (slots, n_classes) logits."""
        x = [self.W_E[tokens[:, s]] for s in range(tokens.shape[1])]  # (slots, d) at each position
        *earlier, final = self.layers
        for layer in earlier:
            x = [x_s + layer(x[: s + 1], self.P) for s, x_s in enumerate(x)]
        logits: Tensor = (x[-1] + final(x, self.P)) @ self.W_U
        return logits


class PublishedLayer(nn.Module):
    """A_s(x) = Σ_h softmax over r <= s of (z_s W_Q W_Kᵀ z_rᵀ / √d_h) z_r W_V W_O with z_s = x_s + P_s.

    If d_h differs from d, z_s = x_s W_in + b_in + P_s, and A_s is mapped back by W_out and b_out.
    """

    def __init__(self, d: int, n_heads: int, d_head: int) -> None:
        super().__init__()
        self.W_Q, self.W_K, self.W_V, self.W_O = initial_maps(d_head, n_heads, d_head, d_head)
        self.has_maps = d != d_head
        if self.has_maps:
            into, back = 1 / math.sqrt(d), 1 / math.sqrt(d_head)  # as torch.nn.Linear starts
            self.W_in, self.b_in = uniform(d, d_head, limit=into), uniform(d_head, limit=into)
            self.W_out, self.b_out = uniform(d_head, d, limit=back), uniform(d, limit=back)

    def forward(self, x: list[Tensor], P: Tensor) -> Tensor:
        """The (slots, d) stream at each position so far -> what the layer adds at the last of them, (slots, d)."""
        read = [x_s @ self.W_in + self.b_in for x_s in x] if self.has_maps else x  # (slots, d_h) at each position
        update = self._attend([x_s + P[s] for s, x_s in enumerate(read)])
        return update @ self.W_out + self.b_out if self.has_maps else update

    def _attend(self, z: list[Tensor]) -> Tensor:
        """Σ_h of the heads' outputs at the last position, (slots, d_h)."""
        maps = self.W_Q, self.W_K, self.W_V, self.W_O
        if len(z) == 1:  # a position that sees only itself
            return z[0] @ (self.W_V @ self.W_O).sum(dim=0)
        if len(z) == 2:
            return attend_pairs(z[0], z[1], *maps)
        return attend(z[-1], torch.stack(z, dim=1), *maps)


@hookimpl
def capbench_architectures() -> list[type[Architecture]]:
    """The attention-only transformer of the published code."""
    return [PublishedAot]
