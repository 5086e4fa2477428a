"""Verdicts: every kind of claim with data that agree, agree in direction only, do not, and cannot decide."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import pytest

from capbench.documents.result import Capacity
from capbench.studies.reproduce.data import PointRecord, Reproduction, SeedRecord, SweepRecord
from capbench.studies.reproduce.fitting import fit_points
from capbench.studies.reproduce.judging import JudgedClaim, judge_claims
from capbench.studies.reproduce.recipe import PaperRecipe
from capbench.studies.reproduce.values import MeasuredValue, NotShown, difference, evaluate_at, mean
from capbench.studies.reproduce.verdict import Verdict

AGREES, IN_DIRECTION, NO_DIFFERENCE, DOES_NOT, NOT_SHOWN = Verdict


def point(heads: int, accuracies: Sequence[float], numbers: Mapping[str, float] | None = None) -> PointRecord:
    """A point at a given load, with one accuracy per seed."""
    return PointRecord(
        values={"arch.n_heads": str(heads)},
        run_id=f"run{heads}",
        settings={"arch.n_heads": heads, "arch.kind": "even" if heads % 2 == 0 else "odd"},
        numbers={"bound.b": 2.0 * heads, **(numbers or {})},
        seeds=tuple(SeedRecord(seed=i, numbers={"metrics.y": y}) for i, y in enumerate(accuracies)),
    )


def searched(
    heads: int, estimate: float, low: float | None, high: float | None, status: str = "estimated"
) -> PointRecord:
    """A point with a capacity that was searched for."""
    capacity = Capacity(
        kind="largest_load", estimate=estimate, ci_low=low, ci_high=high, confidence=0.95, status=status
    )
    return PointRecord(
        values={"arch.n_heads": str(heads)},
        run_id=f"run{heads}",
        settings={"arch.n_heads": heads},
        numbers={"capacity": estimate, "bound.b": 10.0},
        capacity=capacity,
    )


def judge(
    claim: Mapping[str, object],
    *points: PointRecord,
    other: Sequence[PointRecord] = (),
    paper: Mapping[str, object] | None = None,
) -> JudgedClaim:
    """The verdict on one claim over a sweep of these points."""
    sweep = {
        "label": "a sweep",
        "task": "t",
        "arch": "a",
        "grid": {"arch.n_heads": [p.settings["arch.n_heads"] for p in points]},
    }
    recipe = PaperRecipe.model_validate(
        {
            "name": "r",
            "paper": "p",
            "title": "t",
            "about": "",
            "sweeps": [{"id": "s", **sweep, "paper": paper or {}}, {"id": "o", **sweep}],
            "claims": [{"id": "c", "claim": "it is so", "pedigree": "paper", "where": "Table 1", **claim}],
        }
    )
    sweeps = (SweepRecord(id="s", points=points), SweepRecord(id="o", points=tuple(other)))
    (found,) = judge_claims(Reproduction(size="standard", recipe=recipe, sweeps=sweeps, environment=None))
    return found


TABLE = {"kind": "table", "sweep": "s", "y": "metrics.y", "published": [0.1, 0.2, 0.4], "within": 0.03}


@pytest.mark.parametrize(
    ("means", "outcome"),
    [
        ((0.11, 0.19, 0.42), AGREES),
        ((0.11, 0.25, 0.42), IN_DIRECTION),
        ((0.11, 0.05, 0.42), DOES_NOT),
        ((0.3, 0.3, 0.3), DOES_NOT),
    ],
)
def test_a_table_agrees_where_every_point_is_within_and_in_direction_where_the_order_is_the_same(
    means, outcome
) -> None:
    found = judge(TABLE, *(point(h, (y, y)) for h, y in zip((1, 2, 3), means, strict=True)))
    assert found.verdict == outcome
    assert [row.published for row in found.rows] == [0.1, 0.2, 0.4]


def test_a_table_whose_ends_do_not_differ_beyond_the_seeds_does_not_agree_in_direction() -> None:
    noisy = [point(h, (y - spread, y + spread)) for h, y, spread in ((1, 0.11, 0.2), (2, 0.25, 0.0), (3, 0.42, -0.2))]
    assert judge(TABLE, *noisy).verdict == DOES_NOT


def test_a_table_is_compared_with_the_points_that_were_run_by_their_grid_values() -> None:
    whole = judge(TABLE, point(1, (0.1, 0.1)), point(2, (0.2, 0.2)), point(3, (0.4, 0.4)))
    assert whole.verdict == AGREES
    failed = PointRecord(values={"arch.n_heads": "2"}, reason="diverged", settings={"arch.n_heads": 2})
    part = judge(TABLE, point(1, (0.1, 0.1)), failed, point(3, (0.4, 0.4)))
    assert (part.verdict, [row.published for row in part.rows if row.ours]) == (AGREES, [0.1, 0.4])
    assert "2 of the 3 published points were run" in part.ours
    assert judge(TABLE, point(1, (0.1, 0.1))).verdict == NOT_SHOWN  # three numbers, one point


def test_a_table_lists_every_point_of_the_papers_grid_and_says_which_are_within() -> None:
    grid = {"arch.n_heads": [1, 2, 3, 4]}
    table = {**TABLE, "only": {"arch.n_heads": [1, 2, 4]}}
    found = judge(table, point(1, (0.11, 0.11)), point(2, (0.3, 0.3)), paper={"grid": grid})
    assert [(row.label, row.published, row.is_within) for row in found.rows] == [
        ("n_heads = 1", 0.1, True),
        ("n_heads = 2", 0.2, False),
        ("n_heads = 4", 0.4, False),
    ]
    assert [row.ours is None for row in found.rows] == [False, False, True]
    assert judge(TABLE, point(1, (0.1, 0.1)), paper={"grid": grid}).verdict == NOT_SHOWN  # three numbers, four points


@pytest.mark.parametrize(
    ("published", "values", "outcome"),
    [
        (10.0, (9.9, 10.1, 10.0), AGREES),
        (10.0, (9.0, 10.5, 9.8), AGREES),  # the interval contains it
        (10.0, (11.9, 12.1, 12.0), DOES_NOT),  # near, but a single number has no direction
        (10.0, (19.9, 20.1, 20.0), DOES_NOT),
        (10.0, (1.0, 30.0, 20.0), NOT_SHOWN),  # the interval is too wide
        ([8.0, 12.0], (11.0, 11.5, 11.2), AGREES),
        ([8.0, 12.0], (13.9, 14.1, 14.0), DOES_NOT),
        ([8.0, 12.0], (12.0, 12.1, 12.6), NO_DIFFERENCE),  # in or above the range
        ([8.0, 12.0], (0.0, 20.0, 10.0), NOT_SHOWN),
        ([0.0, 20.0], (1.0, 9.0, 5.0), AGREES),  # a wide interval, all of it in the range
        ([8.0, 12.0], (-10.1, -9.9, -10.0), DOES_NOT),
    ],
)
def test_a_value_agrees_where_its_interval_contains_the_published_one(published, values, outcome) -> None:
    claim = {"kind": "value", "sweep": "s", "y": "metrics.y", "published": published}
    assert judge(claim, point(1, values)).verdict == outcome


@pytest.mark.parametrize(("seeds", "outcome"), [("least", AGREES), ("largest", DOES_NOT), ("mean", NOT_SHOWN)])
def test_one_seed_counts_where_the_paper_says_any(seeds: str, outcome: Verdict) -> None:
    claim = {"kind": "value", "sweep": "s", "y": "1 - metrics.y", "published": [0.0, 0.1], "over_seeds": seeds}
    assert judge(claim, point(1, (0.5, 0.51, 0.95))).verdict == outcome


def test_a_search_has_no_single_seeds() -> None:
    claim = {"kind": "value", "sweep": "s", "y": "capacity", "published": 9.0, "over_seeds": "largest"}
    assert judge(claim, searched(1, 9.0, 8.0, 10.0)).verdict == NOT_SHOWN


@pytest.mark.parametrize(
    ("values", "outcome"),
    [
        ((11.4, 11.5, 11.6), AGREES),  # within the tolerance
        ((12.0, 14.6, 15.0), AGREES),  # beyond it, but the interval contains the published value
        ((12.5, 13.0, 13.5), NO_DIFFERENCE),  # the interval reaches the tolerance, not the published value
        ((13.9, 14.2, 14.0), DOES_NOT),
    ],
)
def test_a_tolerance_and_an_interval_are_not_added_up(values, outcome) -> None:
    claim = {"kind": "value", "sweep": "s", "y": "metrics.y", "published": 10.0, "within": 2.0}
    assert judge(claim, point(1, values)).verdict == outcome


@pytest.mark.parametrize(
    ("expected", "lines", "outcome"),
    [
        ("rises", [(1, 2), (2, 3), (3.1, 4)], AGREES),
        ("rises", [(1, 9), (2, 9.5), (2.5, 9.0)], NO_DIFFERENCE),
        ("rises", [(3, 3.1), (2, 2.1), (1, 1.1)], DOES_NOT),
        ("rises", [(1, 1.1), (9, 9.1), (2, 2.1)], DOES_NOT),  # a fall on the way beyond the variation between seeds
        ("falls", [(3, 3.1), (2, 2.1), (1, 1.1)], AGREES),
        ("falls", [(1, 1.1), (2, 2.1), (3, 3.1)], DOES_NOT),
        ("peaks inside", [(1, 1.1), (3, 3.1), (2, 2.1)], AGREES),
        ("rises", [(1, 1.1), (2, 2.1), (4, 4.1), (5, 5.1), (4.6, 4.7), (7, 7.1)], IN_DIRECTION),  # one step falls
        ("peaks inside", [(1, 1.1), (2, 4.1), (1.9, 4.2)], NO_DIFFERENCE),
        ("peaks inside", [(1, 1.1), (2, 3.1), (2.9, 2.0)], NO_DIFFERENCE),
        ("peaks inside", [(1, 1.1), (2, 2.1), (3, 3.1)], DOES_NOT),
        ("dips inside", [(3, 3.1), (1, 1.1), (2, 2.1)], AGREES),
        ("dips inside", [(1, 1.1), (2, 2.1), (3, 3.1)], DOES_NOT),
    ],
)
def test_a_trend_agrees_where_intervals_exclude_the_opposite(expected, lines, outcome) -> None:
    claim = {"kind": "trend", "sweep": "s", "x": "arch.n_heads", "y": "metrics.y", "expected": expected}
    assert judge(claim, *(point(h, line) for h, line in enumerate(lines, 1))).verdict == outcome


@pytest.mark.parametrize(
    ("lines", "outcome"),
    [([(1, 2), (1.1, 2.1)], AGREES), ([(1, 2), (1.5, 1.5)], NO_DIFFERENCE), ([(1, 2), (2, 3)], DOES_NOT)],
)
def test_flat_means_within_the_tolerance(lines, outcome) -> None:
    claim = {"kind": "trend", "sweep": "s", "x": "arch.n_heads", "y": "metrics.y", "expected": "flat", "within": 0.2}
    assert judge(claim, *(point(h, line) for h, line in enumerate(lines, 1))).verdict == outcome


def test_a_trend_across_values_that_are_no_field_reads_each_from_its_own_quantity() -> None:
    measured_at = point(1, (0.0, 0.0)).model_copy(
        update={
            "seeds": tuple(SeedRecord(seed=i, numbers={"data.rank_0.5": 9 + i, "data.rank_0.9": 3 + i}) for i in (0, 1))
        }
    )
    claim = {"kind": "trend", "sweep": "s", "x": "tau", "across": ["0.5", "0.9"], "y": 'data["rank_{}"]'}
    claim = {**claim, "expected": "falls"}
    found = judge(claim, measured_at)
    assert found.verdict == AGREES
    assert "9.5" in found.ours
    assert judge({**claim, "expected": "rises"}, measured_at).verdict == DOES_NOT


@pytest.mark.parametrize(
    ("one", "other", "outcome"),
    [
        ((5, 9), (4, 8.1), AGREES),  # larger at every seed, though seeds vary by more than that
        ((5, 9), (4, 9.1), NO_DIFFERENCE),
        ((5, 9), (6, 9), NO_DIFFERENCE),
        ((5, 9), (6, 10.1), DOES_NOT),
    ],
)
def test_larger_is_paired_on_seeds(one, other, outcome) -> None:
    claim = {
        "kind": "larger",
        "sweep": "s",
        "only": {"arch.n_heads": 1},
        "than_only": {"arch.n_heads": 2},
        "y": "metrics.y",
    }
    assert judge(claim, point(1, one), point(2, other)).verdict == outcome


def test_larger_by_a_factor_and_than_another_sweep_or_quantity() -> None:
    twice = {"kind": "larger", "sweep": "s", "than_sweep": "o", "y": "metrics.y", "factor": 2}
    assert judge(twice, point(1, (5, 6)), other=[point(1, (2, 2.45))]).verdict == AGREES
    in_between = judge(twice, point(1, (5, 6)), other=[point(1, (3, 4.01))])
    assert in_between.verdict == IN_DIRECTION, "larger, but not twice as large"
    assert judge(twice, point(1, (5, 6)), other=[point(1, (6, 7))]).verdict == DOES_NOT
    other = {"kind": "larger", "sweep": "s", "y": "metrics.y", "than_y": "bound.b"}
    assert judge(other, point(1, (5, 6))).verdict == NO_DIFFERENCE
    assert judge(other, point(1, (5, 5.1))).verdict == AGREES


def test_the_other_side_of_larger_is_at_the_same_points_unless_it_says_otherwise() -> None:
    claim = {"kind": "larger", "sweep": "s", "only": {"arch.n_heads": 1}, "y": "metrics.y", "than_y": "bound.b"}
    points = point(1, (5, 5.1)), point(2, (0, 0), {"bound.b": 100.0})
    assert judge(claim, *points).verdict == AGREES
    assert judge({**claim, "than_only": {}}, *points).verdict == DOES_NOT  # the mean of both points


FIT = {"kind": "fit", "sweeps": ["s"], "x": "arch.n_heads", "y": "metrics.y", "form": "power", "parameter": "p"}


@pytest.mark.parametrize(
    ("power", "published", "outcome"),
    [(2.0, [1.8, 2.5], AGREES), (2.0, 2.3, DOES_NOT), (1.0, [2.0, 3.0], DOES_NOT)],
)
def test_a_fit_is_judged_by_its_parameter(power, published, outcome) -> None:
    points = [
        point(h, (3.0 * h**power * wobble, 3.0 * h**power * wobble))
        for h, wobble in zip((1, 2, 3, 5, 8), (1.01, 0.99, 1.0, 1.01, 0.99), strict=True)
    ]
    found = judge({**FIT, "published": published}, *points)
    assert found.verdict == outcome
    assert re.search(r"^p = \S+ \(\S+ to \S+\); c = \S+ \(\S+ to \S+\); R² .*held-out error", found.ours), (
        "every parameter"
    )


def test_a_fit_may_be_over_slopes() -> None:
    widths = (2, 3, 4, 5)
    points = [point(heads, (heads * d**3 + 7,) * 2, {"arch.d": d}) for d in widths for heads in (1, 2, 4)]
    slopes = fit_points(points, "arch.d", "metrics.y", per="arch.n_heads")
    assert slopes == [(d, pytest.approx(d**3)) for d in widths]
    with pytest.raises(NotShown, match=r"one value of arch\.n_heads at 2 gives no slope"):
        fit_points(points[:1], "arch.d", "metrics.y", per="arch.n_heads")


def test_a_fit_of_too_few_points_or_of_a_form_that_is_not_there_shows_nothing() -> None:
    points = [point(h, (h, h)) for h in (1, 2, 3, 4)]
    assert judge({**FIT, "published": 1}, *points[:3]).verdict == NOT_SHOWN
    assert "no parameter 'q'" in judge({**FIT, "parameter": "q", "published": 1}, *points).ours
    assert "no form named 'cubic'" in judge({**FIT, "form": "cubic", "published": 1}, *points).ours
    assert judge({**FIT, "parameter": "r_squared", "published": [0.96, 1]}, *points).verdict == AGREES


@pytest.mark.parametrize(
    ("limits", "ratios", "outcome"),
    [
        ({"published": [4, 14]}, (5, 9, 13), AGREES),
        ({"published": [4, 14]}, (5, 9, 15), DOES_NOT),
        ({"published": [4, 14]}, (5, 9, 14.01), NO_DIFFERENCE),  # the interval reaches into the range
        ({"published": [4, 14]}, (1, 2, 13), DOES_NOT),
        ({"least": 1}, (2, 3, 4), AGREES),
        ({"least": 1}, (2, 0.9, 4), DOES_NOT),
    ],
)
def test_a_ratio_must_be_in_the_range_at_every_point(limits, ratios, outcome) -> None:
    claim = {"kind": "ratio", "sweep": "s", "y": "metrics.y", "bound": "b", **limits}
    points = [point(h, (2.0 * h * r * 0.999, 2.0 * h * r * 1.001)) for h, r in enumerate(ratios, 1)]
    assert judge(claim, *points).verdict == outcome


def test_a_ratio_that_only_seems_to_be_above_one_shows_no_difference() -> None:
    claim = {"kind": "ratio", "sweep": "s", "y": "metrics.y", "bound": "b", "least": 1}
    assert judge(claim, point(1, (1.0, 4.0))).verdict == NO_DIFFERENCE


def test_what_cannot_be_shown_says_why() -> None:
    claim = {"kind": "value", "sweep": "s", "y": "metrics.y", "published": 1}
    found = judge({**claim, "not_shown": "it takes a week"}, point(1, (1, 1)))
    assert (found.verdict, found.ours) == (NOT_SHOWN, "it takes a week")
    assert judge({**claim, "only": {"arch.n_heads": 7}}, point(1, (1, 1))).verdict == NOT_SHOWN
    assert "no number 'metrics.z'" in judge({**claim, "y": "metrics.z"}, point(1, (1, 1))).ours


def test_one_seed_gives_no_interval() -> None:
    claim = {
        "kind": "larger",
        "sweep": "s",
        "only": {"arch.n_heads": 1},
        "than_only": {"arch.n_heads": 2},
        "y": "metrics.y",
    }
    assert judge(claim, point(1, (9,)), point(2, (1,))).verdict == NO_DIFFERENCE


CEILING = {"y": "metrics.y", "sweep": "s", "ceiling": 0.99}


def test_points_at_the_ceiling_are_no_evidence() -> None:
    larger = {"kind": "larger", **CEILING, "only": {"arch.n_heads": 2}, "than_only": {"arch.n_heads": 1}}
    assert judge(larger, point(1, (0.991, 0.992)), point(2, (0.997, 0.998))).verdict == NOT_SHOWN
    assert judge(larger, point(1, (0.91, 0.92)), point(2, (0.997, 0.998))).verdict == AGREES
    rises = {"kind": "trend", **CEILING, "x": "arch.n_heads", "expected": "rises"}
    high = point(2, (1.0, 1.0)), point(3, (0.995, 0.995))
    assert judge(rises, point(1, (0.8, 0.81)), *high).verdict == AGREES, "the fall from 1 to .995 does not count"
    assert judge(rises, *high).verdict == NOT_SHOWN
    falls = {**rises, "expected": "falls"}
    low = [point(1, (0.995, 0.995)), point(2, (1.0, 1.0)), point(3, (0.5, 0.51))]
    assert judge(falls, *low).verdict == AGREES


def test_claims_are_counted_by_their_pedigree_unless_they_say_otherwise() -> None:
    claim = {"kind": "value", "sweep": "s", "y": "metrics.y", "published": 1}
    groups = {"paper": "published", "code": "published", "derived": "notes", "protocol": "own"}
    for pedigree, group in groups.items():
        assert judge({**claim, "pedigree": pedigree}, point(1, (1, 1))).claim.counted_as == group
    assert judge({**claim, "group": "check"}, point(1, (1, 1))).claim.counted_as == "check"


def test_a_value_of_one_seed_decides_nothing() -> None:
    claim = {"kind": "value", "sweep": "s", "y": "metrics.y", "published": 10.0}
    found = judge(claim, point(1, (11.0,)))
    assert (found.verdict, "too wide an interval" in found.ours) == (NOT_SHOWN, True)


def test_a_fit_may_be_judged_by_its_held_out_error() -> None:
    points = [point(h, (3.0 * h,) * 2) for h in (1, 2, 3, 4, 5)]
    error = {**FIT, "parameter": "held_out_error", "published": [0, 0.01]}
    assert judge(error, *points).verdict == AGREES
    assert judge({**error, "form": "x log x"}, *points[1:]).verdict == DOES_NOT


def test_points_are_selected_by_any_field_and_by_lists() -> None:
    claim = {"kind": "value", "sweep": "s", "y": "metrics.y", "published": 2}
    points = [point(h, (h, h)) for h in (1, 2, 3)]
    assert judge({**claim, "only": {"arch.kind": "even"}}, *points).verdict == AGREES
    assert judge({**claim, "only": {"arch.n_heads": [1, 3]}}, *points).ours.startswith("2")


def test_an_interval_over_seeds_is_students_t() -> None:
    found = evaluate_at(point(1, (1.0, 2.0, 3.0)), "2 * metrics.y")
    assert (found.value, found.low, found.high) == (
        4.0,
        pytest.approx(4 - 4.3027 * 2 / 3**0.5, 1e-4),
        pytest.approx(8.968, 1e-3),
    )


def test_an_expression_may_turn_the_interval_of_a_capacity_round() -> None:
    found = evaluate_at(searched(1, 20.0, 10.0, 40.0), "100 / capacity")
    assert (found.value, found.low, found.high) == (5.0, 2.5, 10.0)
    open_ended = evaluate_at(searched(1, 20.0, 10.0, None, "at_least"), "capacity / bound.b")
    assert (open_ended.low, open_ended.high) == (1.0, None)


def test_a_capacity_known_from_one_side_is_left_out_of_a_fit() -> None:
    points = [searched(h, 3.0 * h, 2.9 * h, 3.1 * h) for h in (1, 2, 3, 4)] + [searched(9, 1.0, 1.0, None, "at_least")]
    claim = {**FIT, "y": "capacity", "published": 1.0, "within": 0.01}
    assert "over 4 points" in judge(claim, *points).ours


def test_errors_of_values_without_common_seeds_are_added_in_quadrature() -> None:
    gap = difference(MeasuredValue(10, 7, 13), MeasuredValue(4, 0, 8))
    assert (gap.value, gap.low, gap.high) == (6, 1, 11)
    both = mean([MeasuredValue(10, 7, 13), MeasuredValue(4, 0, 8)])
    assert (both.value, both.low, both.high) == (7, 4.5, 9.5)
