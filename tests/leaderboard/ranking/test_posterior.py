"""Joint ranking: probabilities worked by hand, open ends, ranges that hold at once, independence of the order."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capbench.documents.result import Capacity
from capbench_leaderboard.ranking.posterior import MAX_DRAWS, CapacityPosterior, Standing, make_posterior, rank_jointly

STANDARD_ERRORS = 4 * 0.5 / math.sqrt(MAX_DRAWS)
HALF_WIDTH = NormalDist().inv_cdf(0.975)

positive = st.floats(1, 1000)
intervals = st.tuples(positive, positive, positive).map(sorted)
posteriors = st.lists(intervals.map(lambda ends: CapacityPosterior(ends[1], ends[0], ends[2])), min_size=1, max_size=8)


def standings(*entries: CapacityPosterior) -> list[Standing]:
    return rank_jointly(entries, np.random.default_rng(0))


def test_of_two_far_apart_the_larger_is_best() -> None:
    first, second = standings(CapacityPosterior(1000, 900, 1100), CapacityPosterior(100, 90, 110))
    assert first.least_probability > 0.999
    assert second.greatest_probability < 0.001
    assert (first.best, first.worst, second.best, second.worst) == (1, 1, 2, 2)


def test_two_identical_ones_share_ranks_and_the_probability() -> None:
    for standing in standings(CapacityPosterior(100, 90, 110), CapacityPosterior(100, 90, 110)):
        assert standing.least_probability == standing.greatest_probability
        assert standing.least_probability == pytest.approx(0.5, abs=STANDARD_ERRORS)
        assert (standing.best, standing.worst) == (1, 2)


def test_the_probability_of_two_log_normals_by_hand() -> None:
    # Both have a standard deviation of ln(1.21) / 1.96 in log capacity, and their medians differ by ln(1.1).
    sigma = math.log(1.21) / HALF_WIDTH
    expected = NormalDist().cdf(math.log(1.1) / (sigma * math.sqrt(2)))
    first, second = standings(CapacityPosterior(110, 110 / 1.21, 110 * 1.21), CapacityPosterior(100, 100 / 1.21, 121))
    assert first.least_probability == pytest.approx(expected, abs=STANDARD_ERRORS)
    assert second.least_probability == pytest.approx(1 - expected, abs=STANDARD_ERRORS)


def test_each_side_of_an_interval_has_its_own_width() -> None:
    # The fixed value 120 lies two standard deviations above the estimate on the wide side: 20 of 19.6 per 1.96.
    wide_above = CapacityPosterior(100, 99.9, 100 + HALF_WIDTH * 10, is_logarithmic=False)
    first, second = standings(wide_above, CapacityPosterior(120, 120, 120))
    assert first.least_probability == pytest.approx(1 - NormalDist().cdf(2), abs=STANDARD_ERRORS)
    assert second.least_probability == pytest.approx(NormalDist().cdf(2), abs=STANDARD_ERRORS)


def test_an_open_end_may_be_anywhere_above() -> None:
    # The open one is above 150 for sure if the open end is put high, and hardly ever if it is put at its estimate.
    at_least, known = standings(CapacityPosterior(100, 90, math.inf), CapacityPosterior(150, 140, 160))
    assert at_least.least_probability < 0.001
    assert at_least.greatest_probability == pytest.approx(0.975, abs=STANDARD_ERRORS)
    assert known.least_probability == pytest.approx(0.025, abs=STANDARD_ERRORS)
    assert known.greatest_probability > 0.999
    assert [(each.best, each.worst) for each in (at_least, known)] == [(1, 2), (1, 2)]


def test_an_open_end_that_decides_nothing_leaves_one_probability() -> None:
    at_least, known = standings(CapacityPosterior(1000, 900, math.inf), CapacityPosterior(150, 140, 160))
    assert at_least.least_probability > 0.999
    assert known.greatest_probability < 0.001


def test_below_may_be_anywhere_below() -> None:
    below, known = standings(CapacityPosterior(10, -math.inf, 11), CapacityPosterior(5, 4, 6))
    assert below.least_probability == pytest.approx(0.025, abs=STANDARD_ERRORS)
    assert below.greatest_probability > 0.999
    assert (known.best, known.worst) == (1, 2)


def test_where_less_is_better_the_smaller_one_is_first() -> None:
    least, most = (CapacityPosterior(each, 0.9 * each, 1.1 * each, less_is_better=True) for each in (4, 40))
    assert [each.best for each in standings(most, least)] == [2, 1]


def test_equal_values_without_any_width_share_their_ranks() -> None:
    assert [(each.best, each.worst) for each in standings(CapacityPosterior(5, 5, 5), CapacityPosterior(5, 5, 5))] == [
        (1, 2),
        (1, 2),
    ]


def test_ranges_hold_for_all_records_at_once() -> None:
    # In each of ten distant pairs the order is wrong with a probability of 2 %: pointwise ranges would show ten certain
    # orders, of which one or more is wrong in 18 % of the cases.
    gap = NormalDist().inv_cdf(0.98) * math.sqrt(2)
    pairs = [(100.0 * i, 100.0 * i + gap) for i in range(1, 11)]
    entries = [
        CapacityPosterior(value, value - HALF_WIDTH, value + HALF_WIDTH, is_logarithmic=False)
        for pair in pairs
        for value in pair
    ]
    assert all(each.worst == each.best + 1 for each in standings(*entries))
    assert [each.worst - each.best for each in standings(*entries[:2])] == [0, 0]


@settings(max_examples=20, deadline=None)
@given(posteriors)
def test_ranges_and_probabilities_are_consistent(entries: list[CapacityPosterior]) -> None:
    found = standings(*entries)
    assert all(1 <= each.best <= each.worst <= len(entries) for each in found)
    assert sum(each.least_probability for each in found) <= 1 + 1e-9
    assert sum(each.greatest_probability for each in found) >= 1 - 1e-9


def test_a_record_gives_its_posterior() -> None:
    capacity = Capacity(
        kind="largest_load", estimate=256, ci_low=200, ci_high=None, confidence=0.9, status="at_least", parameter=None
    )
    assert make_posterior(capacity) == CapacityPosterior(256, 200, math.inf, 0.9)
    share = capacity.model_copy(update={"kind": "success_rate", "estimate": 0.0, "ci_low": 0.0, "ci_high": 0.2})
    assert make_posterior(share) == CapacityPosterior(0, 0, 0.2, 0.9, is_logarithmic=False)
    width = capacity.model_copy(update={"kind": "least_budget"})
    assert make_posterior(width).less_is_better


def test_extreme_numbers_of_a_record_raise_no_warning() -> None:
    huge = Capacity(
        kind="largest_load", estimate=1e15, ci_low=1e-300, ci_high=1e15, confidence=0.95, status="estimated"
    )
    negative = huge.model_copy(update={"estimate": -5.0, "ci_low": -1e308, "ci_high": 1e308})
    assert len(standings(make_posterior(huge), make_posterior(negative))) == 2


def test_no_records_have_no_ranks() -> None:
    assert standings() == []
