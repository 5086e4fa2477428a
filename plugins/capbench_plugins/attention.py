"""Softmax attention of one query, as in the papers' one-layer models, written out so that vmap can batch it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from capbench import Lookup, Recall, Relation, Signature

FEW_HEADS = 4
"""Up to this many heads, `mix_grid` is faster term by term than by products of small matrices."""
MOST_HEADS = MOST_WIDTH = 4096
LEAST_EMBEDDING = 4
"""Narrower embeddings are no candidates at a parameter count: they would be the most extreme of all shapes."""
Maps = tuple[Tensor, Tensor, Tensor, Tensor]
"""W_Q, W_K (heads, d, d_qk), W_V (heads, d, d_vo) and W_O (heads, d_vo, d_out), one matrix per head."""


def gaussian(*shape: int, std: float) -> nn.Parameter:
    """Weights drawn with mean 0 and the given standard deviation."""
    return nn.Parameter(torch.randn(*shape) * std)


def uniform(*shape: int, limit: float) -> nn.Parameter:
    """Weights drawn uniformly from -limit to limit."""
    return nn.Parameter(torch.empty(*shape).uniform_(-limit, limit))


def head_grid(signature: Signature) -> dict[str, Sequence[Any]]:
    """The shapes that heads may have: heads are added to reach a parameter count, no wider than what they read.

    An embedding wider than the number of tokens would not separate them better.
    """
    heads = range(1, MOST_HEADS + 1)
    if isinstance(signature, Lookup):
        widths = range(1, min(signature.n_tokens, MOST_WIDTH) + 1)
        return {"n_heads": heads, "d_model": widths[LEAST_EMBEDDING - 1 :] or widths, "d_qk+d_vo": widths}
    widths = range(1, min(signature.d_input if isinstance(signature, Recall) else signature.d_item, MOST_WIDTH) + 1)
    grid = {"n_heads": heads, "d_qk": widths}
    return {**grid} if isinstance(signature, Relation) else {**grid, "d_vo": widths}


def init_scales(signature: Signature) -> tuple[float, float]:
    """Initial scales of queries and keys to choose from, the usually better one of such tasks first.

    With one shape of 1,000 parameters, mha on bigrams holds 86 facts at .5 and 27 at 2; on rgr 2 is the better one.
    """
    return (2.0, 0.5) if isinstance(signature, Relation) else (0.5, 2.0)


class HasHeads(Protocol):
    """An architecture with heads on an embedding."""

    @property
    def d_model(self) -> int:
        """Width of the embedding."""

    @property
    def d_qk(self) -> int:
        """Query/key width of a head."""

    @property
    def d_vo(self) -> int:
        """Value/output width of a head."""


def heads_fit(shape: HasHeads) -> bool:
    """Whether heads on an embedding are no wider than it: more would only be more weights for the same maps."""
    return max(shape.d_qk, shape.d_vo) <= shape.d_model


def attend(queries: Tensor, contexts: Tensor, W_Q: Tensor, W_K: Tensor, W_V: Tensor, W_O: Tensor) -> Tensor:
    """Σ_h softmax(e W_Q W_Kᵀ Eᵀ / √d_qk) E W_V W_O for each (d,) query e over its (n, d) context E: (slots, d_out)."""
    scaled = W_Q / math.sqrt(W_Q.shape[-1])
    if contexts.shape[0] == 1:  # shared by all queries: projected once
        weights = _shared_scores(queries, contexts[0] @ W_K, scaled).softmax(dim=-1)  # (heads, slots, n)
        values = weights @ (contexts[0] @ W_V)  # (heads, slots, d_vo)
    else:  # q·(x W_K) = (q W_Kᵀ)·x, and likewise for values, so that no context is projected
        weights = ((queries @ scaled @ W_K.mT).transpose(0, 1) @ contexts.mT).softmax(dim=-1)  # (slots, heads, n)
        values = (weights @ contexts).transpose(0, 1) @ W_V  # (heads, slots, d_vo)
    return torch.einsum("hsv,hvo->so", values, W_O)


def _shared_scores(queries: Tensor, keys: Tensor, W_Q: Tensor) -> Tensor:
    """(e W_Q)·k for all queries e and the (heads, n, d_qk) keys they share, in the cheaper order: (heads, slots, n)."""
    d, d_qk, n = *W_Q.shape[1:], keys.shape[1]
    if d * n < d_qk * (d + n):  # e (W_Q k): the many queries are multiplied only once
        return queries @ (W_Q @ keys.mT)
    return (queries @ W_Q) @ keys.mT


def attend_grid(first: Tensor, last: Tensor, W_Q: Tensor, W_K: Tensor, W_V: Tensor, W_O: Tensor) -> Tensor:
    """`attend` of each vector of `last` over itself and one vector of `first`, for all pairs: (first, last, d_out).

    Over two positions the softmax is a sigmoid a of the difference of two scores, and a head's output is
    u_last + a (u_first - u_last) with u = x W_V W_O, so that every vector is projected once, not once per pair.
    """
    queries = last @ (W_Q / math.sqrt(W_Q.shape[-1]))  # (heads, last, d_qk)
    # Minus signs are applied to small tensors, which makes the backward pass cheaper.
    minus_own = (queries * (last @ -W_K)).sum(dim=-1)  # (heads, last)
    a = torch.sigmoid((first @ W_K) @ queries.mT + minus_own.unsqueeze(1))  # (heads, first, last)
    return mix_grid(a, first, last, W_V @ W_O)


def mix_grid(a: Tensor, first: Tensor, last: Tensor, W_VO: Tensor) -> Tensor:
    """Σ_h u_last + a (u_first - u_last) with u = x W_VO; a is the attention to the first vector, (heads, first, last).

    Term by term for few heads, else as two matrix products with the wide axis last: small matrices multiply
    several times faster that way.
    """
    if len(W_VO) <= FEW_HEADS:
        u_first, u_last = first @ W_VO, last @ W_VO  # (heads, first or last, d_out)
        return (a.unsqueeze(-1) * (u_first.unsqueeze(2) - u_last.unsqueeze(1))).sum(dim=0) + u_last.sum(dim=0)
    u_first, minus_u_last = (torch.einsum("nd,hdo->noh", x, W) for x, W in ((first, W_VO), (last, -W_VO)))
    from_first = (u_first @ a.transpose(0, 1)).mT  # Σ_h a u_first, (first, last, d_out)
    from_last = (minus_u_last @ a.permute(2, 0, 1)).permute(2, 0, 1)  # -Σ_h a u_last, (first, last, d_out)
    return from_first + from_last - minus_u_last.sum(dim=-1)
