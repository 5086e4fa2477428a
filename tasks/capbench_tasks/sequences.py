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
    FACTS,
    Architecture,
    Bound,
    BoundValue,
    Criterion,
    Heads,
    Kind,
    LoadOutOfRange,
    NotApplicable,
    Pedigree,
    Problem,
    Recall,
    Recipe,
    Task,
    hookimpl,
)
from capbench_tasks.kruskal import full_rank_share, kruskal_share


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

    n_context: int = Field(4, ge=1, le=4096, description="n: vectors in a context; below d_input")
    d_input: int = Field(8, ge=2, le=16384, description="d: width of queries and context vectors")
    n_classes: int = Field(10, ge=1, le=65536, description="labels; 1: regression on targets drawn from U[0,1]")
    shared_context: bool = Field(False, description="one context for all examples, or one for each")
    inputs: Literal["uniform", "centred"] = Field(
        "uniform", description="entries of all vectors: uniform: U[0,1], as the authors have it; centred: N(0,1)"
    )
    n_examples: int = Field(4096, ge=1, le=10_000_000, description="the most examples that a search may ask for")
    tolerance: float = Field(
        0.05, gt=0, lt=0.5, description="a regression target counts as recalled within this distance"
    )
    n_subsets: int = Field(
        5000, ge=1, le=1_000_000, description="random n-subsets of the queries that are tested for independence"
    )

    @model_validator(mode="after")
    def _context_is_shorter_than_wide(self) -> Sequences:
        if self.n_context >= self.d_input:
            raise ValueError(
                f"n_context must be below d_input, got {self.n_context} >= {self.d_input}: the theorem assumes "
                "contexts of n independent vectors with n < d; raise d_input or lower n_context"
            )
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
        """Examples are drawn from a continuum, so the most is what the user allows."""
        return self.n_examples

    @property
    def typical_load(self) -> int:
        """Thirty-two examples for every vector of a context, or as many as allowed."""
        return min(self.max_load, 32 * self.n_context)

    @property
    def chance(self) -> float:
        """The accuracy of a model that knows nothing: of guessing, or of always answering the same number."""
        return 2 * self.tolerance if self.is_regression else 1 / self.n_classes

    def problem(self, load: int, slots: int, generator: Generator) -> Problem:
        """`load` random examples; the slots beyond them repeat examples, masked out."""
        if not 1 <= load <= self.max_load:
            raise LoadOutOfRange(
                f"sequences has 1 to {self.max_load} examples, got {load}; set n_examples to allow for more"
            )
        n_contexts = 1 if self.shared_context else load
        contexts = self._vectors((n_contexts, self.n_context, self.d_input), generator)
        queries = self._vectors((load, self.d_input), generator)
        targets = self._targets(load, generator)
        slot = torch.arange(slots)
        mask = (slot < load).to(queries.dtype)
        padded = contexts if self.shared_context else contexts[slot % load]
        return Problem((padded, queries[slot % load]), targets[slot % load], mask)

    def loss(self, outputs: Tensor, problem: Problem) -> Tensor:
        """Cross-entropy, or the squared error of a regression, averaged over the examples asked."""
        return _mean(self._losses(outputs, problem), problem.mask)

    def metrics(self, outputs: Tensor, problem: Problem) -> dict[str, Tensor]:
        """Share of the examples recalled, and the bits that this is worth; for a regression the squared error too.

        A regression recalls what it puts within the tolerance.
        """
        if self.is_regression:
            is_right = (outputs[:, 0] - problem.targets).abs() <= self.tolerance
        else:
            is_right = outputs.argmax(dim=1) == problem.targets
        accuracy = _mean(is_right.to(outputs.dtype), problem.mask)
        losses = _mean(self._losses(outputs, problem), problem.mask)
        if self.is_regression:
            return {"accuracy": accuracy, "mse": losses, "bits": self._regression_bits(accuracy) * problem.mask.sum()}
        gained = math.log2(self.n_classes) - losses / math.log(2)
        return {"accuracy": accuracy, "bits": gained.clamp(min=0.0) * problem.mask.sum()}

    def facts_held(self, metrics: Mapping[str, float], load: int) -> float | None:
        """Examples known, when all that are not known are guessed: accuracy corrected for chance."""
        return load * max(0.0, (metrics["accuracy"] - self.chance) / (1 - self.chance))

    def examine(self, problem: Problem) -> dict[str, float]:
        """The theorem's two assumptions on these data: independent n-subsets of queries, contexts of rank n.

        Queries are exchangeable, so that a fixed draw of positions makes as random a sample as any.
        """
        contexts, queries = problem.inputs
        asked = problem.mask > 0
        generator = torch.Generator().manual_seed(0)
        return {
            "query_kruskal_share": kruskal_share(queries[asked], self.n_context, self.n_subsets, generator),
            "context_rank_share": full_rank_share(contexts if self.shared_context else contexts[asked]),
        }

    def _vectors(self, shape: tuple[int, ...], generator: Generator) -> Tensor:
        draw = torch.rand if self.inputs == "uniform" else torch.randn
        return draw(shape, generator=generator)

    def _targets(self, load: int, generator: Generator) -> Tensor:
        if self.is_regression:
            return torch.rand(load, generator=generator)
        return torch.randint(self.n_classes, (load,), generator=generator)

    def _losses(self, outputs: Tensor, problem: Problem) -> Tensor:
        """Of each slot, in nats or squared units."""
        if self.is_regression:
            return (outputs[:, 0] - problem.targets).square()
        return F.cross_entropy(outputs, problem.targets, reduction="none")

    def _regression_bits(self, accuracy: Tensor) -> Tensor:
        """Bits an example: those that name a target to the tolerance, where recalled, less those that say where.

        To point at one of the 1 / (2 tolerance) cells of [0, 1] takes log2 of their number; which examples are
        recalled takes the entropy of their share. A constant answer then holds nothing. [protocol]
        """
        cell = -math.log2(2 * self.tolerance)
        where = (torch.special.entr(accuracy) + torch.special.entr(1 - accuracy)) / math.log(2)
        bits: Tensor = accuracy * cell - where
        return bits.clamp(min=0.0)


