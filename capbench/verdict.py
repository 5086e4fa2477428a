"""Verdicts: a claim of a recipe held against what was measured. Pure: the data of a reproduction in, words out.

agrees               what was measured lies within the tolerance that the claim states, or its interval holds what was
                     published
agrees in direction  the point estimates go the published way, but not as far, or not beyond what seeds vary
does not             they do not
not shown here       there is nothing to tell by: no points, or an interval too wide
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import singledispatch
from statistics import median

from scipy.stats import spearmanr

from capbench.errors import UserError
from capbench.measured import Measured, NothingToTell, difference, mean, measured, selected
from capbench.paper_claim import (
    Claim,
    FitClaim,
    LargerClaim,
    Only,
    RatioClaim,
    Span,
    TableClaim,
    TrendClaim,
    ValueClaim,
)
from capbench.quantity import filled
from capbench.recipe import RecipeSweep
from capbench.recipe_fit import fitted
from capbench.report.text import number
from capbench.reproduction import PointRecord, Reproduction

SAME_ORDER = 0.9
"""Points rise and fall as published where the rank correlation is above this."""
NEAR = 1.25
"""A value agrees in direction where it is within this factor of what was published."""
TOO_WIDE = 0.5
"""An interval that reaches further than this share of the published value to a side tells nothing."""


FEW = 8


class Outcome(StrEnum):
    """What a claim comes to here."""

    AGREES = "agrees"
    IN_DIRECTION = "agrees in direction"
    DOES_NOT = "does not"
    NOT_SHOWN = "not shown here"


@dataclass(frozen=True)
class Row:
    """A published number next to ours."""

    point: PointRecord
    published: float
    ours: Measured

    @property
    def at(self) -> str:
        """The place of the grid."""
        return ", ".join(f"{name.split('.')[-1]} = {word}" for name, word in self.point.values.items())


@dataclass(frozen=True)
class Verdict:
    """A claim, both sides in words, and what it comes to."""

    claim: Claim
    published: str
    ours: str
    outcome: Outcome
    rows: tuple[Row, ...] = ()


@dataclass(frozen=True)
class Finding:
    """Our side of a claim."""

    ours: str
    outcome: Outcome
    rows: tuple[Row, ...] = ()


def verdicts(reproduction: Reproduction) -> list[Verdict]:
    """A verdict for every claim of the recipe, in its order."""
    return [_verdict(claim, reproduction) for claim in reproduction.recipe.claims]


def _verdict(claim: Claim, data: Reproduction) -> Verdict:
    try:
        if claim.not_shown:
            raise NothingToTell(claim.not_shown)
        finding = judged(claim, data)
    except (NothingToTell, UserError) as reason:
        finding = Finding(str(reason), Outcome.NOT_SHOWN)
    return Verdict(claim, published_words(claim), finding.ours, finding.outcome, finding.rows)


@singledispatch
def judged(claim: Claim, data: Reproduction) -> Finding:
    """What a claim of each kind comes to."""
    raise NotImplementedError(f"claims of the kind {type(claim).__name__}")


@judged.register
def _table(claim: TableClaim, data: Reproduction) -> Finding:
    rows = table_rows(claim, data)
    if not rows:
        raise NothingToTell(f"at this size the grid has none of the {len(claim.published)} published points")
    worst = max(rows, key=lambda row: abs(row.ours.value - row.published))
    gap = abs(worst.ours.value - worst.published)
    counted = "" if len(rows) == len(claim.published) else f" ({len(rows)} of {len(claim.published)} points)"
    words = f"largest difference {gap:.3f}: {number(worst.ours.value)} at {worst.at}{counted}"
    if gap <= claim.within:
        return Finding(words, Outcome.AGREES, tuple(rows))
    goes_alike = _order([row.published for row in rows], [row.ours.value for row in rows]) > SAME_ORDER
    return Finding(words, Outcome.IN_DIRECTION if goes_alike else Outcome.DOES_NOT, tuple(rows))


@judged.register
def _value(claim: ValueClaim, data: Reproduction) -> Finding:
    found = _mean_of(data, claim.sweep, claim.only, claim.y)
    return _met(found, claim.published, claim.within)


@judged.register
def _trend(claim: TrendClaim, data: Reproduction) -> Finding:
    line = trend_line(data, claim)
    if len(line) < (3 if "inside" in claim.expected else 2):
        raise NothingToTell(f"{len(line)} values of {claim.x} show no trend")
    (start, first), (stop, last) = line[0], line[-1]
    words = f"{shown(first)} at {short(claim.x)} = {number(start)}, {shown(last)} at {number(stop)}"
    values = [value for _, value in line]
    if claim.expected == "flat":
        assert claim.within is not None
        return Finding(words, _flat(values, claim.within))
    if "inside" in claim.expected:
        return _turns(line, claim, sign=1 if claim.expected == "peaks inside" else -1)
    return Finding(words, _goes(values if claim.expected == "rises" else values[::-1]))


@judged.register
def _larger(claim: LargerClaim, data: Reproduction) -> Finding:
    sweep, only, y = claim.other()
    one, other = _mean_of(data, claim.sweep, claim.only, claim.y), _mean_of(data, sweep, only, y)
    gap = difference(one, other.times(claim.factor))
    words = f"{shown(one)} against {shown(other)}; difference {shown(gap)}"
    if claim.factor != 1:
        words = f"{shown(one)} against {number(claim.factor)} × {shown(other)}; difference {shown(gap)}"
    return Finding(words, _above_zero(gap))


@judged.register
def _fit(claim: FitClaim, data: Reproduction) -> Finding:
    report, fit = fitted(data, claim)
    best = report.fits[0]
    words = f"R² {fit.r_squared:.4f}, held-out error {fit.held_out_error:.1%} over {len(report.points)} points"
    if best.form != fit.form:
        words += f" ({best.form}: {best.held_out_error:.1%})"
    if claim.parameter == "r_squared":
        found = Measured(fit.r_squared, fit.r_squared, fit.r_squared)
    else:
        estimate = next((p for p in fit.parameters if p.name == claim.parameter), None)
        if estimate is None:
            names = ", ".join([*(p.name for p in fit.parameters), "r_squared"])
            raise NothingToTell(f"{fit.form} has no parameter {claim.parameter!r}; it has {names}")
        found = Measured(estimate.value, estimate.ci_low, estimate.ci_high)
    finding = _met(found, claim.published, claim.within)
    return Finding(f"{claim.parameter} = {finding.ours}; {words}", finding.outcome)


@judged.register
def _ratio(claim: RatioClaim, data: Reproduction) -> Finding:
    points = _selected(data, claim.sweep, claim.only)
    ratios = [measured(point, f"({claim.y}) / bound.{claim.bound}") for point in points]
    least, most = min(ratios, key=lambda r: r.value), max(ratios, key=lambda r: r.value)
    words = shown(least) if len(ratios) == 1 else f"{shown(least)} to {shown(most)} over {len(ratios)} points"
    if claim.least is not None:
        if all(ratio.floor >= claim.least for ratio in ratios):
            return Finding(words, Outcome.AGREES)
        return Finding(words, Outcome.IN_DIRECTION if least.value >= claim.least else Outcome.DOES_NOT)
    assert claim.published is not None
    low, high = claim.published
    if low <= least.value and most.value <= high:
        return Finding(words, Outcome.AGREES)
    is_mostly_inside = low <= median(ratio.value for ratio in ratios) <= high
    return Finding(words, Outcome.IN_DIRECTION if is_mostly_inside else Outcome.DOES_NOT)


def published_words(claim: Claim) -> str:
    """The published side of a claim as a reader meets it."""
    match claim:
        case TableClaim():
            return f"{_listed(claim.published)} (± {claim.within:g})"
        case ValueClaim() | FitClaim():
            return _span_words(claim.published, claim.within)
        case TrendClaim():
            return f"{short(claim.y)} {claim.expected} {'in' if claim.expected == 'flat' else 'with'} {short(claim.x)}"
        case LargerClaim():
            return "larger" if claim.factor == 1 else f"more than {number(claim.factor)} times as large"
        case RatioClaim():
            return f"at least {number(claim.least)}" if claim.published is None else _span_words(claim.published, 0)
    raise NotImplementedError(type(claim).__name__)


def short(words: str) -> str:
    """A quantity as a reader meets it: the name without where it stands."""
    if words == "at":
        return "load"
    return words.split(".")[-1] if re.fullmatch(r"[\w.]+", words) else words


def shown(found: Measured) -> str:
    """A value with its interval."""
    if found.low is None and found.high is None:
        return number(found.value)
    if found.low == found.high:
        return number(found.value)
    return f"{number(found.value)} ({number(found.low)} to {number(found.high)})"


def table_rows(claim: TableClaim, data: Reproduction) -> list[Row]:
    """Published and measured side by side, at the points of the declared grid that were run."""
    sweep = next(each for each in data.recipe.sweeps if each.id == claim.sweep)
    places = _declared_places(sweep)
    if len(places) != len(claim.published):
        raise NothingToTell(f"the sweep has {len(places)} points, the table {len(claim.published)} numbers")
    by_place = {tuple(point.values.values()): point for point in data.points(claim.sweep)}
    return [
        Row(by_place[place], published, measured(by_place[place], claim.y))
        for place, published in zip(places, claim.published, strict=True)
        if place in by_place and selected([by_place[place]], claim.only)
    ]


def trend_line(data: Reproduction, claim: TrendClaim) -> list[tuple[float, Measured]]:
    """y at each value of x, in the order of x; points with the same x count by their mean."""
    if claim.across:
        columns = zip(claim.across, filled(claim.y, claim.across), strict=True)
        return [(float(x), _mean_of(data, claim.sweep, claim.only, words)) for x, words in columns]
    at: dict[float, list[Measured]] = {}
    for point in _selected(data, claim.sweep, claim.only):
        at.setdefault(measured(point, claim.x).value, []).append(measured(point, claim.y))
    return [(x, mean(values)) for x, values in sorted(at.items())]


def _met(found: Measured, published: Span, within: float) -> Finding:
    """Whether what was measured meets what was published: the estimate by the tolerance, or the interval without."""
    low, high = published if isinstance(published, tuple) else (published, published)
    words, scale = shown(found), max(abs(low), abs(high))
    if low - within <= found.value <= high + within:
        return Finding(words, Outcome.AGREES)
    touches = found.floor <= high + within and found.ceiling >= low - within
    if touches and max(found.ceiling - found.value, found.value - found.floor) > TOO_WIDE * scale:
        raise NothingToTell(f"{words}: too wide an interval to tell")
    if found.floor <= high and found.ceiling >= low:
        return Finding(words, Outcome.AGREES)
    is_near = low / NEAR <= found.value <= high * NEAR
    return Finding(words, Outcome.IN_DIRECTION if touches or is_near else Outcome.DOES_NOT)


def _goes(values: Sequence[Measured]) -> Outcome:
    """Whether values rise: the last beyond the first, and no step on the way falls."""
    rise = difference(values[-1], values[0])
    falls = any(difference(b, a).ceiling < 0 for a, b in itertools.pairwise(values))
    if rise.floor > 0 and not falls:
        return Outcome.AGREES
    order = _order(range(len(values)), [value.value for value in values])
    return Outcome.IN_DIRECTION if rise.value > 0 and order > SAME_ORDER else Outcome.DOES_NOT


def _turns(line: Sequence[tuple[float, Measured]], claim: TrendClaim, sign: int) -> Finding:
    """Whether the extreme lies inside and beyond both ends."""
    at, top = max(line, key=lambda pair: sign * pair[1].value)
    ends = [line[0][1], line[-1][1]]
    words = f"{shown(top)} at {short(claim.x)} = {number(at)}; {shown(ends[0])} and {shown(ends[1])} at the ends"
    if any(top is end for end in ends):
        return Finding(words, Outcome.DOES_NOT)
    gaps = [difference(top, end) if sign > 0 else difference(end, top) for end in ends]
    return Finding(words, min((_above_zero(gap) for gap in gaps), key=list(Outcome)[::-1].index))


def _flat(values: Sequence[Measured], within: float) -> Outcome:
    """Whether no value lies further from the first than what counts as nothing."""
    gaps = [difference(value, values[0]) for value in values[1:]]
    if all(-within <= gap.floor and gap.ceiling <= within for gap in gaps):
        return Outcome.AGREES
    return Outcome.IN_DIRECTION if all(abs(gap.value) <= within for gap in gaps) else Outcome.DOES_NOT


def _above_zero(gap: Measured) -> Outcome:
    if gap.floor > 0:
        return Outcome.AGREES
    return Outcome.IN_DIRECTION if gap.value > 0 else Outcome.DOES_NOT


def _order(one: Sequence[float], other: Sequence[float]) -> float:
    """Rank correlation; 0 where one of the sides does not vary."""
    if len(set(one)) < 2 or len(set(other)) < 2:
        return 0.0
    return float(spearmanr(one, other).statistic)


def _mean_of(data: Reproduction, sweep: str, only: Only, y: str) -> Measured:
    return mean([measured(point, y) for point in _selected(data, sweep, only)])


def _selected(data: Reproduction, sweep: str, only: Only) -> list[PointRecord]:
    points = selected(data.points(sweep), only)
    if not points:
        raise NothingToTell("no point of this size is among those that the claim speaks of")
    return points


def _declared_places(sweep: RecipeSweep) -> list[tuple[str, ...]]:
    """The places of the grid as it is declared, as words."""
    return list(itertools.product(*sweep.words().values()))


def _listed(values: Sequence[float]) -> str:
    """A few numbers one by one, many by their range."""
    if len(values) <= FEW:
        return ", ".join(number(value) for value in values)
    return f"{len(values)} numbers from {number(min(values))} to {number(max(values))}"


def _span_words(published: Span, within: float) -> str:
    words = f"{number(published[0])} to {number(published[1])}" if isinstance(published, tuple) else number(published)
    return f"{words} (± {within:g})" if within else words
