"""The bounds on bigrams, with numbers worked by hand."""

from __future__ import annotations

from typing import ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from capbench import Architecture, Heads, NotApplicable, Signature
from capbench.errors import BoundBroken
from capbench.measure.theory import compare, refuse_broken
from capbench_plugins.aot import Aot
from capbench_plugins.mha import Mha
from capbench_tasks.bigrams import Bigrams
from capbench_tasks.bigrams_bounds import Accuracy, Associations, BestEncoderKl, ExcessKl
from capbench_tasks.rgr import Rgr


class Attention(Architecture):
    """Describes its heads, which is all that the bounds read."""

    name: ClassVar[str] = "attention"
    n_heads: int = 4
    d_model: int = 16
    d_vo: int = 8
    n_layers: int = 1
    has_skip: bool = True
    has_positions: bool = True
    has_unembedding: bool = True

    def build(self, signature: Signature) -> nn.Module:
        raise NotImplementedError

    def heads(self, signature: Signature) -> Heads:
        kinds = self.has_skip, self.has_positions, self.has_unembedding
        return Heads(self.n_heads, self.d_model, 1, self.d_vo, self.n_layers, *kinds)


class Headless(Architecture):
    """No attention at all."""

    name: ClassVar[str] = "headless"

    def build(self, signature: Signature) -> nn.Module:
        raise NotImplementedError


def test_associations_are_heads_times_value_width_plus_model_width():
    found = Associations().evaluate(Bigrams(), Attention(n_heads=4, d_vo=8, d_model=16), None)
    assert (found.value, found.quantity) == (48, "facts")


def test_at_two_dimensions_associations_are_those_of_the_corollary():
    assert Associations().evaluate(Bigrams(n_tokens=30), Attention(n_heads=8, d_vo=2, d_model=2), None).value == 18


def test_the_largest_model_of_the_paper_holds_320_associations():
    assert Associations().evaluate(Bigrams(), Attention(n_heads=31, d_vo=10, d_model=10), None).value == 320


def test_associations_never_exceed_the_number_of_pairs():
    found = Associations().evaluate(Bigrams(n_tokens=3), Attention(n_heads=10, d_vo=2, d_model=2), None)
    assert found.value == 9
    assert "22" in found.note


def test_width_beyond_the_tokens_is_not_counted():
    # A width of 16 over 6 tokens counts as 6, and so do value widths: 1 * 6 + 6.
    assert Associations().evaluate(Bigrams(n_tokens=6), Attention(n_heads=1, d_vo=8, d_model=16), None).value == 12


@settings(max_examples=50, deadline=None)
@given(n_heads=st.integers(1, 20), d_vo=st.integers(1, 20), d_model=st.integers(2, 20), load=st.integers(1, 2500))
def test_facts_held_at_the_bound_on_accuracy_are_the_associations(n_heads, d_vo, d_model, load):
    task, architecture = Bigrams(), Attention(n_heads=n_heads, d_vo=d_vo, d_model=d_model)
    held = Associations().evaluate(task, architecture, None).value
    accuracy = Accuracy().evaluate(task, architecture, load).value
    assert task.facts_held({"accuracy": accuracy}, load) == pytest.approx(min(held, load))


def test_accuracy_on_the_whole_table_is_worked_by_hand():
    # H = 11, d = d_h = 10: 120 of 2500, so 1/50 + 49/50 * .048 = .06704.
    found = Accuracy().evaluate(Bigrams(n_tokens=50), Attention(n_heads=11, d_vo=10, d_model=10), None)
    assert found.value == pytest.approx(0.06704)
    assert found.quantity == "accuracy"


def test_accuracy_of_no_more_facts_than_are_held_is_one():
    assert Accuracy().evaluate(Bigrams(), Attention(), 48).value == pytest.approx(1)


@pytest.mark.parametrize("bound", [Associations, Accuracy])
@pytest.mark.parametrize(
    ("task", "architecture", "reason"),
    [
        (Rgr(), Attention(), "bigrams"),
        (Bigrams(), Headless(), "headless does not have the heads"),
        (Bigrams(), Attention(n_layers=2), "one attention layer"),
        (Bigrams(), Attention(has_skip=False), "skip"),
        (Bigrams(), Attention(has_positions=False), "positions"),
        (Bigrams(), Attention(d_model=1), "d = 1"),
        (Bigrams(target="distribution"), Attention(), "one right next token"),
    ],
)
def test_the_theorem_does_not_apply_outside_its_setting(bound, task, architecture, reason):
    with pytest.raises(NotApplicable, match=reason):
        bound().evaluate(task, architecture, None)