def _mean(values: Tensor, mask: Tensor) -> Tensor:
    """Over the slots that are asked."""
    return (values * mask).sum() / mask.sum()


def _attention_of(task: Task, architecture: Architecture) -> tuple[Sequences, Heads]:
    """The task and its one layer of heads; both bounds speak of nothing else."""
    if not isinstance(task, Sequences):
        raise NotApplicable("it speaks of labelled sequences, of contexts and queries")
    heads = architecture.heads(task.signature)
    if heads is None:
        raise NotApplicable(f"{architecture.name} does not have the heads that the theorem counts")
    if heads.n_layers != 1:
        raise NotApplicable(f"it speaks of one attention layer; {architecture.name} has {heads.n_layers}")
    return task, heads


class Examples(Bound):
    """Weights for so many examples exist, whatever the labels."""

    name: ClassVar[str] = "mahdavi2024.examples"
    kind: ClassVar[Kind] = Kind.LOWER
    statement: ClassVar[str] = (
        "one attention layer without skip can recall any labels of H(min(n, d_h) - 1) + 1 examples whose queries "
        "have Kruskal rank n or more and whose contexts have rank n"
    )
    formula: ClassVar[str] = "T >= H (min(n, d_h) - 1) + 1"
    citation: ClassVar[str] = (
        "Mahdavi, Liao, Thrampoulidis 2024, Memorization Capacity of Multi-Head Attention in Transformers, "
        "arXiv 2306.02010, Theorem 1"
    )
    pedigree: ClassVar[Pedigree] = Pedigree.PAPER

    def evaluate(self, task: Task, architecture: Architecture, load: int | None) -> BoundValue:
        """The examples guaranteed; d_h is the query/key width of a head."""
        sequences, heads = _attention_of(task, architecture)
        if heads.has_skip:
            raise NotApplicable("the theorem's layer has no skip connection")
        if heads.d_model <= sequences.n_context:
            raise NotApplicable(
                f"the theorem needs n < d, but {architecture.name} attends to {sequences.n_context} vectors "
                f"of width {heads.d_model}"
            )
        if sequences.n_classes > 2 and heads.d_vo < 2:
            raise NotApplicable(
                f"values of width 1 carry a scalar or two classes, not {sequences.n_classes} [derived]; set arch.d_vo=2"
            )
        rank = min(sequences.n_context, heads.d_qk)
        return BoundValue(heads.n_heads * (rank - 1) + 1, FACTS, _value_width_note(sequences, heads))


def _value_width_note(task: Sequences, heads: Heads) -> str:
    """What the guarantee rests on where the values are narrower than the logits [derived]."""
    if heads.d_vo >= min(task.n_classes, heads.d_model):
        return ""
    return f"of labels read off by argmax, for which d_vo = 2 is enough [derived]; here d_vo = {heads.d_vo}"


class SharedContextRank(Bound):
    """On a shared context attention weights sum to one head by head, which costs every head but one a dimension."""

    name: ClassVar[str] = "mahdavi2024.shared_context_rank"
    kind: ClassVar[Kind] = Kind.UPPER
    statement: ClassVar[str] = (
        "on one shared context the stacked outputs Z of the heads have rank H(n - 1) + 1 at most: a cap on what "
        "attention fits that was set without the labels, not on a trained model"
    )
    formula: ClassVar[str] = "rank(Z) <= H (n - 1) + 1"
    citation: ClassVar[str] = (
        "Mahdavi, Liao, Thrampoulidis 2024, Memorization Capacity of Multi-Head Attention in Transformers, "
        "arXiv 2306.02010, Proposition 2"
    )
    pedigree: ClassVar[Pedigree] = Pedigree.PAPER

    def evaluate(self, task: Task, architecture: Architecture, load: int | None) -> BoundValue:
        """The rank, which is not a number of facts."""
        sequences, heads = _attention_of(task, architecture)
        if not sequences.shared_context:
            raise NotApplicable("every example has a context of its own; set task.shared_context=true")
        rank = heads.n_heads * (sequences.n_context - 1) + 1
        return BoundValue(rank, "rank", "caps attention set without the labels, not a trained model [derived]")


@hookimpl
def capbench_tasks() -> list[type[Task]]:
    """Labelled sequences."""
    return [Sequences]


@hookimpl
def capbench_bounds() -> list[type[Bound]]:
    """What is known of their capacity."""
    return [Examples, SharedContextRank]
