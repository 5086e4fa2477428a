"""Gated linear attention: a state in which each key dimension decays at a rate that depends on the input."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from capbench import Architecture, hookimpl
from capbench_plugins.attention import gaussian
from capbench_plugins.heads import HeadMixer
from capbench_plugins.recurrence import PairedState, outer


class GatedLinearAttention(HeadMixer):
    """Gated linear attention: a linear recurrence with data-dependent decay (Yang et al. 2023, arXiv 2312.06635).

    The recurrence alone: without the norm and the gate of its output; W_α has full rank, not 16.
    """

    name: ClassVar[str] = "gla"
    family: ClassVar[str] = "recurrence"

    def mixer(self, d_model: int, length: int) -> nn.Module:
        """A layer of such heads."""
        return GatedHeads(d_model, self.n_heads, self.d_qk, self.d_vo)

    def state_size(self, signature: object, length: int) -> int | None:
        """One matrix per head and layer, if only the last position is read."""
        return self.n_layers * self.n_heads * self.d_qk * self.d_vo if self.read == "last" else None


class GatedHeads(PairedState):
    """S_t = S_{t-1} diag(α_t) + v_t k_tᵀ with α = sigmoid(x W_α + b_α)^(1/16)."""

    def __init__(self, d: int, n_heads: int, d_qk: int, d_vo: int) -> None:
        super().__init__(d, n_heads, d_qk, d_vo)
        self.W_alpha = gaussian(d, n_heads * d_qk, std=1 / math.sqrt(d))
        self.b_alpha = nn.Parameter(torch.zeros(n_heads * d_qk))

    def gates(self, x: Tensor) -> tuple[Tensor, ...]:
        """What is kept of each key dimension, (batch, length, heads, d_qk); the paper's temperature is 16."""
        log_alpha = F.logsigmoid(x @ self.W_alpha + self.b_alpha) / 16
        return (log_alpha.exp().view(*x.shape[:-1], len(self.W_Q), -1),)

    def step(self, S: Tensor, k: Tensor, v: Tensor, *gates: Tensor) -> Tensor:
        """The state decays, then a pair is added."""
        (alpha,) = gates
        return S * alpha.unsqueeze(-2) + outer(v, k)


@hookimpl
def capbench_architectures() -> list[type[Architecture]]:
    """Gated linear attention."""
    return [GatedLinearAttention]
