"""Multi-head latent attention: keys and values of all heads come from one narrow vector per position."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

from pydantic import Field
from torch import Tensor, nn

from capbench import Architecture, Signature, hookimpl
from capbench_plugins.attention import MOST_WIDTH, gaussian
from capbench_plugins.heads import HeadMixer, SoftmaxHeads, per_head


class LatentAttention(HeadMixer):
    """Multi-head latent attention of DeepSeek-V2 (arXiv 2405.04434), without its rotary part.

    Queries are not compressed, as in its smaller version, and latents are not normed.
    """

    name: ClassVar[str] = "latent_attention"
    family: ClassVar[str] = "attention"

    d_latent: int = Field(4, ge=1, le=MOST_WIDTH, description="width of the vector that a position is compressed to")

    def mixer(self, d_model: int, length: int) -> nn.Module:
        """A layer of such heads."""
        return LatentHeads(d_model, self.d_latent, self.n_heads, self.d_qk, self.d_vo)

    def state_size(self, signature: object, length: int) -> int | None:
        """The latents of all positions in all layers: keys and values follow from them."""
        return length * self.n_layers * self.d_latent if self.read == "last" else None

    def shape_grid(self, signature: Signature) -> dict[str, Sequence[Any]]:
        """Those of other heads, with latents of two sizes."""
        return {**super().shape_grid(signature), "d_latent": (4, 8)}

    def is_useful(self, signature: Signature) -> bool:
        """Whether the latent is narrower than the stream: else nothing is compressed."""
        return super().is_useful(signature) and self.d_latent < self.d_model


class LatentHeads(SoftmaxHeads):
    """q = x W_Q, c = x W_C, k = c W_K, v = c W_V, then softmax attention."""

    def __init__(self, d: int, d_latent: int, n_heads: int, d_qk: int, d_vo: int) -> None:
        super().__init__(d, n_heads, d_qk, d_vo)
        self.W_C = gaussian(d, d_latent, std=1 / math.sqrt(d))
        self.W_K = gaussian(n_heads, d_latent, d_qk, std=1 / math.sqrt(d_latent))
        self.W_V = gaussian(n_heads, d_latent, d_vo, std=1 / math.sqrt(d_latent))

    def project(self, x: Tensor) -> tuple[Tensor, ...]:
        """Queries from the vectors, keys and values from their latents."""
        c = x @ self.W_C  # (batch, length, d_latent)
        q = per_head(x, self.W_Q / math.sqrt(self.W_Q.shape[-1]))
        return q, per_head(c, self.W_K), per_head(c, self.W_V)


@hookimpl
def capbench_architectures() -> list[type[Architecture]]:
    """Multi-head latent attention."""
    return [LatentAttention]
