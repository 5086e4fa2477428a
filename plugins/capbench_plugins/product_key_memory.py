"""A product-key memory: many values, each under a pair of half-keys, of which an input reads a few."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from pydantic import Field, model_validator
from torch import Tensor

from capbench import Architecture, Signature, hookimpl
from capbench_plugins.attention import MOST_HEADS, gaussian
from capbench_plugins.concatenated import MOST_WIDTH, Concatenated, Network, input_map
from capbench_plugins.top_k import top_k_mask


class ProductKeyMemory(Concatenated):
    """Product-key memory (Lample et al. 2019, arXiv 1907.05242); its values are logits, and queries are not normed."""

    name: ClassVar[str] = "product_key_memory"
    family: ClassVar[str] = "memory"

    n_heads: int = Field(2, ge=1, le=MOST_HEADS, description="queries per input; all read the same values")
    n_keys: int = Field(8, ge=2, le=256, description="half-keys of each kind; there are n_keys² values")
    d_key: int = Field(8, ge=1, le=MOST_WIDTH, description="width of a half-key")
    top_k: int = Field(4, ge=1, le=256, description="values that a query reads")

    @model_validator(mode="after")
    def _keys_suffice(self) -> ProductKeyMemory:
        if self.top_k > self.n_keys:
            raise ValueError(f"top_k must be at most n_keys, got {self.top_k} of {self.n_keys}; lower top_k")
        return self

    def network(self, d_in: int, d_out: int) -> Network:
        """Queries, half-keys and values."""
        return KeyedValues(d_in, self.n_heads, self.n_keys, self.d_key, self.top_k, d_out)

    def shape_grid(self, signature: Signature) -> dict[str, Sequence[Any]]:
        """Few or many values, with half-keys of several widths."""
        return {"d_key": range(1, 257), "n_keys": (4, 6, 8, 12, 16), "n_heads": (1, 2, 4)}


class KeyedValues(Network):
    """Σ_h softmax over the k best (i, j) of q_1·K_1[i] + q_2·K_2[j], times V[i, j], with [q_1, q_2] = x W_in."""

    def __init__(self, d_in: int, n_heads: int, n_keys: int, d_key: int, top_k: int, d_out: int) -> None:
        super().__init__()
        self.top_k = top_k
        self.W_in = input_map(d_in, n_heads * 2 * d_key)
        self.K = gaussian(n_heads, 2, n_keys, d_key, std=1 / math.sqrt(d_key))
        self.V = gaussian(n_keys * n_keys, d_out, std=1 / math.sqrt(top_k))

    def rest(self, z: Tensor) -> Tensor:
        """(…, n_heads 2 d_key) queries -> (…, d_out)."""
        n_heads, _, _, d_key = self.K.shape
        q = z.view(*z.shape[:-1], n_heads, 2, d_key)
        half = torch.einsum("...hce,hcne->...hcn", q, self.K)  # (…, heads, 2, n_keys)
        # Among the k best pairs there is none outside the k best of both halves.
        half = half.masked_fill(top_k_mask(half, self.top_k) == 0, -math.inf)
        scores = (half[..., 0, :, None] + half[..., 1, None, :]).flatten(-2)  # (…, heads, n_keys²)
        weights = scores.masked_fill(top_k_mask(scores, self.top_k) == 0, -math.inf).softmax(dim=-1)
        return weights.sum(dim=-2) @ self.V


@hookimpl
def capbench_architectures() -> list[type[Architecture]]:
    """The product-key memory."""
    return [ProductKeyMemory]
