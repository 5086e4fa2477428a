"""The capacity law and the counting bound, with numbers worked by hand."""

from __future__ import annotations

import math
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from capbench import D_K, FACTS, Architecture, Kind, Lookup, NotApplicable, Pedigree, Signature, Task
from capbench_plugins.mha import Mha
from capbench_tasks.rgr import Rgr
from capbench_tasks.rgr_bounds import CapacityLaw, CountingFloor, _spared_bits, capbench_bounds


class NoHeads(Architecture):
    name: ClassVar[str] = "no_heads"

    def build(self, signature: Signature) -> nn.Module:
        return nn.Identity()


class OtherTask(Task):
    """Not a graph."""

    name: ClassVar[str] = "other"
    criterion: ClassVar = Rgr.criterion
    max_load: ClassVar[int] = 1

    @property
    def signature(self) -> Lookup:
        return Lookup(2, 1, 2)

    def problem(self, load, slots, generator):
        raise NotImplementedError

    def loss(self, outputs, problem):
        raise NotImplementedError

    def metrics(self, outputs, problem):
        raise NotImplementedError


def test_the_law_at_a_load_and_its_inverse_by_hand():
    task = Rgr(n_items=64, d_item=16)
    at_load = CapacityLaw().evaluate(task, Mha(), 100)
    assert at_load.value == pytest.approx(100 * 4.605170 / 16, rel=1e-6)  # ln 100 = 4.605170
    assert at_load.quantity == D_K
    inverse = CapacityLaw().evaluate(task, Mha(n_heads=4, d_qk=8), None)
    assert inverse.quantity == FACTS
    assert inverse.value * math.log(inverse.value) == pytest.approx(4 * 8 * 16)
    with pytest.raises(NotApplicable, match="0 for a single edge"):
        CapacityLaw().evaluate(task, Mha(), 1)


@given(n_heads=st.integers(1, 64), d_qk=st.integers(1, 64))
def test_the_law_and_its_inverse_agree(n_heads: int, d_qk: int):
    edges = CapacityLaw().evaluate(Rgr(), Mha(n_heads=n_heads, d_qk=d_qk), None).value
    assert edges * math.log(edges) / 16 == pytest.approx(n_heads * d_qk)


def test_counting_floor_of_a_whole_permutation_by_hand():
    # log2(64!) = 295.998 bits over 2 matrices of 32-bit weights, 16 per dimension.
    found = CountingFloor().evaluate(Rgr(graph="permutation"), Mha(), 64)
    # At F1 >= .99 one of the 4096 pairs may be wrong: 2 * 64 * .01 / .99 = 1.29.
    assert found.value == pytest.approx((295.998 - math.log2(4097)) / (2 * 32 * 16), rel=1e-4)
    assert found.quantity == D_K
    assert "F1 >= 0.99; exact graphs: 0.289" in found.note


def test_counting_floor_of_other_families_by_hand():
    floor, mha = CountingFloor(bits_per_weight=2), Mha()
    per_dimension = 2 * 2 * 16
    random = floor.evaluate(Rgr(), mha, 128)
    alike = 1 + 4032 + math.comb(4032, 2)  # two pairs may be wrong: 2 * 128 * .01 / .99 = 2.59
    assert random.value == pytest.approx(math.log2(math.comb(4032, 128) / alike) / per_dimension, rel=1e-9)
    partial = floor.evaluate(Rgr(graph="permutation"), mha, 10)
    count = math.comb(64, 10) ** 2 * math.factorial(10)
    assert partial.value == pytest.approx(math.log2(count) / per_dimension, rel=1e-9)
    regular = floor.evaluate(Rgr(graph="out_regular", out_degree=4), mha, 9)  # two full sources, one with one edge
    count = math.comb(64, 2) * 62 * math.comb(63, 4) ** 2 * 63
    assert regular.value == pytest.approx(math.log2(count) / per_dimension, rel=1e-9)


def test_many_wrong_pairs_are_counted_by_a_bound_that_is_above_the_exact_number():
    task = Rgr(n_items=200, d_item=16)
    exact = math.log2(sum(math.comb(200 * 199, e) for e in range(81)))
    assert exact < _spared_bits(task, 80.0) < 1.02 * exact


@pytest.mark.parametrize("graph", ["permutation", "random", "out_regular"])
@pytest.mark.parametrize("d_qk", [1, 12, 27, 36, 48])
def test_no_load_above_the_ceiling_passes_the_floor(graph: str, d_qk: int):
    task, architecture = Rgr(n_items=12, d_item=1, graph=graph, out_degree=5), Mha(n_heads=1, d_qk=d_qk)
    floor = CountingFloor(bits_per_weight=1)
    possible = [load for load in range(1, task.max_load + 1) if floor.evaluate(task, architecture, load).value <= d_qk]
    if task.max_load in possible:
        with pytest.raises(NotApplicable, match="not binding"):
            floor.evaluate(task, architecture, None)
        return
    ceiling = floor.evaluate(task, architecture, None)
    assert ceiling.quantity == FACTS
    assert max(possible, default=0) <= ceiling.value
    if graph == "random":
        assert ceiling.value == max(possible, default=0)


def test_a_ceiling_that_is_not_binding_says_so():
    with pytest.raises(NotApplicable, match="not binding: 32 bits per weight tell all graphs apart"):
        CountingFloor().evaluate(Rgr(), Mha(), None)


@pytest.mark.parametrize(
    ("bound", "task", "architecture", "reason"),
    [
        (CapacityLaw, OtherTask(), Mha(), "relational graph recognition"),
        (CapacityLaw, Rgr(), NoHeads(), "no_heads does not have the heads"),
        (CountingFloor, OtherTask(), Mha(), "relational graph recognition"),
        (CountingFloor, Rgr(graph="hubs"), Mha(), "not equally likely"),
        (CountingFloor, Rgr(context_size=4), Mha(), "context_size=0"),
    ],
)
@pytest.mark.parametrize("load", [None, 3])
def test_bounds_say_why_they_do_not_apply(bound, task: Task, architecture: Architecture, reason: str, load):
    with pytest.raises(NotApplicable, match=reason):
        bound().evaluate(task, architecture, load)


def test_bounds_carry_their_pedigree():
    assert set(capbench_bounds()) == {CapacityLaw, CountingFloor}
    assert (CapacityLaw.kind, CapacityLaw.pedigree) == (Kind.LAW, Pedigree.PAPER)
    assert (CountingFloor.kind, CountingFloor.pedigree) == (Kind.UPPER, Pedigree.DERIVED)


def test_bounds_on_both_d_k_and_facts_leave_it_to_the_quantity_which_direction_is_better():
    for bound in (CapacityLaw, CountingFloor):
        assert {bound().evaluate(Rgr(d_item=1), Mha(n_heads=1, d_qk=1), load).quantity for load in (None, 9)} == {
            D_K,
            FACTS,
        }
        assert bound.lower_is_better is None
