"""The bounds on labelled sequences, with numbers worked by hand."""

from __future__ import annotations

from typing import ClassVar

import pytest
import torch
from torch import nn

from capbench import FACTS, Architecture, Heads, Kind, NotApplicable, Pedigree, Recall, Relation, Signature, Task
from capbench.measure.theory import compare
from capbench_plugins.mha import Mha
from capbench_tasks.sequences import Sequences
from capbench_tasks.sequences_bounds import Examples, SharedContextRank, capbench_bounds


class Attention(Architecture):
    """Describes its heads, which is all that the bounds read."""

    name: ClassVar[str] = "attention"

    n_heads: int = 4
    d_qk: int = 32
    d_vo: int = 128
    d_model: int = 0
    n_layers: int = 1
    has_skip: bool = False

    def build(self, signature: Signature) -> nn.Module:
        return nn.Identity()

    def heads(self, signature: Signature) -> Heads | None:
        assert isinstance(signature, Recall)
        d = self.d_model or signature.d_input
        return Heads(self.n_heads, d, self.d_qk, self.d_vo, n_layers=self.n_layers, has_skip=self.has_skip)


class NoHeads(Architecture):
    name: ClassVar[str] = "no_heads"

    def build(self, signature: Signature) -> nn.Module:
        return nn.Identity()


class OtherTask(Task):
    """Not labelled sequences."""

    name: ClassVar[str] = "other"
    criterion: ClassVar = Sequences.criterion
    max_load: ClassVar[int] = 1

    @property
    def signature(self) -> Relation:
        return Relation(2, 2)

    def problem(self, load, slots, generator):
        raise NotImplementedError

    def loss(self, outputs, problem):
        raise NotImplementedError

    def metrics(self, outputs, problem):
        raise NotImplementedError


@pytest.mark.parametrize(
    ("n_heads", "n_context", "d_qk", "examples"),
    [(4, 32, 32, 125), (20, 32, 64, 621), (4, 32, 8, 29), (1, 8, 8, 8), (5, 1, 8, 1), (3, 8, 1, 1)],
)
def test_guaranteed_examples_by_hand(n_heads: int, n_context: int, d_qk: int, examples: int):
    task = Sequences(n_context=n_context, d_input=64, n_classes=100)
    found = Examples().evaluate(task, Attention(n_heads=n_heads, d_qk=d_qk), None)
    assert (found.value, found.quantity, found.note) == (examples, FACTS, "")


def test_narrow_values_are_noted_where_targets_are_vectors():
    attention = Attention(d_vo=1)
    task = Sequences(n_context=4, d_input=8, n_classes=100)
    with pytest.raises(NotApplicable, match=r"not 100 .derived.; set arch.d_vo=2"):
        Examples().evaluate(task, attention, None)
    assert "d_vo = 2 is enough [derived]" in Examples().evaluate(task, Attention(d_vo=2), None).note
    scalar = task.model_copy(update={"n_classes": 1})
    assert Examples().evaluate(scalar, attention, None).note == ""


def test_rank_on_a_shared_context_by_hand_is_not_a_number_of_facts():
    task = Sequences(n_context=8, d_input=16, shared_context=True)
    found = SharedContextRank().evaluate(task, Attention(n_heads=4, d_qk=2), None)
    assert (found.value, found.quantity) == (4 * 7 + 1, "head_output_rank")


def test_stacked_head_outputs_on_a_shared_context_reach_that_rank_and_no_more():
    n, d, n_heads, n_examples = 4, 12, 3, 40
    task = Sequences(n_context=n, d_input=d, shared_context=True, inputs="centred")
    contexts, queries = (
        x.double() for x in task.problem(n_examples, n_examples, torch.Generator().manual_seed(0)).inputs
    )
    W = torch.randn(n_heads, d, d, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    attention = torch.softmax(queries @ W @ contexts[0].T / d, dim=-1)  # (heads, examples, n)
    Z = (attention @ contexts[0]).transpose(0, 1).flatten(1)  # (examples, heads * d)
    bound = SharedContextRank().evaluate(task, Attention(n_heads=n_heads), None).value
    assert torch.linalg.matrix_rank(Z) == bound == n_heads * (n - 1) + 1


@pytest.mark.parametrize(
    ("bound", "task", "architecture", "reason"),
    [
        (Examples, OtherTask(), Attention(), "labelled sequences"),
        (Examples, Sequences(), NoHeads(), "no_heads does not have the heads"),
        (Examples, Sequences(), Attention(n_layers=2), "one attention layer; attention has 2"),
        (Examples, Sequences(), Attention(has_skip=True), "no skip"),
        (Examples, Sequences(), Attention(d_model=4), "n < d.*4 vectors of width 4"),
        (SharedContextRank, Sequences(), Attention(), "context of its own.*shared_context=true"),
        (SharedContextRank, OtherTask(), Attention(), "labelled sequences"),
    ],
)
def test_bounds_say_why_they_do_not_apply(bound, task, architecture, reason: str):
    with pytest.raises(NotApplicable, match=reason):
        bound().evaluate(task, architecture, None)


def test_bounds_carry_their_pedigree():
    for bound in capbench_bounds():
        assert bound.pedigree is Pedigree.PAPER
        assert "2306.02010" in bound.citation
    assert (Examples.name, Examples.kind) == ("mahdavi2024.examples", Kind.LOWER)
    assert (SharedContextRank.name, SharedContextRank.kind) == ("mahdavi2024.shared_context_rank", Kind.UPPER)


def test_a_lower_kruskal_rank_of_the_queries_takes_the_place_of_the_context_length():
    # H = 4, n = 8, d_h = 8, queries of Kruskal rank 3: 4 * (3 - 1) + 1 = 9.
    task, attention = Sequences(n_context=8, d_input=16, n_classes=1), Attention(n_heads=4, d_qk=8)
    assert Examples().evaluate_on(task, attention, None, {"query_kruskal_rank": 3.0}).value == 9
    assert Examples().evaluate_on(task, attention, None, {"query_kruskal_rank": 8.0}).value == 29
    assert Examples().evaluate(task.model_copy(update={"query_rank": 3}), attention, None).value == 9
    with pytest.raises(NotApplicable, match="contexts of rank n"):
        Examples().evaluate_on(task, attention, None, {"context_rank_share": 0.5})


def test_the_measured_rank_of_the_head_outputs_is_held_against_proposition_2():
    task = Sequences(n_context=3, d_input=8, shared_context=True, inputs="centred", n_classes=4)
    mha = Mha(n_heads=2, d_qk=8, d_vo=2)
    torch.manual_seed(0)
    module = mha.build(task.signature)
    with torch.no_grad():
        found = mha.analyse(module, task.problem(60, 60, torch.Generator().manual_seed(0)))
    (record,) = compare([SharedContextRank], task, mha, 60, found)
    assert (record.value, record.measured, record.holds) == (5, 5, True)
    own = task.model_copy(update={"shared_context": False})
    with torch.no_grad():
        free = mha.analyse(mha.build(own.signature), own.problem(60, 60, torch.Generator().manual_seed(0)))
    assert free["head_output_rank"] == 16, "with a context for each example the outputs fill both heads' widths"
