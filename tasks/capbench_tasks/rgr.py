"""Relational graph recognition: which pairs of items does the key-query channel relate?

Adler, "On the Capacity of Self-Attention", arXiv 2509.22840.
"""

from __future__ import annotations

import math
from typing import ClassVar, Literal

import torch
from pydantic import Field, model_validator
from scipy.special import lambertw
from torch import Generator, Tensor
from torch.nn import functional as F

from capbench import (
    D_K,
    FACTS,
    Architecture,
    Bound,
    BoundValue,
    Criterion,
    Kind,
    LoadOutOfRange,
    NotApplicable,
    Pedigree,
    Problem,
    Recipe,
    Relation,
    Task,
    hookimpl,
)

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
        description="permutation: distinct targets, one a source; random: any edges; "
        "out_regular: out_degree edges a source; hubs: power-law in-degrees",
    )
    embedding: Literal["gaussian", "one_hot", "given"] = Field(
        "gaussian",
        description="gaussian: random unit vectors, new for each seed; one_hot: needs m <= d; given: as in `vectors`",
    )
    vectors: tuple[tuple[float, ...], ...] = Field(
        (), description="the items' vectors where embedding=given: n_items rows of d_item"
    )
    out_degree: int = Field(4, ge=1, description="edges a source on out_regular")
    hub_exponent: float = Field(
        1.0, gt=0, le=4, description="on hubs, the r-th most popular target draws edges in proportion to r^-exponent"
    )
    context_size: int = Field(
        0, ge=0, description="score in random contexts of this many items; 0: on all items at once, the strictest test"
    )
    n_contexts: int = Field(64, ge=1, le=4096, description="how many contexts are drawn where context_size > 0")

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
        """Items in, scores of ordered pairs out."""
        return Relation(self.n_items, self.d_item)

    @property
    def has_self_loops(self) -> bool:
        """Only a permutation may map an item to itself."""
        return self.graph == "permutation"

    @property
    def max_load(self) -> int:
        """The most edges of the family; of free graphs, half of all pairs: beyond, the complement is simpler."""
        if self.graph == "permutation":
            return self.n_items
        if self.graph == "out_regular":
            return self.n_items * self.out_degree
        return self.n_items * (self.n_items - 1) // 2

    @property
    def typical_load(self) -> int:
        """Two edges an item, or as many as the family allows."""
        return min(self.max_load, 2 * self.n_items) if self.graph in ("random", "hubs") else self.max_load

    def problem(self, load: int, slots: int, generator: Generator) -> Problem:
        """A graph with `load` edges on freshly drawn items; its shape is that of the item set, not of the load."""
        if not 1 <= load <= self.max_load:
            raise LoadOutOfRange(
                f"a {self.graph} graph on {self.n_items} items has 1 to {self.max_load} edges, got {load}"
            )
        vectors = self._vectors(generator)
        source, target = self._edges(load, generator)
        adjacency = torch.zeros(self.n_items, self.n_items)
        adjacency[source, target] = 1.0
        return Problem((vectors,), adjacency, self._pair_weights(generator))

    def loss(self, outputs: Tensor, problem: Problem) -> Tensor:
        """Binary cross-entropy over pairs, edges weighted up by the root of their rarity."""
        edges, pairs = (problem.targets * problem.mask).sum(), problem.mask.sum()
        boost = torch.sqrt((pairs - edges) / edges.clamp(min=1.0))
        weight = problem.mask * (1 + (boost.clamp(min=1.0) - 1) * problem.targets)
        # For targets of 0 and 1 the cross-entropy is softplus of the score, its sign turned: fewer passes over memory.
        wrongness = F.softplus(outputs * (1 - 2 * problem.targets))
        return (weight * wrongness).sum() / pairs

    def metrics(self, outputs: Tensor, problem: Problem) -> dict[str, Tensor]:
        """Micro-F1 over the pairs asked, and the bits of the graph that the scores hold."""
        predicted = (outputs > 0).to(outputs.dtype) * problem.mask
        edges = problem.targets * problem.mask
        right = (predicted * problem.targets).sum()
        named = predicted.sum() + edges.sum()
        # Contexts that hold no edge are answered rightly by predicting none.
        f1 = torch.where(named > 0, 2 * right / named.clamp(min=1.0), torch.ones_like(named))
        return {"f1": f1, "bits": self._bits(outputs, problem)}

    def _bits(self, outputs: Tensor, problem: Problem) -> Tensor:
        """Bits that name the graph, less those that correct the predicted edges into it."""
        asked = (problem.mask > 0).to(outputs.dtype)
        predicted, edges = (outputs > 0).to(outputs.dtype) * asked, problem.targets * asked
        n_pairs, n_predicted, n_edges = asked.sum(), predicted.sum(), edges.sum()
        right = (predicted * edges).sum()
        wrong, missed = n_predicted - right, n_edges - right
        corrections = log2_binomial(n_predicted, wrong) + log2_binomial(n_pairs - n_predicted, missed)
        count = 2 * torch.log2(1 + missed) + 1  # how many are missed, in Elias' gamma code
        return (self._graph_bits(n_pairs, n_edges) - corrections - count).clamp(min=0.0)

    def _graph_bits(self, n_pairs: Tensor, n_edges: Tensor) -> Tensor:
        """Bits that name one graph of the family with this many edges (any graph, for hubs and out_regular)."""
        if self.graph != "permutation":
            return log2_binomial(n_pairs, n_edges)
        items = torch.full_like(n_edges, float(self.n_items))
        arrangements = torch.lgamma(n_edges + 1) / math.log(2)
        anywhere = 2 * log2_binomial(items, n_edges) + arrangements
        return torch.minimum(anywhere, log2_binomial(n_pairs, n_edges))  # sampled contexts may ask few of the pairs

    def _vectors(self, generator: Generator) -> Tensor:
        if self.embedding == "one_hot":
            return torch.eye(self.n_items, self.d_item)
        if self.embedding == "given":
            return torch.tensor(self.vectors)
        return F.normalize(torch.randn(self.n_items, self.d_item, generator=generator), dim=1)

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

    def _pair_weights(self, generator: Generator) -> Tensor:
        """How often each ordered pair is asked: once, or in as many contexts as hold both items."""
        m = self.n_items
        if self.context_size == 0:
            weights = torch.ones(m, m)
        else:
            order = torch.rand(self.n_contexts, m, generator=generator).argsort(dim=1)
            present = (order < self.context_size).float()  # (contexts, items)
            weights = present.T @ present
        return weights if self.has_self_loops else weights.fill_diagonal_(0.0)


