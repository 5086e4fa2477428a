"""Task.facts: just the facts, which capbench pads, masks and puts into the order of the grid."""

from __future__ import annotations

from typing import ClassVar

import pytest
import torch
from pydantic import Field
from torch import Generator, Tensor
from torch.nn import functional as F

from capbench import Criterion, Facts, LoadOutOfRange, Lookup, Problem, Recall, Relation, Task
from capbench.testing import Conformance


class Parities(Task):
    """Recall a random bit for a pair of tokens; it counts no bits."""

    name: ClassVar[str] = "parities"
    criterion: ClassVar[Criterion] = Criterion("accuracy", 0.9)
    n_tokens: int = Field(6, ge=2, description="tokens")

    @property
    def signature(self) -> Lookup:
        """Two tokens in, two classes out."""
        return Lookup(self.n_tokens, 2, 2)

    @property
    def max_load(self) -> int:
        """All pairs."""
        return self.n_tokens**2

    def facts(self, load: int, generator: Generator) -> Facts:
        """Distinct pairs with random bits."""
        pairs = self.signature.grid()[torch.randperm(self.max_load, generator=generator)[:load]]
        return Facts((pairs,), torch.randint(2, (load,), generator=generator))

    def loss(self, outputs: Tensor, problem: Problem) -> Tensor:
        """Mean cross-entropy."""
        losses = F.cross_entropy(outputs, problem.targets, reduction="none")
        return (losses * problem.mask).sum() / problem.mask.sum()

    def metrics(self, outputs: Tensor, problem: Problem) -> dict[str, Tensor]:
        """Accuracy alone."""
        is_right = (outputs.argmax(dim=-1) == problem.targets).to(outputs.dtype)
        return {"accuracy": (is_right * problem.mask).sum() / problem.mask.sum()}


class TestParities(Conformance):
    plugin = Parities


class Vectors(Parities):
    """The same for a query in a context that all share."""

    name: ClassVar[str] = "vectors"

    @property
    def signature(self) -> Recall:
        """Vectors in, two classes out."""
        return Recall(3, 4, 2, shared_context=True)

    def facts(self, load: int, generator: Generator) -> Facts:
        """Random queries with weights."""
        context, queries = torch.randn(1, 3, 4, generator=generator), torch.randn(load, 4, generator=generator)
        return Facts((context, queries), torch.ones(load, dtype=torch.int64), torch.arange(1.0, load + 1))


class Pairs(Parities):
    """The same for a relation."""

    name: ClassVar[str] = "pairs"

    @property
    def signature(self) -> Relation:
        """Items in, scores out."""
        return Relation(5, 3)

    def facts(self, load: int, generator: Generator) -> Facts:
        """A random graph."""
        return Facts((torch.randn(5, 3, generator=generator),), torch.ones(5, 5))


def test_padding_repeats_the_first_fact_with_a_mask_of_zero() -> None:
    problem = Vectors().problem(3, 5, torch.Generator().manual_seed(0))
    context, queries = problem.inputs
    assert (context.shape, queries.shape) == ((1, 3, 4), (5, 4))
    assert problem.mask.tolist() == [1, 2, 3, 0, 0]
    assert problem.targets.tolist() == [1, 1, 1, 0, 0]
    assert torch.equal(queries[3], queries[0])


def test_a_relation_has_no_slots_to_pad() -> None:
    problem = Pairs().problem(3, 36, torch.Generator().manual_seed(0))
    assert problem.inputs[0].shape == (5, 3)
    assert problem.mask.tolist() == torch.ones(5, 5).tolist()


def test_loads_out_of_range_are_refused() -> None:
    with pytest.raises(LoadOutOfRange, match="parities has 1 to 36 facts, got 37"):
        Parities().problem(37, 40, torch.Generator())


def test_a_task_without_facts_and_without_problem_says_what_is_missing() -> None:
    class Empty(Parities):
        """Neither."""

        name: ClassVar[str] = "empty"
        facts = Task.facts

    with pytest.raises(NotImplementedError, match=r"empty must define facts\(load, generator\), or problem"):
        Empty().problem(1, 1, torch.Generator())
