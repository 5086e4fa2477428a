"""Relational graph recognition: which pairs of items does the key-query channel relate?

Adler, "On the Capacity of Self-Attention", arXiv 2509.22840.
"""

from __future__ import annotations

import math
from typing import ClassVar, Literal

import torch
from pydantic import Field, model_validator
from torch import Generator, Tensor
from torch.nn import functional as F

from capbench import (
    Criterion,
    LoadOutOfRange,
    Problem,
    Recipe,
    Relation,
    Task,
    hookimpl,
)

COMMON = 0.7
"""Length of the direction that anisotropic vectors share, against 1 for the spread of each around it: their mean cosine
is then about 1/3, as is common among the token embeddings of trained models [protocol]."""
Graph = Literal["permutation", "random", "out_regular", "hubs"]


class Rgr(Task):
    """Recover a directed graph on items with given vectors. A fact is an edge."""

    name: ClassVar[str] = "rgr"
    fact: ClassVar[str] = "edge"
    criterion: ClassVar[Criterion] = Criterion("f1", 0.99)
    recipe: ClassVar[Recipe] = Recipe(learning_rates=(0.1, 0.2, 0.4, 0.8, 1.6), steps=1500)
    presets: ClassVar = {
        "smoke": {"n_items": 24, "d_item": 8},
        "paper": {"n_items": 256, "d_item": 32},
    }

    n_items: int = Field(64, ge=2, le=16384, description="m: items in the graph")
    d_item: int = Field(16, ge=1, le=16384, description="d: width of an item's vector; m/d is the compression")
    graph: Graph = Field(
        "random",
        description="permutation: distinct targets, one per source; random: any edges; "
        "out_regular: out_degree edges per source; hubs: power-law in-degrees",
    )
    embedding: Literal["gaussian", "anisotropic", "one_hot", "given"] = Field(
        "gaussian",
        description="gaussian: random unit vectors, new for each seed; anisotropic: random ones around a common "
        "direction whose spread falls from axis to axis, as in trained embeddings; one_hot: needs m <= d; "
        "given: as in `vectors`",
    )
    vectors: tuple[tuple[float, ...], ...] = Field(
        (), description="the items' vectors for embedding=given: n_items rows of d_item numbers"
    )
    out_degree: int = Field(4, ge=1, description="edges per source, for out_regular")
    hub_exponent: float = Field(
        1.0, gt=0, le=4, description="for hubs, the r-th most popular target draws edges in proportion to r^-exponent"
    )
    context_size: int = Field(
        0,
        ge=0,
        description="score in random contexts of this many items, within which attention is normalised where it is; "
        "0: on all items at once, the strictest test of scores that do not depend on the context",
    )
    n_contexts: int = Field(64, ge=1, le=4096, description="number of contexts drawn if context_size > 0")

    @model_validator(mode="after")
    def _sizes_fit(self) -> Rgr:
        if self.embedding == "one_hot" and self.n_items > self.d_item:
            raise ValueError(
                f"one_hot needs n_items <= d_item, got {self.n_items} > {self.d_item}; raise d_item or use gaussian"
            )
        shape = (len(self.vectors), {len(row) for row in self.vectors})
        if self.embedding == "given" and shape != (self.n_items, {self.d_item}):
            raise ValueError(
                f"embedding=given needs {self.n_items} vectors of width {self.d_item}, got {shape[0]} of width "
                f"{sorted(shape[1])}; set n_items and d_item to fit"
            )
        if self.embedding != "given" and self.vectors:
            raise ValueError("vectors are read only where embedding=given")
        if self.graph == "out_regular" and self.out_degree >= self.n_items:
            raise ValueError(f"out_degree must be below n_items, got {self.out_degree} >= {self.n_items}")
        if self.context_size == 1 or self.context_size > self.n_items:
            raise ValueError(f"context_size must be 0 or 2..n_items, got {self.context_size}")
        return self

    @property
    def signature(self) -> Relation:
        """Items, and contexts if they are sampled, in; scores of ordered pairs out."""
        return Relation(self.n_items, self.d_item, self.n_contexts if self.context_size else 0)

    @property
    def has_self_loops(self) -> bool:
        """Whether an item may be related to itself; only a permutation may map an item to itself."""
        return self.graph == "permutation"

    @property
    def max_load(self) -> int:
        """The most edges of the family; for random and hubs half of all pairs: beyond, the complement is simpler."""
        if self.graph == "permutation":
            return self.n_items
        if self.graph == "out_regular":
            return self.n_items * self.out_degree
        return self.n_items * (self.n_items - 1) // 2

    @property
    def typical_load(self) -> int:
        """Two edges per item, or as many as the family allows."""
        return min(self.max_load, 2 * self.n_items) if self.graph in ("random", "hubs") else self.max_load

    def problem(self, load: int, slots: int, generator: Generator) -> Problem:
        """A graph with `load` edges on freshly drawn items; tensor shapes depend on the items, not on the load."""
        if not 1 <= load <= self.max_load:
            raise LoadOutOfRange(
                f"a {self.graph} graph on {self.n_items} items has 1 to {self.max_load} edges, got {load}"
            )
        vectors = self._vectors(generator)
        source, target = self._edges(load, generator)
        adjacency = torch.zeros(self.n_items, self.n_items)
        adjacency[source, target] = 1.0
        if self.context_size == 0:
            return Problem((vectors,), adjacency, self._without_loops(torch.ones(self.n_items, self.n_items)))
        contexts = self._contexts(generator)
        return Problem((vectors, contexts), adjacency, self._without_loops(contexts.T @ contexts))

    def loss(self, outputs: Tensor, problem: Problem) -> Tensor:
        """Binary cross-entropy over pairs, with edges weighted by the square root of non-edges over edges."""
        mask = self._mask(outputs, problem)
        edges, pairs = (problem.targets * problem.mask).sum(), problem.mask.sum()
        boost = torch.sqrt((pairs - edges) / edges.clamp(min=1.0))
        weight = mask * (1 + (boost.clamp(min=1.0) - 1) * problem.targets)
        # For targets of 0 and 1 the cross-entropy is softplus(∓score), which takes fewer passes over memory.
        cross_entropy = F.softplus(outputs * (1 - 2 * problem.targets))
        return (weight * cross_entropy).sum() / pairs

    def metrics(self, outputs: Tensor, problem: Problem) -> dict[str, Tensor]:
        """Micro-F1 over the scored pairs, and the bits of the graph that the scores store."""
        predicted = (outputs > 0).to(outputs.dtype) * self._mask(outputs, problem)
        edges = problem.targets * problem.mask
        found = (predicted * problem.targets).sum()
        total = predicted.sum() + edges.sum()
        # In contexts without an edge, predicting none is right.
        f1 = torch.where(total > 0, 2 * found / total.clamp(min=1.0), torch.ones_like(total))
        return {"f1": f1, "bits": self._bits(outputs, problem)}

    def _bits(self, outputs: Tensor, problem: Problem) -> Tensor:
        """Bits that specify the graph, less those that correct the predicted edges into it.

        Where the scores depend on the context, a pair counts as predicted if most contexts that have it say so.
        """
        is_scored = (problem.mask > 0).to(outputs.dtype)
        votes = torch.where(outputs > 0, 1.0, -1.0) * self._mask(outputs, problem)  # (items, items), or per context
        votes = votes if votes.dim() == 2 else votes.sum(dim=0)
        predicted, edges = (votes > 0).to(outputs.dtype) * is_scored, problem.targets * is_scored
        n_pairs, n_predicted, n_edges = is_scored.sum(), predicted.sum(), edges.sum()
        found = (predicted * edges).sum()
        wrong, missed = n_predicted - found, n_edges - found
        corrections = log2_binomial(n_predicted, wrong) + log2_binomial(n_pairs - n_predicted, missed)
        count = 2 * torch.log2(1 + missed) + 1  # the number of missed edges, in Elias' gamma code
        return (self._graph_bits(n_pairs, n_edges) - corrections - count).clamp(min=0.0)

    def _graph_bits(self, n_pairs: Tensor, n_edges: Tensor) -> Tensor:
        """Bits that specify one graph of the family with this many edges (any graph, for hubs and out_regular)."""
        if self.graph != "permutation":
            return log2_binomial(n_pairs, n_edges)
        items = torch.full_like(n_edges, float(self.n_items))
        arrangements = torch.lgamma(n_edges + 1) / math.log(2)
        anywhere = 2 * log2_binomial(items, n_edges) + arrangements
        return torch.minimum(anywhere, log2_binomial(n_pairs, n_edges))  # sampled contexts may score few pairs

    def _vectors(self, generator: Generator) -> Tensor:
        if self.embedding == "one_hot":
            return torch.eye(self.n_items, self.d_item)
        if self.embedding == "given":
            return torch.tensor(self.vectors)
        vectors = torch.randn(self.n_items, self.d_item, generator=generator)
        if self.embedding == "anisotropic":
            spread = torch.arange(1, self.d_item + 1, dtype=vectors.dtype) ** -0.5
            vectors = vectors * spread / spread.norm() + COMMON * F.one_hot(torch.tensor(0), self.d_item)
        return F.normalize(vectors, dim=1)

    def _edges(self, load: int, generator: Generator) -> tuple[Tensor, Tensor]:
        """Sources and targets of `load` distinct edges."""
        m = self.n_items
        if self.graph == "permutation":
            return torch.randperm(m, generator=generator)[:load], torch.randperm(m, generator=generator)[:load]
        if self.graph == "out_regular":
            rank = torch.rand(m, m - 1, generator=generator).argsort(dim=1)[:, : self.out_degree]  # (sources, degree)
            source = torch.randperm(m, generator=generator).repeat_interleave(self.out_degree)[:load]
            return _without_self(source, rank.flatten()[:load])
        if self.graph == "hubs":
            return self._hub_edges(load, generator)
        pair = torch.randperm(m * (m - 1), generator=generator)[:load]
        return _without_self(pair // (m - 1), pair % (m - 1))

    def _hub_edges(self, load: int, generator: Generator) -> tuple[Tensor, Tensor]:
        """Edges drawn without replacement, in proportion to the popularity of their targets (Gumbel top-k)."""
        m = self.n_items
        popularity = -self.hub_exponent * torch.log1p(torch.randperm(m, generator=generator).float())
        noise = -torch.log(torch.empty(m, m).exponential_(generator=generator))
        keys = (popularity + noise).fill_diagonal_(-math.inf)  # (sources, targets)
        pair = keys.flatten().topk(load).indices
        return pair // m, pair % m

    def _contexts(self, generator: Generator) -> Tensor:
        """Which items each random context has, (contexts, items) of 0 and 1."""
        order = torch.rand(self.n_contexts, self.n_items, generator=generator).argsort(dim=1)
        return (order < self.context_size).float()

    def _without_loops(self, weights: Tensor) -> Tensor:
        """The weights of ordered pairs; 0 on the diagonal unless the graph has self-loops."""
        return weights if self.has_self_loops else weights.fill_diagonal_(0.0)

    def _mask(self, outputs: Tensor, problem: Problem) -> Tensor:
        """The weight of each score: how many contexts have its pair, or whether its own context has it."""
        if outputs.dim() == 2:
            return problem.mask
        contexts = problem.inputs[1]  # (contexts, items)
        is_pair = (problem.mask > 0).to(contexts.dtype)
        return contexts.unsqueeze(2) * contexts.unsqueeze(1) * is_pair  # (contexts, items, items)


def _without_self(source: Tensor, rank: Tensor) -> tuple[Tensor, Tensor]:
    """Sources, and targets given as ranks among the other items turned into item indices."""
    return source, rank + (rank >= source)


def log2_binomial(n: Tensor, k: Tensor) -> Tensor:
    """log2 of n choose k by Stirling's series; unlike a difference of lgammas it stays accurate in float32."""
    inside = (k >= 0.5) & (n - k >= 0.5)
    k = torch.where(inside, k, torch.ones_like(k))
    n = torch.where(inside, n, torch.full_like(n, 2.0))
    rest = n - k
    nats = k * torch.log(n / k) - rest * torch.log1p(-k / n) + 0.5 * torch.log(n / (2 * math.pi * k * rest))
    nats = nats + _stirling_remainder(n) - _stirling_remainder(k) - _stirling_remainder(rest)
    return torch.where(inside, nats / math.log(2), torch.zeros_like(nats))


def _stirling_remainder(x: Tensor) -> Tensor:
    return 1 / (12 * x) - 1 / (360 * x**3) + 1 / (1260 * x**5)


@hookimpl
def capbench_tasks() -> list[type[Task]]:
    """Relational graph recognition."""
    return [Rgr]
