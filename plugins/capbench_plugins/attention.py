"""Softmax attention of one query, as the papers' one-layer models need it: explicit, and batched by vmap."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

FEW_HEADS = 4
"""Up to so many heads a grid is mixed quicker term by term than by products of small matrices."""
Maps = tuple[Tensor, Tensor, Tensor, Tensor]
"""W_Q, W_K (heads, d, d_qk), W_V (heads, d, d_vo) and W_O (heads, d_vo, d_out), one matrix a head."""


def gaussian(*shape: int, std: float) -> nn.Parameter:
    """Weights drawn with mean 0 and the given standard deviation."""
    return nn.Parameter(torch.randn(*shape) * std)


def uniform(*shape: int, limit: float) -> nn.Parameter:
    """Weights drawn evenly from -limit to limit."""
    return nn.Parameter(torch.empty(*shape).uniform_(-limit, limit))


def attend(queries: Tensor, contexts: Tensor, W_Q: Tensor, W_K: Tensor, W_V: Tensor, W_O: Tensor) -> Tensor:
    """Σ_h softmax(e W_Q W_Kᵀ Eᵀ / √d_qk) E W_V W_O: each (d,) query e over its (n, d) context E, that row alone."""
    scaled = W_Q / math.sqrt(W_Q.shape[-1])
    if contexts.shape[0] == 1:  # shared by all queries: projected once
        weights = _shared_scores(queries, contexts[0] @ W_K, scaled).softmax(dim=-1)  # (heads, slots, n)
        values = weights @ (contexts[0] @ W_V)  # (heads, slots, d_vo)
    else:  # q·(x W_K) = (q W_Kᵀ)·x, and values likewise: no context is projected at all
        weights = ((queries @ scaled @ W_K.mT).transpose(0, 1) @ contexts.mT).softmax(dim=-1)  # (slots, heads, n)
        values = (weights @ contexts).transpose(0, 1) @ W_V  # (heads, slots, d_vo)
    return torch.einsum("hsv,hvo->so", values, W_O)


def _shared_scores(queries: Tensor, keys: Tensor, W_Q: Tensor) -> Tensor:
    """(e W_Q)·k for all queries e over the same (heads, n, d_qk) keys, (heads, slots, n): in the cheaper order."""
    d, d_qk, n = *W_Q.shape[1:], keys.shape[1]
    if d * n < d_qk * (d + n):  # e (W_Q k): the queries are multiplied once, by what is as small as the context
        return queries @ (W_Q @ keys.mT)
    return (queries @ W_Q) @ keys.mT


def attend_grid(first: Tensor, last: Tensor, W_Q: Tensor, W_K: Tensor, W_V: Tensor, W_O: Tensor) -> Tensor:
    """`attend` of every (d,) vector of `last` over each pair of one of `first` and itself, (first, last, d_out).

    Over two positions the softmax is a sigmoid a of the difference of two scores, and a head's output is
    u_last + a (u_first - u_last) with u = x W_V W_O: every vector is projected once, not once a pair.
    """
    queries = last @ (W_Q / math.sqrt(W_Q.shape[-1]))  # (heads, last, d_qk)
    own = (queries * (last @ -W_K)).sum(dim=-1)  # (heads, last); minus signs stand at small tensors: cheaper backwards
    share = torch.sigmoid((first @ W_K) @ queries.mT + own.unsqueeze(1))  # (heads, first, last)
    return mix_grid(share, first, last, W_V @ W_O)


def mix_grid(share: Tensor, first: Tensor, last: Tensor, W_VO: Tensor) -> Tensor:
    """Σ_h u_last + a (u_first - u_last) with u = x W_VO, from the (heads, first, last) shares a of the first.

    For few heads term by term. For many as two products, in which the wide axis stands last: small matrices
    multiply several times faster so.
    """
    if len(W_VO) <= FEW_HEADS:
        u_first, u_last = first @ W_VO, last @ W_VO  # (heads, first or last, d_out)
        return (share.unsqueeze(-1) * (u_first.unsqueeze(2) - u_last.unsqueeze(1))).sum(dim=0) + u_last.sum(dim=0)
    from_first, minus_last = (torch.einsum("nd,hdo->noh", x, W) for x, W in ((first, W_VO), (last, -W_VO)))
    gained = (from_first @ share.transpose(0, 1)).mT  # (first, last, d_out)
    lost = (minus_last @ share.permute(2, 0, 1)).permute(2, 0, 1)  # (first, last, d_out)
    return gained + lost - minus_last.sum(dim=-1)
