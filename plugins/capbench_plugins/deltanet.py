"""DeltaNet: a linear recurrence that corrects what its state already holds for a key."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor, nn

from capbench import Architecture, hookimpl
from capbench_plugins.attention import gaussian
from capbench_plugins.heads import HeadMixer
from capbench_plugins.recurrence import PairedState, outer, read_state, unit


class DeltaNet(HeadMixer):
    """DeltaNet: linear attention with the delta rule (Schlag et al. 2021, 2102.11174; Yang et al. 2024, 2406.06484).

    The recurrence alone: without SiLU and short convolution before it, and without the norm of its output, which makes
    the length of a query irrelevant in the paper; keys have unit length, queries are as projected.
    """

    name: ClassVar[str] = "deltanet"
    family: ClassVar[str] = "recurrence"

    def mixer(self, d_model: int, length: int) -> nn.Module:
        """A layer of such heads."""
        return DeltaRule(d_model, self.n_heads, self.d_qk, self.d_vo)

    def state_size(self, signature: object, length: int) -> int | None:
        """One matrix per head and layer, if only the last position is read."""
        return self.n_layers * self.n_heads * self.d_qk * self.d_vo if self.read == "last" else None


class DeltaRule(PairedState):
    """S_t = S_{t-1} + β_t (v_t - S_{t-1} k_t) k_tᵀ with |k| = 1 and β = sigmoid(x w_β)."""

    def __init__(self, d: int, n_heads: int, d_qk: int, d_vo: int) -> None:
        super().__init__(d, n_heads, d_qk, d_vo)
        self.W_beta = gaussian(d, n_heads, std=1 / math.sqrt(d))

    def gates(self, x: Tensor) -> tuple[Tensor, ...]:
        """The rate β at which each head writes, (batch, length, heads, 1)."""
        return (torch.sigmoid(x @ self.W_beta).unsqueeze(-1),)

    def step(self, S: Tensor, k: Tensor, v: Tensor, *gates: Tensor) -> Tensor:
        """The value that the state has for the key is replaced, by a share β."""
        (beta,) = gates
        k = unit(k)
        return S + outer(beta * (v - read_state(S, k)), k)


@hookimpl
def capbench_architectures() -> list[type[Architecture]]:
    """DeltaNet."""
    return [DeltaNet]
