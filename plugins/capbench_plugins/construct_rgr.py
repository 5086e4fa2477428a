"""Weights of `mha` that recover a graph by signatures: a source's query meets its targets' keys.

In the spirit of Adler 2025, arXiv 2509.22840; all of it [derived]. The edges are split over the heads; in a head
every source i has a code s_i, W_Q = Σ_i f_i s_iᵀ and W_K = Σ_i Σ_{j: i→j} f_j s_iᵀ, where a filter f_i picks item i
out of a vector. There are choices, and the ones that score best are used:

- split: whole sources to a head, or single edges;
- codes: orthonormal where a head's sources fit into d_qk; else random signs / √d_qk, or points on a circle;
- filters: x_i itself, or of all f with f·x_i = 1 the one that responds least to the other items.

What is known of them: one-hot items (or any m <= d independent ones) are picked out perfectly, and then orthonormal
codes are exact for any graph, a circle is exact for a permutation from d_qk = 2, and random signs for a permutation
with probability 1 - δ in one head of d_qk >= 16 ln m + 8 ln(1/δ). One head an edge (d_qk = 1) is exact for unit
vectors of which no two are equal or opposite. In between success is measured, not guaranteed.

Float32 is enough but for circles of more than about a thousand sources in a head.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Generator, Tensor, nn

from capbench import Heads, Problem, Task
from capbench_plugins.construct_codes import circle


class Cut(NamedTuple):
    """A threshold on the scores, and how well it tells the edges from the other pairs."""

    f1: float
    gap: float
    threshold: float


def reach(task: Task, heads: Heads) -> int:
    """Every graph may be tried."""
    return task.max_load


def weights(task: Task, heads: Heads, module: nn.Module, problem: Problem, generator: Generator) -> dict[str, Tensor]:
    """The signature construction with the split, codes and filters that tell the edges best."""
    items, edges, mask = (tensor.double().cpu() for tensor in (*problem.inputs, problem.targets, problem.mask))
    found = []
    for W_Q, W_K in _candidates(items, edges, heads, generator):
        scores = ((items @ W_Q) @ (items @ W_K).mT).amax(dim=0)  # (items, items)
        found.append((best_cut(scores, edges, mask), W_Q, W_K))
    cut, W_Q, W_K = max(found, key=lambda candidate: candidate[0][:2])
    threshold = torch.tensor(cut.threshold, dtype=torch.float64)
    return {"W_Q": W_Q, "W_K": W_K, "log_scale": torch.zeros_like(threshold), "threshold": threshold}


def _candidates(items: Tensor, edges: Tensor, heads: Heads, generator: Generator) -> Iterator[tuple[Tensor, Tensor]]:
    """W_Q and W_K of every head, (heads, d, d_qk), for each way to split, code and filter."""
    for parts in _splits(edges, heads.n_heads):
        for codes in _codes(parts.any(dim=2), heads.d_qk, generator):
            for filters in _filters(items):
                yield filters.T @ codes, filters.T @ parts.mT @ codes


def _splits(edges: Tensor, n_heads: int) -> Iterator[Tensor]:
    """Each head's share of the graph, (heads, items, items): of whole sources, and of single edges."""
    source, target = edges.nonzero(as_tuple=True)  # in the order of sources
    which_source = edges.any(dim=1).cumsum(0)[source] - 1
    for unit in (which_source, torch.arange(len(source))):
        parts = torch.zeros(n_heads, *edges.shape, dtype=torch.float64)
        parts[unit * n_heads // (unit[-1] + 1), source, target] = 1.0
        yield parts


def best_cut(scores: Tensor, edges: Tensor, mask: Tensor) -> Cut:
    """The threshold with the best F1: midway between the lowest edge and the highest other pair where they part."""
    asked = mask > 0
    ranked, order = scores[asked].sort(descending=True)
    weight, is_edge = mask[asked][order], edges[asked][order]
    found = (weight * is_edge).cumsum(0)  # weight of the edges among the first pairs
    f1 = 2 * found / (weight.cumsum(0) + found[-1])
    below = torch.cat([ranked[1:], ranked[-1:] - 1])
    gaps = ranked - below
    f1 = torch.where(gaps > 0, f1, -1.0)  # equal scores cannot be parted
    last = int(f1.argmax())
    return Cut(float(f1[last]), float(gaps[last]), float((ranked[last] + below[last]) / 2))


def _codes(is_source: Tensor, d_qk: int, generator: Generator) -> Iterator[Tensor]:
    """Codes of the sources of each head, (heads, items, d_qk), zero for other items."""
    rank = is_source.cumsum(dim=1) - 1  # (heads, items)
    n_sources = is_source.sum(dim=1, keepdim=True)
    here = is_source.unsqueeze(2).double()
    if int(n_sources.max()) <= d_qk:
        yield torch.eye(d_qk, dtype=torch.float64)[rank.clamp(min=0, max=d_qk - 1)] * here
        return
    signs = torch.randint(2, (*is_source.shape, d_qk), generator=generator).double() * 2 - 1
    yield signs / d_qk**0.5 * here
    if d_qk >= 2:
        codes = torch.zeros_like(signs)
        codes[..., :2] = circle(rank / n_sources.clamp(min=1))
        yield codes * here


def _filters(items: Tensor) -> Iterator[Tensor]:
    """Vectors that pick items out, (items, d): each responds with 1 to its own."""
    yield items / items.square().sum(dim=1, keepdim=True)
    quiet = torch.linalg.pinv(items).T
    yield quiet / (quiet * items).sum(dim=1, keepdim=True)
