"""The recurrence of RWKV-7: a delta rule whose decay, removal key and rate are vectors."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor, nn

from capbench import Architecture, hookimpl
from capbench_plugins.attention import gaussian
from capbench_plugins.heads import HeadMixer, per_head
from capbench_plugins.recurrence import MatrixState, outer, read_state, unit

DECAY = math.exp(-0.5)
"""The largest rate of decay [paper]."""


class Rwkv7(HeadMixer):
    """RWKV-7 style time mixing, without its norm, bonus and gate (Peng et al. 2025, arXiv 2503.14456)."""

    name: ClassVar[str] = "rwkv7"
    family: ClassVar[str] = "recurrence"

    def mixer(self, d_model: int, length: int) -> nn.Module:
        """A layer of such heads."""
        return Rwkv7Heads(d_model, self.n_heads, self.d_qk, self.d_vo)

    def state_size(self, signature: object, length: int) -> int | None:
        """One matrix per head and layer, and the parts of the position before."""
        if self.read != "last":
            return None
        return self.n_layers * self.n_heads * (self.d_qk * self.d_vo + 4 * self.d_qk + self.d_vo)


class Rwkv7Heads(MatrixState):
    """S_t = S_{t-1} (diag(w_t) - κ_t (a_t * κ_t)ᵀ) + v_t k̃_tᵀ, with w = exp(-e^-½ sigmoid(x W_w + b_w)),
    a = sigmoid(x W_a), κ = k * ξ at unit length, and k̃ = k * (1 + (a - 1) * α).

    The token shift, a mean of each vector with the one before it, comes after the maps here, not before them.
    """

    def __init__(self, d: int, n_heads: int, d_qk: int, d_vo: int) -> None:
        super().__init__(d, n_heads, d_qk, d_vo)
        self.W_w, self.W_a = (gaussian(n_heads, d, d_qk, std=1 / math.sqrt(d)) for _ in range(2))
        self.b_w = nn.Parameter(torch.full((n_heads, d_qk), -2.0))  # remembers at the start
        self.xi, self.alpha = nn.Parameter(torch.ones(n_heads, d_qk)), nn.Parameter(torch.ones(n_heads, d_qk))
        widths = (d_qk, d_qk, d_vo, d_qk, d_qk)
        self.shift = nn.ParameterList(nn.Parameter(torch.zeros(n_heads, width)) for width in widths)

    def gates(self, x: Tensor) -> tuple[Tensor, ...]:
        """What becomes the decay w and the rate a, (batch, length, heads, d_qk)."""
        return per_head(x, self.W_w), per_head(x, self.W_a)

    def mix(self, *parts: Tensor) -> Tensor:
        """The outputs at every position."""
        return super().mix(*self.shifted(*parts))

    def mix_last(self, *parts: Tensor) -> Tensor:
        """The output at the last position."""
        return super().mix_last(*self.shifted(*parts))

    def shifted(self, *parts: Tensor) -> tuple[Tensor, ...]:
        """x_t + μ (x_{t-1} - x_t), with x_0 = 0."""
        before = [torch.cat([torch.zeros_like(part[:, :1]), part[:, :-1]], dim=1) for part in parts]
        return tuple(x + mu * (old - x) for x, old, mu in zip(parts, before, self.shift, strict=True))

    def step(self, S: Tensor, k: Tensor, v: Tensor, *gates: Tensor) -> Tensor:
        """The state decays, loses a share of what it holds for κ, and takes in a pair."""
        decay, rate = gates
        w, a = torch.exp(-DECAY * torch.sigmoid(decay + self.b_w)), torch.sigmoid(rate)
        kappa = unit(k * self.xi)
        removed = outer(read_state(S, kappa), a * kappa)
        return S * w.unsqueeze(-2) - removed + outer(v, k * (1 + (a - 1) * self.alpha))


@hookimpl
def capbench_architectures() -> list[type[Architecture]]:
    """The recurrence of RWKV-7."""
    return [Rwkv7]