def _without_self(source: Tensor, rank: Tensor) -> tuple[Tensor, Tensor]:
    """Targets counted among the other items, as item numbers."""
    return source, rank + (rank >= source)


def log2_binomial(n: Tensor, k: Tensor) -> Tensor:
    """log2 of n choose k by Stirling's series; unlike a difference of lgammas it keeps its digits in float32."""
    inside = (k >= 0.5) & (n - k >= 0.5)
    k = torch.where(inside, k, torch.ones_like(k))
    n = torch.where(inside, n, torch.full_like(n, 2.0))
    rest = n - k
    nats = k * torch.log(n / k) - rest * torch.log1p(-k / n) + 0.5 * torch.log(n / (2 * math.pi * k * rest))
    nats = nats + _stirling_rest(n) - _stirling_rest(k) - _stirling_rest(rest)
    return torch.where(inside, nats / math.log(2), torch.zeros_like(nats))


def _stirling_rest(x: Tensor) -> Tensor:
    return 1 / (12 * x) - 1 / (360 * x**3) + 1 / (1260 * x**5)


def _heads_of(task: Task, architecture: Architecture) -> tuple[Rgr, int, int]:
    """The task, D_K and d; both bounds need them."""
    if not isinstance(task, Rgr):
        raise NotApplicable("it speaks of relational graph recognition")
    heads = architecture.heads(task.signature)
    if heads is None:
        raise NotApplicable(f"{architecture.name} does not have the heads that the theorem counts")
    return task, heads.d_qk_total, heads.d_model


