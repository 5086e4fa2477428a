"""The attention-only transformer: embedding, attention with a residual connection, and unembedding."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from capbench import Architecture, Heads, Lookup, Signature, UnsupportedSignature, find_shapes, hookimpl
from capbench_plugins.attention import Maps, attend, attend_grid, head_grid, heads_fit, uniform


class Aot(Architecture):
    """Attention-only transformer of Dana et al. 2025 (arXiv 2411.10115); without positions, that of Wong 2025."""

    name: ClassVar[str] = "aot"
    family: ClassVar[str] = "attention"

    d_model: int = Field(8, ge=1, le=4096, description="d: width of embeddings and residual stream")
    n_heads: int = Field(2, ge=1, le=4096, description="H: heads per layer")
    d_qk: int = Field(8, ge=1, le=4096, description="query/key width of a head")
    d_vo: int = Field(8, ge=1, le=4096, description="value/output width of a head")
    n_layers: int = Field(1, ge=1, le=64, description="attention layers, each added to the residual stream")
    positions: bool = Field(True, description="whether a learned vector is added at each position")
    shared_maps: bool = Field(
        False,
        description="one d->d_h and one d_h->d map shared by all heads of a layer, as in the code of Dana et al. if "
        "d_h != d; needs d_qk = d_vo = d_h",
    )

    @model_validator(mode="after")
    def _shared_maps_fit(self) -> Aot:
        if self.shared_maps and self.d_qk != self.d_vo:
            raise ValueError(
                f"shared_maps needs d_qk = d_vo, got d_qk={self.d_qk}, d_vo={self.d_vo}; "
                "set them so or set shared_maps=false"
            )
        return self

    def build(self, signature: Signature) -> nn.Module:
        """The module for a lookup task."""
        module = SharedMaps if self.shared_maps else AttentionOnly
        lookup = require_lookup(signature, self.name)
        return module(lookup, self.d_model, self.n_heads, self.d_qk, self.d_vo, self.positions, self.n_layers)

    def widths(self, signature: Signature) -> tuple[str, ...]:
        """Width of the residual stream, then heads, then the value width of a head."""
        return ("d_model", "n_heads") if self.shared_maps else ("d_model", "n_heads", "d_vo")

    def shapes(self, signature: Signature, n_parameters: int) -> Sequence[Aot]:
        """More or fewer heads in each layer, no wider than the residual stream, and streams of several widths."""
        return find_shapes(self, signature, n_parameters, head_grid(signature), is_useful=heads_fit)

    def heads(self, signature: Signature) -> Heads | None:
        """Its heads as the theorems count them; None with shared maps, which the theorems do not cover."""
        if self.shared_maps or not isinstance(signature, Lookup):
            return None
        return Heads(self.n_heads, self.d_model, self.d_qk, self.d_vo, self.n_layers, True, self.positions, True)

    def state_size(self, signature: Signature, length: int) -> int | None:
        """The keys and values of all positions in all layers."""
        return length * self.n_layers * self.n_heads * (self.d_qk + self.d_vo)


def require_lookup(signature: Signature, name: str) -> Lookup:
    """The signature of a lookup task; raises UnsupportedSignature for any other."""
    if not isinstance(signature, Lookup):
        raise UnsupportedSignature(
            f"{name} embeds tokens; {type(signature).__name__} tasks give vectors (capbench list shows what fits)"
        )
    return signature


class AttentionOnly(nn.Module):
    """T(t) = (x_S + Σ_h softmax(x_S W_Q W_Kᵀ xᵀ / √d_qk) x W_V W_O) W_U with x_s = W_E[t_s] + P_s, S the last.

    With more layers, x is the output of the `earlier` ones; the weights named here are the last layer's.
    """

    P: Tensor | None

    def __init__(
        self, signature: Lookup, d: int, n_heads: int, d_qk: int, d_vo: int, positions: bool = False, n_layers: int = 1
    ) -> None:
        super().__init__()
        limit = 1 / math.sqrt(d)
        self.signature = signature
        self.W_E = uniform(signature.n_tokens, d, limit=limit)
        self.P = uniform(signature.length, d, limit=limit) if positions else None
        self.earlier = nn.ModuleList(CausalLayer(d, n_heads, d_qk, d_vo) for _ in range(n_layers - 1))
        self.W_Q, self.W_K, self.W_V, self.W_O = initial_maps(d, n_heads, d_qk, d_vo)
        self.W_U = uniform(d, signature.n_classes, limit=limit)
        if signature.length == 2 and n_layers == 1:
            self.forward_grid = self.read_grid  # with two tokens, all pairs can be scored at once

    def maps(self) -> Maps:
        """The four matrices of every head of the last layer."""
        return self.W_Q, self.W_K, self.W_V, self.W_O

    def read_logits(self, y: Tensor) -> Tensor:
        """(slots, d) residual stream at the last position -> (slots, n_classes) logits."""
        return y @ self.W_U

    def forward(self, tokens: Tensor) -> Tensor:
        """(slots, length) tokens -> (slots, n_classes) logits."""
        if tokens.shape[1] == 2 and not self.earlier:
            first, last = (self.embed(tokens[:, position], position) for position in (0, 1))
            return self.read_logits(last + attend_pairs(first, last, *self.maps()))
        x = self.W_E[tokens]  # (slots, length, d)
        if self.P is not None:
            x = x + self.P
        for layer in self.earlier:
            x = layer(x)
        return self.read_logits(x[:, -1] + attend(x[:, -1], x, *self.maps()))

    def embed(self, tokens: Tensor | slice, position: int) -> Tensor:
        """x = W_E[t] + P of tokens at a position, (tokens, d)."""
        return self.W_E[tokens] if self.P is None else self.W_E[tokens] + self.P[position]

    def read_grid(self) -> Tensor:
        """The logits of every pair of tokens, (n_combinations, n_classes); each token is projected only once."""
        first, last = (self.embed(slice(*span), position) for position, span in enumerate(self.signature.spans))
        y = last + attend_grid(first, last, *self.maps())  # (first, last, d)
        return self.read_logits(y.flatten(0, 1))


def attend_pairs(first: Tensor, last: Tensor, W_Q: Tensor, W_K: Tensor, W_V: Tensor, W_O: Tensor) -> Tensor:
    """`attend` of each (d,) vector of `last` over the pair of its `first` and itself, (slots, d_out).

    Uses the sigmoid a of `attend_grid`. Slots are the last axis, where elementwise products are fastest. With more
    heads than d, heads enter in two matrix products only: scores are W_Q W_Kᵀ applied to the d x d products of a
    pair, and Σ_h a_h W_V W_O is one matrix per pair.
    """
    n_heads, d, d_qk = W_Q.shape
    difference, last = (first - last).mT.contiguous(), last.mT.contiguous()  # (d, slots)
    W_Q, W_VO = W_Q / math.sqrt(d_qk), W_V @ W_O  # W_VO: (heads, d, d_out)
    if n_heads > d:
        products = (last.unsqueeze(1) * difference).flatten(0, 1)  # (d d, slots)
        a = torch.sigmoid((W_Q @ W_K.mT).flatten(1) @ products)  # (heads, slots)
        mixed = (W_VO.flatten(1).mT @ a).view(d, -1, last.shape[1])  # (d, d_out, slots)
        update = (difference.unsqueeze(1) * mixed).sum(dim=0)  # (d_out, slots)
    else:
        queries, keys = W_Q.mT @ last, W_K.mT @ difference  # (heads, d_qk, slots)
        a = torch.sigmoid((queries * keys).sum(dim=1, keepdim=True))  # (heads, 1, slots)
        update = (a * (W_VO.mT @ difference)).sum(dim=0)  # (d_out, slots)
    return (update + W_VO.sum(dim=0).mT @ last).mT


class CausalLayer(nn.Module):
    """x_s + Σ_h softmax over r <= s of (x_s W_Q W_Kᵀ x_rᵀ / √d_qk) x_r W_V W_O, at every position s."""

    def __init__(self, d: int, n_heads: int, d_qk: int, d_vo: int) -> None:
        super().__init__()
        self.W_Q, self.W_K, self.W_V, self.W_O = initial_maps(d, n_heads, d_qk, d_vo)

    def forward(self, x: Tensor) -> Tensor:
        """(slots, length, d) residual stream -> the same, with the output of attention added."""
        W_Q, W_K, W_V, W_O = self.maps()
        q, k, v = (torch.einsum("sld,hde->shle", x, W) for W in (W_Q, W_K, W_V))
        # q, k: (slots, heads, length, d_qk); v: (slots, heads, length, d_vo)
        is_later = torch.ones_like(x[0] @ x[0].mT, dtype=torch.bool).triu(1)  # (length, length)
        scores = (q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(is_later, -math.inf)  # (slots, heads, length, length)
        return x + torch.einsum("shlv,hvd->sld", scores.softmax(dim=-1) @ v, W_O)

    def maps(self) -> Maps:
        """The four matrices of every head."""
        return self.W_Q, self.W_K, self.W_V, self.W_O


class SharedCausalLayer(CausalLayer):
    """A causal layer whose heads share one d -> d_h input map and one d_h -> d output map."""

    def __init__(self, d: int, n_heads: int, d_qk: int, d_vo: int) -> None:
        super().__init__(d_qk, n_heads, d_qk, d_vo)
        self.W_in = uniform(d, d_qk, limit=1 / math.sqrt(d))
        self.W_out = uniform(d_vo, d, limit=1 / math.sqrt(d_vo))

    def maps(self) -> Maps:
        """The matrices of every head with the shared maps multiplied in."""
        return self.W_in @ self.W_Q, self.W_in @ self.W_K, self.W_in @ self.W_V, self.W_O @ self.W_out


class SharedMaps(AttentionOnly):
    """Heads of width d_h that share one d -> d_h input map and one d_h -> d output map.

    The architecture of the published code of Dana et al. if d_h differs from d.
    """

    def __init__(
        self, signature: Lookup, d: int, n_heads: int, d_qk: int, d_vo: int, positions: bool = False, n_layers: int = 1
    ) -> None:
        super().__init__(signature, d, n_heads, d_qk, d_vo, positions, n_layers)
        self.earlier = nn.ModuleList(SharedCausalLayer(d, n_heads, d_qk, d_vo) for _ in range(n_layers - 1))
        self.W_in = uniform(d, d_qk, limit=1 / math.sqrt(d))
        self.W_out = uniform(d_vo, d, limit=1 / math.sqrt(d_vo))
        self.W_Q, self.W_K, self.W_V, self.W_O = initial_maps(d_qk, n_heads, d_qk, d_vo)

    def maps(self) -> Maps:
        """The matrices of every head with the shared maps multiplied in."""
        return self.W_in @ self.W_Q, self.W_in @ self.W_K, self.W_in @ self.W_V, self.W_O @ self.W_out


def initial_maps(d: int, n_heads: int, d_qk: int, d_vo: int) -> tuple[nn.Parameter, ...]:
    """W_Q, W_K, W_V and W_O of a layer, initialised as in the code of Dana et al.: Xavier in, 1/√width out."""
    xavier = math.sqrt(1.5 / d)
    W_Q, W_K, W_V = (uniform(n_heads, d, width, limit=xavier) for width in (d_qk, d_qk, d_vo))
    return W_Q, W_K, W_V, uniform(n_heads, d_vo, d, limit=1 / math.sqrt(d_vo))


@hookimpl
def capbench_architectures() -> list[type[Architecture]]:
    """The attention-only transformer."""
    return [Aot]
