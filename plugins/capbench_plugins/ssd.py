"""The recurrence of Mamba-2: a state with one decay per head, whose step size depends on the input."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from capbench import Architecture, hookimpl
from capbench_plugins.attention import gaussian
from capbench_plugins.heads import HeadMixer, join_heads
from capbench_plugins.recurrence import MatrixState, convolve, outer, read_state


class Ssd(HeadMixer):
    """Structured state-space duality: the layer of Mamba-2, without its gate (Dao & Gu 2024, arXiv 2405.21060).

    Each head has its own B and C, the paper's multi-head pattern; there is no norm of the output.
    """

    name: ClassVar[str] = "ssd"
    family: ClassVar[str] = "recurrence"

    d_conv: int = Field(4, ge=1, le=64, description="taps of the short convolution; no more than positions are used")

    def mixer(self, d_model: int, length: int) -> nn.Module:
        """A layer of such heads; d_qk is the paper's N, the width of B and C, and d_vo its P."""
        return SsdHeads(d_model, self.n_heads, self.d_qk, self.d_vo, min(self.d_conv, length))

    def state_size(self, signature: object, length: int) -> int | None:
        """One matrix per head and layer, and what the short convolutions look back at."""
        if self.read != "last":
            return None
        window = (min(self.d_conv, length) - 1) * (2 * self.d_qk + self.d_vo)
        return self.n_layers * self.n_heads * (self.d_qk * self.d_vo + window)


class SsdHeads(MatrixState):
    """S_t = exp(-Δ_t e^A) S_{t-1} + Δ_t x_t B_tᵀ, y_t = S_t C_t + D x_t, with Δ = softplus(u W_Δ + b_Δ).

    C, B and x are the queries, keys and values of other layers, after a short convolution and SiLU.
    """

    def __init__(self, d: int, n_heads: int, d_qk: int, d_vo: int, n_taps: int) -> None:
        super().__init__(d, n_heads, d_qk, d_vo)
        self.c = nn.ParameterList(gaussian(n_taps, n_heads, n, std=n_taps**-0.5) for n in (d_qk, d_qk, d_vo))
        self.W_delta, self.b_delta = gaussian(d, n_heads, std=1 / math.sqrt(d)), nn.Parameter(torch.zeros(n_heads))
        self.A, self.D = nn.Parameter(torch.zeros(n_heads, 1)), nn.Parameter(torch.ones(n_heads, 1))

    def gates(self, x: Tensor) -> tuple[Tensor, ...]:
        """The step size Δ, (batch, length, heads, 1)."""
        return (F.softplus(x @ self.W_delta + self.b_delta).unsqueeze(-1),)

    def step(self, S: Tensor, k: Tensor, v: Tensor, *gates: Tensor) -> Tensor:
        """The state decays and takes in a pair, both by the step size."""
        (delta,) = gates
        return torch.exp(-delta * self.A.exp()).unsqueeze(-1) * S + outer(delta * v, k)

    def mix(self, *parts: Tensor) -> Tensor:
        """The outputs at every position."""
        C, B, x, delta = (part.unbind(1) for part in self.convolved(*parts))
        y = [read_state(S, c) + self.D * at for S, c, at in zip(self.states(B, x, delta), C, x, strict=True)]
        return join_heads(torch.stack(y, dim=1), self.W_O)

    def mix_last(self, *parts: Tensor) -> Tensor:
        """The output at the last position."""
        C, B, x, delta = (part.unbind(1) for part in self.convolved(*parts))
        return join_heads(read_state(self.states(B, x, delta)[-1], C[-1]) + self.D * x[-1], self.W_O)

    def convolved(self, *parts: Tensor) -> tuple[Tensor, ...]:
        """C, B and x after the convolution and SiLU, and Δ as it is."""
        *projected, delta = parts
        return *(F.silu(convolve(part, c)) for part, c in zip(projected, self.c, strict=True)), delta


@hookimpl
def capbench_architectures() -> list[type[Architecture]]:
    """The recurrence of Mamba-2."""
    return [Ssd]