class CapacityLaw(Bound):
    """Total key dimension against edges: an order of growth."""

    name: ClassVar[str] = "adler2025.law"
    kind: ClassVar[Kind] = Kind.LAW
    statement: ClassVar[str] = "the total key dimension needed to recover m' edges grows as m' log m' / d"
    formula: ClassVar[str] = "D_K = Θ(m' ln m' / d)"
    citation: ClassVar[str] = (
        "Adler 2025, On the Capacity of Self-Attention, arXiv 2509.22840 (v1, v2; v3: m'/d up to logarithms)"
    )
    pedigree: ClassVar[Pedigree] = Pedigree.PAPER

    def evaluate(self, task: Task, architecture: Architecture, load: int | None) -> BoundValue:
        """D_K at `load` edges, or the edges that D_K allows; in both the constant is set to 1."""
        _, d_qk_total, d = _heads_of(task, architecture)
        if load == 1:
            raise NotApplicable("m' log m' is 0 for a single edge")
        if load is not None:
            return BoundValue(load * math.log(load) / d, D_K, f"at {load} edges, constant 1")
        edges = math.exp(lambertw(d_qk_total * d).real)  # solves m' ln m' = D_K d
        return BoundValue(edges, FACTS, "the edges at which m' ln m' / d equals D_K, constant 1")


class CountingFloor(Bound):
    """As many settings of the weights as there are graphs, or some graph has no weights."""

    name: ClassVar[str] = "counting.floor"
    kind: ClassVar[Kind] = Kind.UPPER
    statement: ClassVar[str] = (
        "the query and key weights must have at least as many states as there are graphs to recover exactly"
    )
    formula: ClassVar[str] = "D_K >= log2 C(m(m-1), m') / (2 b d); a whole permutation: log2(m!) / (2 b d)"
    citation: ClassVar[str] = "counting argument, derived for capbench; cf. Adler 2025, arXiv 2509.22840, Theorem 7.2"
    pedigree: ClassVar[Pedigree] = Pedigree.DERIVED

    bits_per_weight: int = Field(
        32, ge=1, le=64, description="b: 32 counts every float32 state of W_Q and W_K, fewer are an indication"
    )

    def evaluate(self, task: Task, architecture: Architecture, load: int | None) -> BoundValue:
        """The least D_K for `load` edges, or the most edges that D_K leaves possible."""
        rgr, d_qk_total, d = _heads_of(task, architecture)
        if rgr.graph == "hubs":
            raise NotApplicable(
                "hub-heavy graphs are not equally likely, so that few weights can serve the likely ones"
            )
        if rgr.context_size:
            raise NotApplicable("it counts whole graphs, and sampled contexts ask for a part; set task.context_size=0")
        per_dimension = 2 * self.bits_per_weight * d
        if load is not None:
            floor = _family_bits(rgr, load) / per_dimension
            return BoundValue(floor, D_K, f"at {load} edges, {self.bits_per_weight} bits a weight")
        low, high = 0, rgr.max_load
        if _rising_bits(rgr, high) <= d_qk_total * per_dimension:
            raise NotApplicable(
                f"not binding: {self.bits_per_weight} bits a weight tell all graphs apart; --at LOAD gives a floor"
            )
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if _rising_bits(rgr, middle) <= d_qk_total * per_dimension else (low, middle)
        return BoundValue(low, FACTS, f"{self.bits_per_weight} bits a weight")


def _rising_bits(task: Rgr, load: int) -> float:
    """At most `_family_bits`, and without the dips that those have on out_regular where a source becomes full."""
    if task.graph != "out_regular":
        return _family_bits(task, load)
    return load // task.out_degree * math.log2(math.comb(task.n_items - 1, task.out_degree))


def _family_bits(task: Rgr, load: int) -> float:
    """log2 of the number of graphs with `load` edges; exact up to float64."""
    m = task.n_items

    def log2_choose(n: int, k: int) -> float:
        return (math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)) / math.log(2)

    if task.graph == "permutation":
        return 2 * log2_choose(m, load) + math.lgamma(load + 1) / math.log(2)
    if task.graph == "out_regular":
        full, rest = divmod(load, task.out_degree)
        sources = log2_choose(m, full) + (math.log2(m - full) if rest else 0.0)
        return sources + full * log2_choose(m - 1, task.out_degree) + log2_choose(m - 1, rest)
    return log2_choose(m * (m - 1), load)


@hookimpl
def capbench_tasks() -> list[type[Task]]:
    """Relational graph recognition."""
    return [Rgr]


@hookimpl
def capbench_bounds() -> list[type[Bound]]:
    """What is known of its capacity."""
    return [CapacityLaw, CountingFloor]
