"""Sequences: which label belongs to this query in this context?

Mahdavi, Liao, Thrampoulidis, "Memorization Capacity of Multi-Head Attention in Transformers", arXiv 2306.02010.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
from pydantic import Field, model_validator
from torch import Generator, Tensor
from torch.nn import functional as F

from capbench import (
    Criterion,
    LoadOutOfRange,
    Problem,
    Recall,
    Recipe,
    Task,
    hookimpl,
)
from capbench_tasks.kruskal import full_rank_share, kruskal_rank, kruskal_share


class Sequences(Task):
    """Recall the label of a query that attends to a context of vectors. A fact is one labelled example."""

    name: ClassVar[str] = "sequences"
    fact: ClassVar[str] = "example"
    scoring_fields: ClassVar[frozenset[str]] = frozenset({"tolerance", "n_examples", "n_subsets"})
    criterion: ClassVar[Criterion] = Criterion("accuracy", 0.99)
    recipe: ClassVar[Recipe] = Recipe(learning_rates=(0.01, 0.02, 0.05), steps=1000)
    presets: ClassVar = {
        "smoke": {"n_context": 3, "d_input": 4, "n_examples": 512, "n_subsets": 500},
        "paper": {"n_context": 32, "d_input": 64, "n_classes": 100, "n_examples": 16384},
    }

    n_context: int = Field(4, ge=1, le=4096, description="n: vectors in a context; the theorem needs n < d_input")
    d_input: int = Field(8, ge=2, le=16384, description="d: width of queries and context vectors")
    n_classes: int = Field(10, ge=1, le=65536, description="labels; 1: regression on targets drawn from U[0,1]")
    shared_context: bool = Field(False, description="one context for all examples, rather than one per example")
    inputs: Literal["uniform", "centred"] = Field(
        "uniform", description="entries of all vectors; uniform: U[0,1], as in the paper; centred: N(0,1)"
    )
    n_contexts: int = Field(
        0, ge=0, description="different contexts among the examples, dealt out in turn; 0: one per example"
    )
    query_rank: int = Field(0, ge=0, description="dimensions of the subspace that all queries lie in; 0: all d_input")
    context_rank: int = Field(0, ge=0, description="rank of each context before positions are added; 0: full")
    positions: Literal["none", "sinusoidal"] = Field(
        "none", description="what is added to the vectors of a context; sinusoidal: as in the authors' code"
    )
    n_examples: int = Field(4096, ge=1, le=10_000_000, description="the largest load that a search may try")
    tolerance: float = Field(
        0.05, gt=0, lt=0.5, description="a regression target counts as recalled within this distance"
    )
    n_subsets: int = Field(
        5000, ge=1, le=1_000_000, description="number of random n-subsets of the queries tested for independence"
    )

    @model_validator(mode="after")
    def _sizes_fit(self) -> Sequences:
        if self.shared_context and self.n_contexts:
            raise ValueError(f"shared_context is one context for all, got n_contexts={self.n_contexts}; leave one out")
        for name in ("query_rank", "context_rank"):
            if getattr(self, name) > self.d_input:
                raise ValueError(f"{name} must be at most d_input, got {getattr(self, name)} > {self.d_input}")
        return self

    @property
    def signature(self) -> Recall:
        """Contexts and queries in, logits or one value out."""
        return Recall(self.n_context, self.d_input, self.n_classes, self.shared_context)

    @property
    def is_regression(self) -> bool:
        """Whether targets are numbers rather than classes."""
        return self.n_classes == 1

    @property
    def max_load(self) -> int:
        """`n_examples`: examples are drawn from a continuum, so the limit is the user's."""
        return self.n_examples

    @property
    def typical_load(self) -> int:
        """Thirty-two examples per vector of a context, or as many as allowed."""
        return min(self.max_load, 32 * self.n_context)

    @property
    def chance(self) -> float:
        """The accuracy of a model that knows nothing: it guesses a class, or always answers the same number."""
        return 2 * self.tolerance if self.is_regression else 1 / self.n_classes

    def problem(self, load: int, slots: int, generator: Generator) -> Problem:
        """`load` random examples; the slots beyond them repeat examples, masked out."""
        if not 1 <= load <= self.max_load:
            raise LoadOutOfRange(
                f"sequences has 1 to {self.max_load} examples, got {load}; raise n_examples to allow more"
            )
        contexts = self._contexts(load, generator)
        queries = self._spanned((load,), self.query_rank, generator)
        targets = self._targets(load, generator)
        slot = torch.arange(slots)
        mask = (slot < load).to(queries.dtype)
        padded = contexts if self.shared_context else contexts[slot % load]
        return Problem((padded, queries[slot % load]), targets[slot % load], mask)

    def loss(self, outputs: Tensor, problem: Problem) -> Tensor:
        """Mean cross-entropy over the examples, or mean squared error for regression."""
        return _mean(self._losses(outputs, problem), problem.mask)

    def metrics(self, outputs: Tensor, problem: Problem) -> dict[str, Tensor]:
        """Share of the examples recalled, and the bits stored; for regression also the mean squared error.

        In regression, an example counts as recalled if the output is within the tolerance.
        """
        if self.is_regression:
            is_right = (outputs[:, 0] - problem.targets).abs() <= self.tolerance
        else:
            is_right = outputs.argmax(dim=1) == problem.targets
        accuracy = _mean(is_right.to(outputs.dtype), problem.mask)
        losses = _mean(self._losses(outputs, problem), problem.mask)
        if self.is_regression:
            return {"accuracy": accuracy, "mse": losses, "bits": self._regression_bits(accuracy) * problem.mask.sum()}
        bits = math.log2(self.n_classes) - losses / math.log(2)  # per example
        return {"accuracy": accuracy, "bits": bits.clamp(min=0.0) * problem.mask.sum()}

    def facts_held(self, metrics: Mapping[str, float], load: int) -> float | None:
        """Examples known if all others are guessed: accuracy corrected for chance."""
        return load * max(0.0, (metrics["accuracy"] - self.chance) / (1 - self.chance))

    def examine(self, problem: Problem) -> dict[str, float]:
        """How far these data meet the theorem's two assumptions: independent n-subsets of queries, contexts of rank n.

        Queries are exchangeable, so a fixed choice of indices is as random a sample as any.
        """
        contexts, queries = problem.inputs
        is_fact = problem.mask > 0
        generator = torch.Generator().manual_seed(0)
        own = contexts if self.shared_context else contexts[is_fact]
        share = kruskal_share(queries[is_fact], self.n_context, self.n_subsets, generator)
        rank = self.n_context if share == 1 else kruskal_rank(queries[is_fact], self.n_context, self.n_subsets)
        return {
            "query_kruskal_share": share,
            "query_kruskal_rank": float(rank),
            "context_rank_share": full_rank_share(own),
        }

    def analyse(self, outputs: Tensor, problem: Problem) -> dict[str, float]:
        """Share of independent n-subsets of the queries after one random attention layer with a skip connection.

        The authors test their first assumption on such encoded queries too (arXiv 2306.02010).
        """
        contexts, queries = problem.inputs[0], problem.inputs[1][problem.mask > 0]
        generator = torch.Generator().manual_seed(0)
        mixing = torch.randn(self.d_input, self.d_input, generator=generator).to(queries) / math.sqrt(self.d_input)
        own = contexts if self.shared_context else contexts[problem.mask > 0]  # (examples or 1, n, d)
        scores = (own @ (queries @ mixing).unsqueeze(-1)).squeeze(-1)  # (examples, n)
        encoded = queries + (scores.softmax(dim=-1).unsqueeze(-2) @ own).squeeze(-2)  # (examples, d)
        share = kruskal_share(encoded.cpu(), self.n_context, self.n_subsets, generator)
        return {"encoded_kruskal_share": share}

    def _contexts(self, load: int, generator: Generator) -> Tensor:
        """The contexts of `load` examples, (load or 1, n, d)."""
        n_contexts = 1 if self.shared_context else self.n_contexts or load
        contexts = self._spanned((n_contexts, self.n_context), self.context_rank, generator)
        if self.positions == "sinusoidal":
            contexts = contexts + sinusoids(self.n_context, self.d_input)
        return contexts[torch.arange(load) % n_contexts] if self.n_contexts else contexts

    def _spanned(self, shape: tuple[int, ...], rank: int, generator: Generator) -> Tensor:
        """Vectors of the given shape, in a random subspace per set where a rank is given."""
        if rank == 0:
            return self._vectors((*shape, self.d_input), generator)
        basis = self._vectors((*shape[:-1], rank, self.d_input), generator)
        return self._vectors((*shape, rank), generator) @ basis / math.sqrt(rank)

    def _vectors(self, shape: tuple[int, ...], generator: Generator) -> Tensor:
        draw = torch.rand if self.inputs == "uniform" else torch.randn
        return draw(shape, generator=generator)

    def _targets(self, load: int, generator: Generator) -> Tensor:
        if self.is_regression:
            return torch.rand(load, generator=generator)
        return torch.randint(self.n_classes, (load,), generator=generator)

    def _losses(self, outputs: Tensor, problem: Problem) -> Tensor:
        """Cross-entropy in nats, or squared error, of each slot, (slots,)."""
        if self.is_regression:
            return (outputs[:, 0] - problem.targets).square()
        return F.cross_entropy(outputs, problem.targets, reduction="none")

    def _regression_bits(self, accuracy: Tensor) -> Tensor:
        """Bits per example: those that specify recalled targets to within the tolerance, less the entropy of which are.

        To name one of the 1 / (2 tolerance) intervals of [0, 1] takes log2 of their number of bits; to say which
        examples are recalled takes the entropy of their share. A constant answer then stores nothing. [protocol]
        """
        per_target = -math.log2(2 * self.tolerance)
        which = (torch.special.entr(accuracy) + torch.special.entr(1 - accuracy)) / math.log(2)
        bits: Tensor = accuracy * per_target - which
        return bits.clamp(min=0.0)


def sinusoids(length: int, width: int) -> Tensor:
    """Sinusoidal positions, (length, width): sines in the even columns, cosines in the odd ones."""
    column = torch.arange(width)
    angle = torch.arange(length).unsqueeze(1) / 10_000 ** ((column - column % 2) / width)  # (length, width)
    return torch.where(column % 2 == 0, angle.sin(), angle.cos())


def _mean(values: Tensor, mask: Tensor) -> Tensor:
    """Mean over the facts."""
    return (values * mask).sum() / mask.sum()


@hookimpl
def capbench_tasks() -> list[type[Task]]:
    """Labelled sequences."""
    return [Sequences]
