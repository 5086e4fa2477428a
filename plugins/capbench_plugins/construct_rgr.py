"""Weights of `mha` that recover a graph by signatures: the query of a source matches the keys of its targets.

In the spirit of Adler 2025, arXiv 2509.22840; all of it [derived]. The edges are split over the heads; in a head
every source i has a code s_i, W_Q = Σ_i f_i s_iᵀ and W_K = Σ_i Σ_{j: i→j} f_j s_iᵀ, where a filter f_i responds
to item i. There are several choices, and the combination that scores best is used:

- split: each head gets whole sources, or single edges;
- codes: orthonormal if a head has at most d_qk sources; else random signs / √d_qk, or points on a circle;
- filters: x_i itself, or among all f with f·x_i = 1 the one that responds least to the other items.

What is known: for one-hot items (or any m <= d independent ones) filters are perfect. Then orthonormal codes are exact
for any graph, a circle is exact for a permutation from d_qk = 2, and random signs are exact for a permutation with
probability 1 - δ in one head of d_qk >= 16 ln m + 8 ln(1/δ). One head per edge (d_qk = 1) is exact for unit vectors
of which no two are equal or opposite. In between, success is measured, not guaranteed.

Float32 is enough, except for circles of more than about a thousand sources per head.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Generator, Tensor, nn

from capbench import Heads, Problem, Task
from capbench_plugins.construct_codes import circle


class ScoreThreshold(NamedTuple):
    """A threshold on the scores, and how well it separates the edges from the other pairs."""

    f1: float
    gap: float
    value: float


def reach(task: Task, heads: Heads) -> int:
    """The task's maximum: any graph may be tried."""
    return task.max_load


def weights(task: Task, heads: Heads, module: nn.Module, problem: Problem, generator: Generator) -> dict[str, Tensor]:
    """The signature construction with the split, codes and filters that separate the edges best."""
    items, edges, mask = (t.double().cpu() for t in (problem.inputs[0], problem.targets, problem.mask))
    found = []
    for W_Q, W_K in _candidates(items, edges, heads, generator):
        scores = ((items @ W_Q) @ (items @ W_K).mT).amax(dim=0)  # (items, items)
        found.append((best_threshold(scores, edges, mask), W_Q, W_K))
    best, W_Q, W_K = max(found, key=lambda candidate: candidate[0][:2])
    threshold = torch.tensor(best.value, dtype=torch.float64)
    return {"W_Q": W_Q, "W_K": W_K, "log_scale": torch.zeros_like(threshold), "threshold": threshold}


def _candidates(items: Tensor, edges: Tensor, heads: Heads, generator: Generator) -> Iterator[tuple[Tensor, Tensor]]:
    """W_Q and W_K of all heads, (heads, d, d_qk), for each combination of split, codes and filters."""
    for parts in _splits(edges, heads.n_heads):
        for codes in _codes(parts.any(dim=2), heads.d_qk, generator):
            for filters in _filters(items):
                yield filters.T @ codes, filters.T @ parts.mT @ codes


def _splits(edges: Tensor, n_heads: int) -> Iterator[Tensor]:
    """Each head's part of the graph, (heads, items, items): split by whole sources, then by single edges."""
    source, target = edges.nonzero(as_tuple=True)  # sorted by source
    which_source = edges.any(dim=1).cumsum(0)[source] - 1
    for unit in (which_source, torch.arange(len(source))):
        parts = torch.zeros(n_heads, *edges.shape, dtype=torch.float64)
        parts[unit * n_heads // (unit[-1] + 1), source, target] = 1.0
        yield parts


def best_threshold(scores: Tensor, edges: Tensor, mask: Tensor) -> ScoreThreshold:
    """The threshold with the best F1, midway between the two scores that it separates."""
    is_scored = mask > 0
    ranked, order = scores[is_scored].sort(descending=True)
    weight, is_edge = mask[is_scored][order], edges[is_scored][order]
    found = (weight * is_edge).cumsum(0)  # weight of the edges among the k highest pairs
    f1 = 2 * found / (weight.cumsum(0) + found[-1])
    below = torch.cat([ranked[1:], ranked[-1:] - 1])
    gaps = ranked - below
    f1 = torch.where(gaps > 0, f1, -1.0)  # equal scores cannot be separated
    last = int(f1.argmax())
    return ScoreThreshold(float(f1[last]), float(gaps[last]), float((ranked[last] + below[last]) / 2))


def _codes(is_source: Tensor, d_qk: int, generator: Generator) -> Iterator[Tensor]:
    """Codes of each head's sources, (heads, items, d_qk); zero for other items."""
    rank = is_source.cumsum(dim=1) - 1  # (heads, items)
    n_sources = is_source.sum(dim=1, keepdim=True)
    mask = is_source.unsqueeze(2).double()  # (heads, items, 1)
    if int(n_sources.max()) <= d_qk:
        yield torch.eye(d_qk, dtype=torch.float64)[rank.clamp(min=0, max=d_qk - 1)] * mask
        return
    signs = torch.randint(2, (*is_source.shape, d_qk), generator=generator).double() * 2 - 1
    yield signs / d_qk**0.5 * mask
    if d_qk >= 2:
        codes = torch.zeros_like(signs)
        codes[..., :2] = circle(rank / n_sources.clamp(min=1))
        yield codes * mask


def _filters(items: Tensor) -> Iterator[Tensor]:
    """Filters, (items, d): the dot product of each with its own item is 1."""
    yield items / items.square().sum(dim=1, keepdim=True)
    selective = torch.linalg.pinv(items).T
    yield selective / (selective * items).sum(dim=1, keepdim=True)
