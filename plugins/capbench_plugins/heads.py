"""Heads for layers that mix positions: their fields, their weights, and causal attention with any scores."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from pydantic import Field
from torch import Tensor, nn

from capbench import Lookup, Mixer, Recall, Signature
from capbench_plugins.attention import LEAST_EMBEDDING, MOST_HEADS, MOST_WIDTH, gaussian

Parts = tuple[Tensor, ...]
"""What a layer projects each position to."""


class HeadMixer(Mixer):
    """A layer of heads; a subclass gives the layer."""

    n_heads: int = Field(2, ge=1, le=MOST_HEADS, description="H: heads per layer")
    d_qk: int = Field(8, ge=1, le=MOST_WIDTH, description="query/key width of a head")
    d_vo: int = Field(8, ge=1, le=MOST_WIDTH, description="value/output width of a head")

    def shape_grid(self, signature: Signature) -> dict[str, Sequence[Any]]:
        """More or fewer heads of several widths, on streams of several widths, at several initial scales."""
        width = signature.n_tokens if isinstance(signature, Lookup) else 2 * _input_width(signature)
        widths = range(1, min(width, MOST_WIDTH) + 1)
        heads: dict[str, Sequence[Any]] = {"n_heads": range(1, MOST_HEADS + 1), "d_qk+d_vo": widths}
        scales = super().shape_grid(signature)["init_scale"]
        return heads | {"d_model": widths[LEAST_EMBEDDING - 1 :] or widths, "init_scale": scales}

    def is_useful(self, signature: Signature) -> bool:
        """Whether heads are no wider than the stream that they read."""
        return max(self.d_qk, self.d_vo) <= self.d_model

    def state_size(self, signature: Signature, length: int) -> int | None:
        """The keys and values of all positions in all layers, as attention keeps them; recurrences have their own."""
        return length * self.n_layers * self.n_heads * (self.d_qk + self.d_vo) if self.read == "last" else None


class Layer(nn.Module):
    """A layer in the parts of which `Mixer` uses those that it needs."""

    @abstractmethod
    def project(self, x: Tensor) -> tuple[Tensor, ...]:
        """What each position becomes alone: tensors (batch, length, …)."""

    @abstractmethod
    def mix(self, *parts: Tensor) -> Tensor:
        """The output at every position, (batch, length, d)."""

    def mix_last(self, *parts: Tensor) -> Tensor:
        """The output at the last position, (batch, d)."""
        return self.mix(*parts)[:, -1]

    def forward(self, x: Tensor) -> Tensor:
        """(batch, length, d) -> the same."""
        return self.mix(*self.project(x))


class CausalHeads(Layer):
    """Σ_h a^h x W_V^h W_O^h, with weights a of each position over itself and those before it."""

    W_Q: Tensor
    W_K: Tensor

    def __init__(self, d: int, n_heads: int, d_qk: int, d_vo: int) -> None:
        super().__init__()
        self.W_Q, self.W_K = (gaussian(n_heads, d, d_qk, std=1 / math.sqrt(d)) for _ in range(2))
        self.W_V = gaussian(n_heads, d, d_vo, std=1 / math.sqrt(d))
        self.W_O = gaussian(n_heads, d_vo, d, std=1 / math.sqrt(n_heads * d_vo))

    def project(self, x: Tensor) -> tuple[Tensor, ...]:
        """Queries, keys and values, (batch, length, heads, width)."""
        return tuple(per_head(x, W) for W in (self.W_Q / math.sqrt(self.W_Q.shape[-1]), self.W_K, self.W_V))

    def mix(self, *parts: Tensor) -> Tensor:
        """Attention from every position."""
        q, k, v = parts
        scores = torch.einsum("bqhe,bkhe->bhqk", q, k)
        values = torch.einsum("bhqk,bkhv->bqhv", self.weights(scores, is_later(scores)), v)
        return join_heads(values, self.W_O)

    def mix_last(self, *parts: Tensor) -> Tensor:
        """Attention from the last position."""
        q, k, v = parts
        return self.mix(q[:, -1:], k, v).squeeze(1)

    @abstractmethod
    def weights(self, scores: Tensor, is_later: Tensor) -> Tensor:
        """The weights, (batch, heads, queries, keys), from the scores of the same shape; 0 where a key is later."""


class PairedHeads(CausalHeads):
    """Causal heads that also score every pair of tokens at once: no query, key or value is copied for each pair."""

    def mix_pairs(self, first: Parts, last: Parts) -> Tensor:
        """The output at the last token of every pair, (n, m, d), from the parts of n first and of m last tokens."""
        (_, k_first, v_first), (q, k_last, v_last) = ([part.squeeze(1) for part in parts] for parts in (first, last))
        a_first, a_last = self.pair_weights(torch.einsum("nhe,mhe->nmh", k_first, q), (q * k_last).sum(dim=-1))
        u_first, u_last = (torch.einsum("nhv,hvd->nhd", v, self.W_O) for v in (v_first, v_last))
        from_first = torch.einsum("nmh,nhd->nmd", a_first, u_first)
        return from_first + torch.einsum("...mh,mhd->...md", a_last, u_last)

    @abstractmethod
    def pair_weights(self, to_first: Tensor, to_last: Tensor) -> tuple[Tensor, Tensor]:
        """The weights of both tokens from scores (n, m, heads) and (m, heads); the second may lack the first axis."""


class SoftmaxHeads(PairedHeads):
    """Heads with softmax weights."""

    def weights(self, scores: Tensor, is_later: Tensor) -> Tensor:
        """Softmax over the positions so far."""
        return masked_softmax(scores, is_later)

    def pair_weights(self, to_first: Tensor, to_last: Tensor) -> tuple[Tensor, Tensor]:
        """The softmax of two scores is a sigmoid of their difference."""
        a = torch.sigmoid(to_first - to_last)
        return a, 1 - a


class SeparateHeads(PairedHeads):
    """Heads that weigh each position by its own score."""

    @abstractmethod
    def weigh(self, scores: Tensor, n: int) -> Tensor:
        """The weights of so many positions from their scores."""

    def weights(self, scores: Tensor, is_later: Tensor) -> Tensor:
        """Each weight from its own score."""
        return self.weigh(scores, scores.shape[-1]).masked_fill(is_later, 0.0)

    def pair_weights(self, to_first: Tensor, to_last: Tensor) -> tuple[Tensor, Tensor]:
        """That of the last token is the same for every first one."""
        return self.weigh(to_first, 2), self.weigh(to_last, 2)


def per_head(x: Tensor, W: Tensor) -> Tensor:
    """(batch, length, d) vectors times each head's (d, width) matrix: (batch, length, heads, width)."""
    wide = x @ W.transpose(0, 1).flatten(1)  # (batch, length, heads * width)
    return wide.view(*x.shape[:-1], len(W), W.shape[-1])


def join_heads(values: Tensor, W_O: Tensor) -> Tensor:
    """Σ_h v_h W_O^h: (…, heads, d_vo) values -> (…, d)."""
    return values.flatten(-2) @ W_O.flatten(0, 1)


def is_later(scores: Tensor) -> Tensor:
    """Whether a key comes after the query, (queries, keys); the queries are the last positions."""
    n_queries, n_keys = scores.shape[-2:]
    places = torch.arange(n_keys, device=scores.device)
    return places > places[n_keys - n_queries :].unsqueeze(1)


def masked_softmax(scores: Tensor, is_later: Tensor) -> Tensor:
    """Softmax over the keys that are not later."""
    return scores.masked_fill(is_later, -math.inf).softmax(dim=-1)


def _input_width(signature: Signature) -> int:
    return signature.d_input if isinstance(signature, Recall) else MOST_WIDTH
