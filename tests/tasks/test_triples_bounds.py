"""The rank bounds on triples, with numbers worked by hand."""

from __future__ import annotations

import pytest
import torch

from capbench import Architecture, Heads, Kind, NotApplicable, Pedigree
from capbench_plugins.mha import Mha
from capbench_tasks.rgr import Rgr
from capbench_tasks.tensor_rank import flattening_ranks
from capbench_tasks.triples import Triples
from capbench_tasks.triples_bounds import DatabaseRank, LayerRank


class Described(Architecture):
    """Describes its heads, which is all that the bounds read."""

    name = "described"
    heads_are: Heads | None = None

    def build(self, signature):
        raise NotImplementedError

    def heads(self, signature):
        return self.heads_are


def layer_rank(heads: Heads | None, task: Triples, load: int | None = None) -> float:
    found = LayerRank().evaluate(task, Described(heads_are=heads), load)
    assert found.quantity == "layer_rank_lower"
    return found.value


def test_layer_rank_matches_numbers_worked_by_hand():
    task = Triples(n_keys=20, n_queries=10, n_values=15)
    # min(6,10,15) + 1*1*10 = 16 against 6*10 = 60
    assert layer_rank(Heads(1, 6, 6, 1, has_skip=True), task) == 16
    # min(6,10,15) + 2*6*10 = 126 against 60
    assert layer_rank(Heads(2, 6, 1, 6, has_skip=True, has_unembedding=True), task) == 60
    # without a shared unembedding the second expression does not hold
    assert layer_rank(Heads(2, 6, 1, 6, has_skip=True), task) == 126
    # a layer without skip has no E: 1*2*10
    assert layer_rank(Heads(1, 6, 6, 2), task) == 20
    # query/key width does not enter
    assert layer_rank(Heads(1, 6, 1, 1, has_skip=True), task) == layer_rank(Heads(1, 6, 99, 1, has_skip=True), task)


def test_heads_that_write_to_the_classes_directly_exceed_d_times_the_smaller_side():
    task = Triples(n_keys=20, n_queries=3, n_values=20)
    arch = Mha(d_model=3, n_heads=8, d_qk=3, d_vo=3)
    torch.manual_seed(0)
    with torch.no_grad():
        L = arch.build(task.signature)(task.signature.grid()).view(20, 3, 20)
    found = max(flattening_ranks(L))
    assert found == 20 > 3 * 3
    assert found <= LayerRank().evaluate(task, arch, None).value == 8 * 3 * 3


def test_database_rank_matches_numbers_worked_by_hand():
    task = Triples(n_keys=20, n_queries=10, n_values=4)
    values = [DatabaseRank().evaluate(task, Described(), load).value for load in (1, 39, 40, 200)]
    assert values == [1, 39, 40, 40]  # |Q||V| = 40
    low = DatabaseRank().evaluate(Triples(structure="low_rank"), Described(), 100)
    assert (low.value, low.quantity) == (100, "database_rank_lower")
    assert "rank 4 exactly [derived]" in low.note


def test_bounds_say_why_they_do_not_apply():
    with pytest.raises(NotApplicable, match="does not have the heads"):
        layer_rank(None, Triples())
    with pytest.raises(NotApplicable, match="has 2"):
        layer_rank(Heads(1, 8, 8, 8, n_layers=2), Triples())
    with pytest.raises(NotApplicable, match="--at LOAD"):
        DatabaseRank().evaluate(Triples(), Described(), None)
    with pytest.raises(NotApplicable, match="at most 20 triples"):
        DatabaseRank().evaluate(Triples(structure="diagonal"), Described(), 21)
    for bound in (LayerRank(), DatabaseRank()):
        with pytest.raises(NotApplicable, match="it is about triples"):
            bound.evaluate(Rgr(), Mha(), 10)


def test_the_derived_bound_is_not_attributed_to_the_paper():
    assert (LayerRank.kind, LayerRank.pedigree) == (Kind.UPPER, Pedigree.DERIVED)
    assert LayerRank.citation.startswith("derived for capbench")
    assert (DatabaseRank.kind, DatabaseRank.pedigree) == (Kind.UPPER, Pedigree.PAPER)
    assert "Proposition 2.1" in DatabaseRank.citation
