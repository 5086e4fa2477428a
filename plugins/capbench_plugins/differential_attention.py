"""Differential attention: the difference of two softmaxes, which cancels what both attend to."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from capbench import Architecture, hookimpl
from capbench_plugins.attention import gaussian
from capbench_plugins.heads import HeadMixer, Layer, is_later, join_heads, masked_softmax, per_head

EPSILON = 1e-6


class DifferentialAttention(HeadMixer):
    """Weights softmax(s_1) - λ softmax(s_2) with learned λ (Ye et al. 2024, arXiv 2410.05258)."""

    name: ClassVar[str] = "differential_attention"
    family: ClassVar[str] = "attention"

    lambda_init: float = Field(0.2, ge=0, lt=1, description="λ at the start; .2 is the paper's for a first layer")

    def mixer(self, d_model: int, length: int) -> nn.Module:
        """A layer of such heads; each has two queries and two keys of width d_qk."""
        return DifferentialHeads(d_model, self.n_heads, self.d_qk, self.d_vo, self.lambda_init)

    def state_size(self, signature: object, length: int) -> int | None:
        """Two keys and a value per head, position and layer."""
        width = 2 * self.d_qk + self.d_vo
        return length * self.n_layers * self.n_heads * width if self.read == "last" else None


class DifferentialHeads(Layer):
    """(1 - λ_init) RMSNorm([softmax(q_1 k_1ᵀ / √d_qk) - λ softmax(q_2 k_2ᵀ / √d_qk)] v) W_O, summed over heads.

    λ = exp(λ_q1·λ_k1) - exp(λ_q2·λ_k2) + λ_init.
    """

    def __init__(self, d: int, n_heads: int, d_qk: int, d_vo: int, lambda_init: float) -> None:
        super().__init__()
        self.lambda_init = lambda_init
        self.W_Q, self.W_K = (gaussian(n_heads, d, 2 * d_qk, std=1 / math.sqrt(d)) for _ in range(2))
        self.W_V = gaussian(n_heads, d, d_vo, std=1 / math.sqrt(d))
        self.W_O = gaussian(n_heads, d_vo, d, std=1 / math.sqrt(n_heads * d_vo))
        self.lambda_q, self.lambda_k = (gaussian(2, d_qk, std=0.1) for _ in range(2))  # the paper's .1

    def project(self, x: Tensor) -> tuple[Tensor, ...]:
        """Two queries, two keys and a value per head, (batch, length, heads, width)."""
        scale = 1 / math.sqrt(self.lambda_q.shape[-1])
        return tuple(per_head(x, W) for W in (self.W_Q * scale, self.W_K, self.W_V))

    def mix(self, *parts: Tensor) -> Tensor:
        """Differential attention from every position."""
        q, k, v = parts
        q, k = (each.view(*each.shape[:-1], 2, -1) for each in (q, k))  # (batch, length, heads, 2, d_qk)
        scores = torch.einsum("bqhce,bkhce->cbhqk", q, k)
        first, second = masked_softmax(scores, is_later(scores)).unbind(0)  # (batch, heads, queries, keys)
        plus, minus = (self.lambda_q * self.lambda_k).sum(dim=-1).exp().unbind(0)
        values = torch.einsum("bhqk,bkhv->bqhv", first - (plus - minus + self.lambda_init) * second, v)
        values = values * torch.rsqrt(values.square().mean(dim=-1, keepdim=True) + EPSILON)
        return (1 - self.lambda_init) * join_heads(values, self.W_O)

    def mix_last(self, *parts: Tensor) -> Tensor:
        """Differential attention from the last position."""
        q, k, v = parts
        return self.mix(q[:, -1:], k, v).squeeze(1)


@hookimpl
def capbench_architectures() -> list[type[Architecture]]:
    """Differential attention."""
    return [DifferentialAttention]
