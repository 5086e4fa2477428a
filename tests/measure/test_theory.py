"""Bounds beside a measurement: compared, enforced where they are upper bounds, and a guide for the search."""

from __future__ import annotations

from typing import ClassVar

import pytest

from capbench import FACTS, Bound, BoundValue, Kind, NotApplicable, Pedigree
from capbench.errors import BoundBroken
from capbench.measure.theory import LARGEST_HELD, bracket, compare, refuse_broken
from capbench_plugins.mha import Mha
from capbench_tasks.rgr import Rgr


class Ceiling(Bound):
    """No more than forty-eight facts."""

    name: ClassVar[str] = "test.ceiling"
    kind: ClassVar[Kind] = Kind.UPPER
    statement: ClassVar[str] = "forty-eight and no more"
    formula: ClassVar[str] = "48"
    citation: ClassVar[str] = "this test"
    pedigree: ClassVar[Pedigree] = Pedigree.DERIVED

    def evaluate(self, task, architecture, load) -> BoundValue:
        return BoundValue(48, FACTS)


class Guarantee(Ceiling):
    """At least forty-eight facts."""

    name: ClassVar[str] = "test.guarantee"
    kind: ClassVar[Kind] = Kind.LOWER


class Silent(Ceiling):
    """Never applies."""

    name: ClassVar[str] = "test.silent"

    def evaluate(self, task, architecture, load) -> BoundValue:
        raise NotApplicable("it never does")


def compared(bound: type[Bound], estimate: float, largest_held: float):
    (record,) = compare([bound], Rgr(), Mha(), 10, {FACTS: estimate, LARGEST_HELD: largest_held})
    return record


def test_a_measurement_above_an_upper_bound_raises_with_both_numbers() -> None:
    broken = compared(Ceiling, 49.5, 50)
    assert broken.holds is False
    with pytest.raises(BoundBroken, match=r"measured facts 49\.5 is above the bound 48 of test\.ceiling \[derived\]"):
        refuse_broken([broken])


def test_an_upper_bound_is_judged_by_what_was_held_not_by_an_estimate_between_two_loads() -> None:
    fine = compared(Ceiling, 48.4, 48)
    assert fine.holds is True
    refuse_broken([fine])


def test_a_model_below_a_guarantee_shows_a_gap_and_no_error() -> None:
    gap = compared(Guarantee, 24, 24)
    assert (gap.holds, gap.ratio) == (False, 0.5)
    refuse_broken([gap])


def test_a_bound_that_does_not_apply_says_why_and_gives_no_number() -> None:
    silent = compared(Silent, 1, 1)
    assert (silent.value, silent.ratio, silent.reason) == (None, None, "it never does")


def test_the_search_starts_where_theory_points() -> None:
    low, high = bracket([Guarantee], Rgr(), Mha())
    assert low <= 48 <= high
    assert bracket([Guarantee, Ceiling], Rgr(), Mha())[1] == 48
    assert bracket([Silent], Rgr(), Mha()) == (1.0, float(Rgr().max_load))


class LatencyFloor(Bound):
    """A third party's bound on a quantity that the core has never heard of."""

    name: ClassVar[str] = "elsewhere.latency"
    kind: ClassVar[Kind] = Kind.UPPER
    statement: ClassVar[str] = "No model answers in less than 10."
    formula: ClassVar[str] = "10"
    citation: ClassVar[str] = "test"
    pedigree: ClassVar[Pedigree] = Pedigree.DERIVED

    def evaluate(self, task, architecture, load) -> BoundValue:
        return BoundValue(10.0, "latency")


class StatedLatencyFloor(LatencyFloor):
    lower_is_better: ClassVar[bool | None] = True


@pytest.mark.parametrize(
    ("bound", "measured", "holds"),
    [
        (StatedLatencyFloor, 12.0, True),
        (StatedLatencyFloor, 8.0, False),
        (LatencyFloor, 12.0, False),
        (LatencyFloor, 8.0, True),
    ],
)
def test_a_bound_states_itself_whether_lower_is_better(bound: type[Bound], measured: float, holds: bool) -> None:
    (record,) = compare([bound], Rgr(), Mha(), 10, {"latency": measured})
    assert record.holds is holds
    assert record.lower_is_better is bool(bound.lower_is_better)
    if holds:
        refuse_broken([record])
    else:
        side = "below the floor" if bound.lower_is_better else "above the bound"
        with pytest.raises(BoundBroken, match=side):
            refuse_broken([record])