def test_accuracy_does_not_apply_to_other_priors_but_associations_do():
    task = Bigrams(prior="power")
    assert Associations().evaluate(task, Attention(), None).value == 48
    with pytest.raises(NotApplicable, match="uniform prior"):
        Accuracy().evaluate(task, Attention(), None)


@pytest.mark.parametrize(
    ("task", "d_model", "load"),
    [
        (Bigrams(n_tokens=17, target="distribution"), 16, None),
        (Bigrams(n_tokens=50), 2, None),
        (Bigrams(n_tokens=50, target="distribution"), 16, 16),
    ],
)
def test_the_kl_of_the_best_encoder_is_zero_where_that_is_known(task, d_model, load):
    found = BestEncoderKl().evaluate(task, Attention(d_model=d_model), load)
    assert (found.value, found.quantity) == (0, "kl")


@pytest.mark.parametrize(
    ("task", "d_model", "load"),
    [
        (Bigrams(n_tokens=18, target="distribution"), 16, None),
        (Bigrams(n_tokens=50, target="distribution"), 16, 17),
        (Bigrams(n_tokens=50), 1, None),
    ],
)
def test_elsewhere_the_kl_of_the_best_encoder_is_left_to_the_fit(task, d_model, load):
    with pytest.raises(NotApplicable, match="a run on distributions"):
        BestEncoderKl().evaluate(task, Attention(d_model=d_model), load)


def test_a_model_worse_than_the_encoder_does_not_count_as_breaking_its_floor():
    records = compare([BestEncoderKl], Bigrams(n_tokens=10, target="distribution"), Attention(), None, {"kl": 0.7})
    assert records[0].value == 0
    refuse_broken(records)


def test_the_floor_on_kl_says_that_lower_is_better():
    assert BestEncoderKl.lower_is_better is True
    assert Associations.lower_is_better is None


FITTED = {"best_encoder_kl": 0.5, "encoder_norm": 4.0}


def test_the_fitted_floor_is_enforced_and_shown():
    task = Bigrams(n_tokens=50, target="distribution", d_encoder=16)
    (record,) = compare([BestEncoderKl], task, Attention(d_model=16), 100, {**FITTED, "kl": 0.495})
    assert (record.value, record.holds) == (pytest.approx(0.49), True), "2 % are left to the fit"
    (broken,) = compare([BestEncoderKl], task, Attention(d_model=16), 100, {**FITTED, "kl": 0.48})
    with pytest.raises(BoundBroken, match=r"0\.48 is below the floor 0\.49"):
        refuse_broken([broken])


def test_an_encoder_narrower_than_the_model_gives_no_floor():
    task = Bigrams(n_tokens=50, target="distribution", d_encoder=8)
    (record,) = compare([BestEncoderKl], task, Attention(d_model=16), 100, {**FITTED, "kl": 0.1})
    assert record.value is None
    assert "at least d = 16" in (record.reason or "")


def test_heads_that_write_to_the_classes_directly_have_no_floor_of_rank_d():
    with pytest.raises(NotApplicable, match="a stream of width d"):
        BestEncoderKl().evaluate(Bigrams(n_tokens=17), Attention(has_unembedding=False), None)


@pytest.mark.parametrize("architecture", [Aot(d_model=5), Mha(d_model=5)])
def test_the_width_of_the_encoder_follows_an_architecture_that_unembeds_its_stream(architecture):
    followed = Bigrams(target="distribution").follow(architecture)
    assert followed == ({"d_encoder": 5} if isinstance(architecture, Aot) else {})
    assert Bigrams(target="distribution", d_encoder=3).follow(architecture) == {}
    assert Bigrams().follow(architecture) == {}


def test_the_excess_over_the_encoder_is_the_mass_beyond_the_covered_pairs_times_the_norm():
    # H d_h + d = 3 of 4 pairs of weights 1, 1/2, 1/3, 1/4: the last has 3/25 of the mass, 4 * .12 = .48.
    task = Bigrams(n_tokens=6, target="distribution", prior="power", d_encoder=2)
    found = ExcessKl().evaluate_on(task, Attention(n_heads=1, d_vo=1, d_model=2), 4, FITTED)
    assert (found.value, found.quantity) == (pytest.approx(0.48), "excess_kl")
    whole = ExcessKl().evaluate_on(task, Attention(n_heads=1, d_vo=2, d_model=2), 4, FITTED)
    assert whole.value == 0.0
    bare = ExcessKl().evaluate(task, Attention(n_heads=1, d_vo=1, d_model=2), 4)
    assert (bare.value, "per unit of ‖WE‖" in bare.note) == (pytest.approx(0.12), True)
    with pytest.raises(NotApplicable, match="one attention layer"):
        ExcessKl().evaluate_on(task, Attention(n_layers=2), 4, FITTED)
