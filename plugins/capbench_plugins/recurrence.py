"""Recurrences with a matrix as state: what linear-time sequence layers have in common."""

from __future__ import annotations

import math
from abc import abstractmethod

import torch
from torch import Tensor

from capbench_plugins.attention import gaussian
from capbench_plugins.heads import Layer, join_heads, per_head


class MatrixState(Layer):
    """S_t from S_{t-1} by a rule, S_0 = 0; the output is Σ_h S_t q_t W_O^h. S is (batch, heads, d_vo, d_qk)."""

    def __init__(self, d: int, n_heads: int, d_qk: int, d_vo: int) -> None:
        super().__init__()
        self.W_Q, self.W_K = (gaussian(n_heads, d, d_qk, std=1 / math.sqrt(d)) for _ in range(2))
        self.W_V = gaussian(n_heads, d, d_vo, std=1 / math.sqrt(d))
        self.W_O = gaussian(n_heads, d_vo, d, std=1 / math.sqrt(n_heads * d_vo))

    def project(self, x: Tensor) -> tuple[Tensor, ...]:
        """Queries, keys, values and gates, each (batch, length, heads, width)."""
        return *(per_head(x, W) for W in (self.W_Q, self.W_K, self.W_V)), *self.gates(x)

    def gates(self, x: Tensor) -> tuple[Tensor, ...]:
        """Further tensors that the rule reads, each (batch, length, heads, …)."""
        return ()

    @abstractmethod
    def step(self, S: Tensor, k: Tensor, v: Tensor, *gates: Tensor) -> Tensor:
        """S_t from S_{t-1} and what position t brings, each (batch, heads, …)."""

    def mix(self, *parts: Tensor) -> Tensor:
        """The outputs at every position."""
        q, *rest = (part.unbind(1) for part in parts)
        states = self.states(*rest)
        values = torch.stack([read_state(S, at) for S, at in zip(states, q, strict=True)], dim=1)
        return join_heads(values, self.W_O)

    def mix_last(self, *parts: Tensor) -> Tensor:
        """The output at the last position."""
        q, *rest = (part.unbind(1) for part in parts)
        return join_heads(read_state(self.states(*rest)[-1], q[-1]), self.W_O)

    def states(self, *parts: tuple[Tensor, ...]) -> list[Tensor]:
        """The state after each position."""
        k, v = parts[0][0], parts[1][0]
        S, states = torch.zeros_like(outer(v, k)), []
        for at_position in zip(*parts, strict=True):
            S = self.step(S, *at_position)
            states.append(S)
        return states


class PairedState(MatrixState):
    """A state whose rule reads one position at a time, so that every pair of tokens can be scored at once."""

    def mix_pairs(self, first: tuple[Tensor, ...], last: tuple[Tensor, ...]) -> Tensor:
        """The output at the last token of every pair, (n, m, d): the state after a first token is computed once."""
        _, *rest = (part.unbind(1) for part in first)
        S = self.states(*rest)[-1].unsqueeze(1)  # (n, 1, heads, d_vo, d_qk)
        q, *at_last = (part.transpose(0, 1) for part in last)  # (1, m, heads, …)
        return join_heads(read_state(self.step(S, *at_last), q), self.W_O)


def outer(v: Tensor, k: Tensor) -> Tensor:
    """v kᵀ, (…, d_vo, d_qk)."""
    return v.unsqueeze(-1) * k.unsqueeze(-2)


def read_state(S: Tensor, k: Tensor) -> Tensor:
    """S k, (…, d_vo)."""
    return (S * k.unsqueeze(-2)).sum(dim=-1)


def unit(k: Tensor) -> Tensor:
    """k / |k|, finite at 0."""
    return k * torch.rsqrt(k.square().sum(dim=-1, keepdim=True) + 1e-6)


def convolve(x: Tensor, c: Tensor) -> Tensor:
    """Σ_j c_j x_{t-j} along the positions of (batch, length, …), with (taps, …) weights and 0 before the first one."""
    y = c[0] * x
    for j in range(1, len(c)):
        y = y + c[j] * torch.cat([torch.zeros_like(x[:, :j]), x[:, :-j]], dim=1)
    return y
