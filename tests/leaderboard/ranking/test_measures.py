"""Training cost and the Pareto front of capacity, cost and size."""

from __future__ import annotations

from dataclasses import replace

from capbench_leaderboard.ranking.entry import BoardEntry, make_entry
from capbench_leaderboard.ranking.measures import one_per_cell, pareto_front, training_cost
from tests.leaderboard.synthetic import SyntheticRecord


def entry(name: str, capacity: float, steps: int, tier: int = 1024, settled: bool = True) -> BoardEntry:
    result = SyntheticRecord(architecture=name, capacity=capacity, tier=tier, settled=settled).result()
    return replace(make_entry(f"{name}-{tier}.json", result), steps_to_hold=steps)


def names(entries: list[BoardEntry]) -> list[str]:
    return [each.result.architecture.name for each in entries]


def test_a_record_that_costs_more_and_holds_less_is_not_on_the_front() -> None:
    entries = [entry("cheap", 40, 100), entry("large", 90, 300), entry("worse", 40, 200), entry("equal", 90, 400)]
    assert names(pareto_front(entries)) == ["cheap", "large"]


def test_a_smaller_model_is_on_the_front_although_a_larger_one_holds_more() -> None:
    assert names(pareto_front([entry("small", 40, 500, tier=256), entry("large", 90, 100)])) == ["large", "small"]


def test_two_equally_good_records_are_both_on_the_front() -> None:
    assert names(pareto_front([entry("a", 40, 100), entry("b", 40, 100)])) == ["a", "b"]


def test_an_unsettled_record_is_not_on_the_front() -> None:
    assert names(pareto_front([entry("a", 40, 100), entry("b", 90, 100, settled=False)])) == ["a"]


def test_training_cost_is_the_steps_of_models_that_hold_times_the_parameters() -> None:
    result = SyntheticRecord(capacity=50, settled=None).result()
    assert training_cost(make_entry("x.json", result)) == 100 * result.n_parameters


def test_no_model_that_holds_means_no_cost() -> None:
    assert training_cost(make_entry("x.json", SyntheticRecord(capacity=1).result())) is None


def test_a_cell_is_drawn_once_and_by_a_settled_record_if_there_is_one() -> None:
    settled, other = entry("mha", 40, 100), entry("mha", 90, 100, settled=False)
    assert one_per_cell([replace(other, path="b.json"), settled]) == [settled]
