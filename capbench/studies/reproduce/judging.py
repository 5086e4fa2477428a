"""Verdicts: the claims of a recipe compared with the data of its reproduction, a pure function of the data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import singledispatch

from capbench.documents.expressions import expand_braces
from capbench.documents.text import number
from capbench.errors import UserError
from capbench.studies.fit import Estimate, FormFit
from capbench.studies.reproduce.claim_text import published_text, short_name, value_text
from capbench.studies.reproduce.claims import (
    Claim,
    FitClaim,
    ForecastClaim,
    LargerClaim,
    PointFilter,
    RatioClaim,
    TableClaim,
    TrendClaim,
    ValueClaim,
)
from capbench.studies.reproduce.data import PointRecord, Reproduction
from capbench.studies.reproduce.fitting import fit_sweeps
from capbench.studies.reproduce.values import MeasuredValue, NotShown, difference, evaluate_at, mean, select_points
from capbench.studies.reproduce.verdict import (
    Verdict,
    are_ordered_alike,
    judge_flat,
    judge_inside,
    judge_larger,
    judge_positive,
    judge_range,
    judge_rising,
    judge_value,
)
from capbench.studies.sweep import spelled, values_apart

WIDEST_FORECAST = 2.0
"""A forecast whose interval is wider than this factor to each side is not confirmed by a value inside it."""


@dataclass(frozen=True)
class TableRow:
    """A published number, and the point with the value measured there if it was run."""

    fields: Mapping[str, str]
    """The values of the point by field, as the command line spells them."""
    published: float
    within: float
    point: PointRecord | None
    ours: MeasuredValue | None

    @property
    def label(self) -> str:
        """The values of the point."""
        return ", ".join(f"{name.split('.')[-1]} = {value}" for name, value in self.fields.items())

    @property
    def is_within(self) -> bool:
        """Whether the measured value is within the tolerance."""
        return self.ours is not None and abs(self.ours.value - self.published) <= self.within


@dataclass(frozen=True)
class JudgedClaim:
    """A claim, both sides as text, and the verdict."""

    claim: Claim
    published: str
    ours: str
    verdict: Verdict
    rows: tuple[TableRow, ...] = ()


@dataclass(frozen=True)
class MeasuredSide:
    """The measured side of a claim as text, and the verdict."""

    ours: str
    verdict: Verdict
    rows: tuple[TableRow, ...] = ()


def judge_claims(reproduction: Reproduction) -> list[JudgedClaim]:
    """A verdict for every claim of the recipe, in its order."""
    return [_judged(claim, reproduction) for claim in reproduction.recipe.claims]


def _judged(claim: Claim, data: Reproduction) -> JudgedClaim:
    try:
        if claim.not_shown:
            raise NotShown(claim.not_shown)
        side = _judge(claim, data)
    except (NotShown, UserError) as reason:
        side = MeasuredSide(str(reason), Verdict.NOT_SHOWN)
    return JudgedClaim(claim, published_text(claim), side.ours, side.verdict, side.rows)


@singledispatch
def _judge(claim: Claim, data: Reproduction) -> MeasuredSide:
    """Compares a claim with the data; raises NotShown where they cannot decide it."""
    raise NotImplementedError(f"claims of the kind {type(claim).__name__}")


@_judge.register
def _judge_table(claim: TableClaim, data: Reproduction) -> MeasuredSide:
    rows = table_rows(claim, data)
    pairs = [(row, row.ours) for row in rows if row.ours is not None]
    if not pairs:
        raise NotShown(f"at this size the grid has none of the {len(claim.published)} published points")
    worst, ours = max(pairs, key=lambda pair: abs(pair[1].value - pair[0].published))
    gap = abs(ours.value - worst.published)
    count = "" if len(pairs) == len(rows) else f" ({len(pairs)} of the {len(rows)} published points were run)"
    text = f"largest difference {gap:.3f}: {number(ours.value)} at {worst.label}{count}"
    if all(row.is_within for row, _ in pairs):
        return MeasuredSide(text, Verdict.AGREES, tuple(rows))
    is_alike = are_ordered_alike([row.published for row, _ in pairs], [each.value for _, each in pairs])
    verdict = Verdict.IN_DIRECTION if is_alike and _is_spread(pairs) else Verdict.DOES_NOT
    return MeasuredSide(text, verdict, tuple(rows))


def _is_spread(pairs: Sequence[tuple[TableRow, MeasuredValue]]) -> bool:
    """Whether the values at the largest and at the smallest published number are shown to differ as published."""
    (_, low), *_, (_, high) = sorted(pairs, key=lambda pair: pair[0].published)
    return judge_positive(difference(high, low)) is Verdict.AGREES


@_judge.register
def _judge_value(claim: ValueClaim, data: Reproduction) -> MeasuredSide:
    found = _mean_over(data, claim.sweep, claim.only, claim.y)
    if claim.over_seeds != "mean":
        if not found.by_seed:
            raise NotShown(f"{claim.y} has no value per seed")
        extreme = min if claim.over_seeds == "least" else max
        found = MeasuredValue.exactly(extreme(found.by_seed.values()))
    return MeasuredSide(value_text(found), judge_value(found, claim.published, claim.within))


@_judge.register
def _judge_trend(claim: TrendClaim, data: Reproduction) -> MeasuredSide:
    line = _below_ceiling(_trend_line(data, claim), claim)
    if len(line) < (3 if "inside" in claim.expected else 2):
        raise NotShown(f"{len(line)} values of {claim.x} show no trend")
    (start, first), (stop, last) = line[0], line[-1]
    text = f"{value_text(first)} at {short_name(claim.x)} = {number(start)}, {value_text(last)} at {number(stop)}"
    values = [value for _, value in line]
    if claim.expected == "flat":
        assert claim.within is not None
        return MeasuredSide(text, judge_flat(values, claim.within))
    if "inside" in claim.expected:
        return _judge_extreme(line, claim, sign=1 if claim.expected == "peaks inside" else -1)
    return MeasuredSide(text, judge_rising(values if claim.expected == "rises" else values[::-1]))


def _below_ceiling(line: list[tuple[float, MeasuredValue]], claim: TrendClaim) -> list[tuple[float, MeasuredValue]]:
    """The line without points at the ceiling, but for the first of several in a row: they cannot differ."""
    if claim.ceiling is None:
        return line
    is_high = [value.value >= claim.ceiling for _, value in line]
    if all(is_high):
        raise NotShown(f"every point is at the ceiling of {number(claim.ceiling)}, where none can differ")
    if claim.expected == "falls":  # of the first ones at the ceiling, the last counts
        return [pair for i, pair in enumerate(line) if not (is_high[i] and all(is_high[: i + 2]))]
    return [pair for i, pair in enumerate(line) if not (is_high[i] and i and all(is_high[i - 1 :]))]


def _judge_extreme(line: Sequence[tuple[float, MeasuredValue]], claim: TrendClaim, sign: int) -> MeasuredSide:
    """Whether the extreme value is inside, and beyond both ends."""
    at, extreme = max(line, key=lambda pair: sign * pair[1].value)
    ends = [line[0][1], line[-1][1]]
    text = (
        f"{value_text(extreme)} at {short_name(claim.x)} = {number(at)}; "
        f"{value_text(ends[0])} and {value_text(ends[1])} at the ends"
    )
    return MeasuredSide(text, judge_inside([value for _, value in line], sign))


@_judge.register
def _judge_larger(claim: LargerClaim, data: Reproduction) -> MeasuredSide:
    sweep, only, y = claim.other()
    one, other = _mean_over(data, claim.sweep, claim.only, claim.y), _mean_over(data, sweep, only, y)
    if claim.ceiling is not None and min(one.value, other.value) >= claim.ceiling:
        raise NotShown(f"{value_text(one)} and {value_text(other)}: both at the ceiling, where neither can differ")
    gap = difference(one, other.times(claim.factor))
    factor = "" if claim.factor == 1 else f"{number(claim.factor)} × "
    text = f"{value_text(one)} against {factor}{value_text(other)}; difference {value_text(gap)}"
    return MeasuredSide(text, judge_larger(one, other, claim.factor))


@_judge.register
def _judge_fit(claim: FitClaim, data: Reproduction) -> MeasuredSide:
    report, fit = fit_sweeps(data, claim)
    best = report.fits[0]
    text = f"R² {fit.r_squared:.4f}, held-out error {fit.held_out_error:.1%} over {len(report.points)} points"
    if best.form != fit.form:
        text += f" ({best.form}: {best.held_out_error:.1%})"
    found = _fitted_value(fit, claim.parameter)
    verdict = judge_value(found, claim.published, claim.within)
    others = [f"{p.name} = {value_text(_estimated(p))}" for p in fit.parameters if p.name != claim.parameter]
    return MeasuredSide("; ".join([f"{claim.parameter} = {value_text(found)}", *others, text]), verdict)


def _fitted_value(fit: FormFit, parameter: str) -> MeasuredValue:
    """A parameter of a fit with its interval, or how well it fits."""
    quality = {"r_squared": fit.r_squared, "held_out_error": fit.held_out_error}
    if parameter in quality:
        return MeasuredValue(quality[parameter], quality[parameter], quality[parameter])
    estimate = next((p for p in fit.parameters if p.name == parameter), None)
    if estimate is None:
        names = ", ".join([*(p.name for p in fit.parameters), *quality])
        raise NotShown(f"{fit.form} has no parameter {parameter!r}; it has {names}")
    return _estimated(estimate)


def _estimated(estimate: Estimate) -> MeasuredValue:
    return MeasuredValue(estimate.value, estimate.ci_low, estimate.ci_high)


@_judge.register
def _judge_ratio(claim: RatioClaim, data: Reproduction) -> MeasuredSide:
    points = _select(data, claim.sweep, claim.only)
    ratios = [evaluate_at(point, f"({claim.y}) / bound.{claim.bound}") for point in points]
    least, most = min(ratios, key=lambda r: r.value), max(ratios, key=lambda r: r.value)
    text = value_text(least)
    if len(ratios) > 1:
        text += f" to {value_text(most)} over {len(ratios)} points"
    if claim.least is not None:
        if all(ratio.floor >= claim.least for ratio in ratios):
            return MeasuredSide(text, Verdict.AGREES)
        is_below = any(ratio.ceiling < claim.least for ratio in ratios)
        return MeasuredSide(text, Verdict.DOES_NOT if is_below else Verdict.NO_DIFFERENCE)
    assert claim.published is not None
    return MeasuredSide(text, judge_range(ratios, *claim.published))


@_judge.register
def _judge_forecast(claim: ForecastClaim, data: Reproduction) -> MeasuredSide:
    """Whether the held-out points lie in the intervals that were frozen before they were run."""
    frozen = data.forecasts
    forecast = next((each for each in frozen.forecasts if each.claim == claim.id), None) if frozen else None
    if frozen is None or forecast is None:
        raise NotShown("nothing was frozen: too few points have a value")
    pairs = [
        (predicted, evaluate_at(point, claim.y).value)
        for predicted in forecast.predictions
        for point in data.points(predicted.sweep)
        if point.values == predicted.values
    ]
    if not pairs:
        raise NotShown("no held-out point has a result")
    n_inside = sum(each.low <= value <= each.high for each, value in pairs)
    ratios = sorted(value / each.value for each, value in pairs)
    law = forecast.law
    text = (
        f"{n_inside} of {len(pairs)} inside; measured / predicted {number(ratios[0])} to {number(ratios[-1])}; "
        f"{number(law.c)}·P^{law.p:.3f} ({law.p_low:.3f} to {law.p_high:.3f}), frozen {frozen.frozen}"
    )
    widest = max(each.high / each.value for each, _ in pairs)
    if n_inside == len(pairs) and widest > WIDEST_FORECAST:
        raise NotShown(f"{text}; the interval is a factor of {number(widest)} wide to each side: too wide to tell")
    if n_inside == len(pairs):
        return MeasuredSide(text, Verdict.AGREES)
    is_mostly_inside = n_inside > len(pairs) / 2
    return MeasuredSide(text, Verdict.IN_DIRECTION if is_mostly_inside else Verdict.DOES_NOT)


def table_rows(claim: TableClaim, data: Reproduction) -> list[TableRow]:
    """Every published number with the value measured at its point, if that point was run."""
    sweep = next(each for each in data.recipe.sweeps if each.id == claim.sweep)
    listed = [fields for fields in sweep.published_points() if _is_listed(fields, claim.only)]
    if len(listed) != len(claim.published):
        raise NotShown(f"the authors' grid has {len(listed)} points, the table {len(claim.published)} numbers")
    measured = {_fields(point): point for point in data.points(claim.sweep)}
    return [
        _table_row(claim, fields, published, measured.get(frozenset(fields.items())))
        for fields, published in zip(listed, claim.published, strict=True)
    ]


def _table_row(claim: TableClaim, fields: Mapping[str, str], published: float, point: PointRecord | None) -> TableRow:
    return TableRow(fields, published, claim.within, point, None if point is None else evaluate_at(point, claim.y))


def _fields(point: PointRecord) -> frozenset[tuple[str, str]]:
    return frozenset(pair for names, word in point.values.items() for pair in values_apart(names, word))


def _is_listed(fields: Mapping[str, str], only: PointFilter) -> bool:
    """Whether a point of a grid, its values as the command line spells them, passes a filter."""
    return all(
        fields.get(name) in [spelled(each) for each in (wanted if isinstance(wanted, list) else [wanted])]
        for name, wanted in only.items()
    )


def _trend_line(data: Reproduction, claim: TrendClaim) -> list[tuple[float, MeasuredValue]]:
    """y at each value of x, in the order of x; points with the same x are averaged."""
    if claim.across:
        columns = zip(claim.across, expand_braces(claim.y, claim.across), strict=True)
        return [(float(x), _mean_over(data, claim.sweep, claim.only, y)) for x, y in columns]
    by_x: dict[float, list[MeasuredValue]] = {}
    for point in _select(data, claim.sweep, claim.only):
        by_x.setdefault(evaluate_at(point, claim.x).value, []).append(evaluate_at(point, claim.y))
    return [(x, mean(values)) for x, values in sorted(by_x.items())]


def _mean_over(data: Reproduction, sweep: str, only: PointFilter, y: str) -> MeasuredValue:
    return mean([evaluate_at(point, y) for point in _select(data, sweep, only)])


def _select(data: Reproduction, sweep: str, only: PointFilter) -> list[PointRecord]:
    points = select_points(data.points(sweep), only)
    if not points:
        raise NotShown("no point of this size is among those that the claim is about")
    return points
