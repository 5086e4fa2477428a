"""Gated DeltaNet: the delta rule with a state that can be forgotten."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor, nn

from capbench import Architecture, hookimpl
from capbench_plugins.attention import gaussian
from capbench_plugins.heads import HeadMixer
from capbench_plugins.recurrence import PairedState, outer, read_state, unit


class GatedDeltaNet(HeadMixer):
    """Gated DeltaNet: the delta rule with a forget gate (Yang et al. 2024, arXiv 2412.06464).

    The recurrence alone, as in `deltanet`; what is kept is a sigmoid, in place of the paper's exp(-e^A softplus).
    """

    name: ClassVar[str] = "gated_deltanet"
    family: ClassVar[str] = "recurrence"

    def mixer(self, d_model: int, length: int) -> nn.Module:
        """A layer of such heads."""
        return GatedDeltaRule(d_model, self.n_heads, self.d_qk, self.d_vo)

    def state_size(self, signature: object, length: int) -> int | None:
        """One matrix per head and layer, if only the last position is read."""
        return self.n_layers * self.n_heads * self.d_qk * self.d_vo if self.read == "last" else None


class GatedDeltaRule(PairedState):
    """S_t = α_t S_{t-1} + β_t (v_t - α_t S_{t-1} k_t) k_tᵀ with |k| = 1; α and β are sigmoids of linear maps of x."""

    def __init__(self, d: int, n_heads: int, d_qk: int, d_vo: int) -> None:
        super().__init__(d, n_heads, d_qk, d_vo)
        self.W_beta = gaussian(d, n_heads, std=1 / math.sqrt(d))
        self.W_alpha = gaussian(d, n_heads, std=1 / math.sqrt(d))
        self.b_alpha = nn.Parameter(torch.full((n_heads,), 2.0))  # remembers at the start

    def gates(self, x: Tensor) -> tuple[Tensor, ...]:
        """What is kept, α, and the rate β of writing, (batch, length, heads, 1)."""
        alpha, beta = torch.sigmoid(x @ self.W_alpha + self.b_alpha), torch.sigmoid(x @ self.W_beta)
        return alpha.unsqueeze(-1), beta.unsqueeze(-1)

    def step(self, S: Tensor, k: Tensor, v: Tensor, *gates: Tensor) -> Tensor:
        """The state decays, then the value that it has for the key is replaced, by a share β."""
        alpha, beta = gates
        S, k = alpha.unsqueeze(-1) * S, unit(k)
        return S + outer(beta * (v - read_state(S, k)), k)


@hookimpl
def capbench_architectures() -> list[type[Architecture]]:
    """Gated DeltaNet."""
    return [GatedDeltaNet]
