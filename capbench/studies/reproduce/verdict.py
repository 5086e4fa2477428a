"""Whether measured values agree with what was published.

agrees               the measured value is within the tolerance of the claim, or its interval contains the published
                     number
agrees in direction  a trend, a table or a factor only: the published direction is shown beyond the variation between
                     seeds, but not the published size
no difference shown  the interval contains both the claim and its opposite
does not             the opposite is shown
not shown here       the data cannot decide: there are no points, they are at the ceiling, or there is no interval

A single number has no direction: it agrees, does not, or is not told apart from what was published.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from enum import StrEnum

from scipy.stats import spearmanr

from capbench.studies.reproduce.claim_text import value_text
from capbench.studies.reproduce.claims import Span
from capbench.studies.reproduce.values import MeasuredValue, NotShown, difference

MIN_RANK_CORRELATION = 0.9
"""Values follow the published trend if their rank correlation is above this."""
MAX_HALF_WIDTH = 0.5
"""An interval that extends further than this share of the published value to one side decides nothing."""


class Verdict(StrEnum):
    """The verdict on a claim."""

    AGREES = "agrees"
    IN_DIRECTION = "agrees in direction"
    NO_DIFFERENCE = "no difference shown"
    DOES_NOT = "does not"
    NOT_SHOWN = "not shown here"


def judge_value(found: MeasuredValue, published: Span, within: float) -> Verdict:
    """Whether the estimate is within the tolerance of what was published, or the interval contains that number."""
    low, high = published if isinstance(published, tuple) else (published, published)
    least, most = low - within, high + within
    if least <= found.floor and found.ceiling <= most:
        return Verdict.AGREES
    if found.ceiling < least or found.floor > most:
        return Verdict.DOES_NOT
    half_width = max(found.ceiling - found.value, found.value - found.floor)
    if half_width > MAX_HALF_WIDTH * max(abs(low), abs(high)):
        raise NotShown(f"{value_text(found)}: too wide an interval to tell")
    is_number = low == high
    if least <= found.value <= most or (is_number and found.floor <= low <= found.ceiling):
        return Verdict.AGREES
    return Verdict.NO_DIFFERENCE


def judge_range(values: Sequence[MeasuredValue], low: float, high: float) -> Verdict:
    """Whether every value is in a range; it does not agree where an interval lies outside."""
    if all(low <= value.value <= high for value in values):
        return Verdict.AGREES
    is_outside = any(value.ceiling < low or value.floor > high for value in values)
    return Verdict.DOES_NOT if is_outside else Verdict.NO_DIFFERENCE


def judge_positive(gap: MeasuredValue) -> Verdict:
    """Whether a difference is shown to be above zero, or below it."""
    if gap.floor > 0:
        return Verdict.AGREES
    return Verdict.DOES_NOT if gap.ceiling < 0 else Verdict.NO_DIFFERENCE


def judge_larger(one: MeasuredValue, other: MeasuredValue, factor: float) -> Verdict:
    """Whether one value is more than a factor times another; in direction where it is larger, but not by as much."""
    found = judge_positive(difference(one, other.times(factor)))
    if found is Verdict.AGREES or factor <= 1:
        return found
    return Verdict.IN_DIRECTION if judge_positive(difference(one, other)) is Verdict.AGREES else found


def judge_rising(values: Sequence[MeasuredValue]) -> Verdict:
    """Whether the last value is above the first, and no value is below the one before it."""
    rises = judge_positive(difference(values[-1], values[0]))
    has_fall = any(difference(b, a).ceiling < 0 for a, b in itertools.pairwise(values))
    if rises is not Verdict.AGREES or not has_fall:
        return rises
    is_alike = are_ordered_alike(range(len(values)), [value.value for value in values])
    return Verdict.IN_DIRECTION if is_alike else Verdict.DOES_NOT


def judge_flat(values: Sequence[MeasuredValue], within: float) -> Verdict:
    """Whether every value is shown to be within the tolerance of the first."""
    gaps = [difference(value, values[0]) for value in values[1:]]
    if all(-within <= gap.floor and gap.ceiling <= within for gap in gaps):
        return Verdict.AGREES
    if any(gap.floor > within or gap.ceiling < -within for gap in gaps):
        return Verdict.DOES_NOT
    return Verdict.NO_DIFFERENCE


def judge_inside(line: Sequence[MeasuredValue], sign: int) -> Verdict:
    """Whether some value inside the line is shown to be beyond both ends."""
    extreme = max(line[1:-1], key=lambda value: sign * value.value)
    found = [
        judge_positive(difference(extreme, end) if sign > 0 else difference(end, extreme))
        for end in (line[0], line[-1])
    ]
    return max(found, key=list(Verdict).index)


def are_ordered_alike(one: Sequence[float], other: Sequence[float]) -> bool:
    """Whether two series rise and fall together, by their rank correlation."""
    if len(set(one)) < 2 or len(set(other)) < 2:
        return False
    return float(spearmanr(one, other).statistic) > MIN_RANK_CORRELATION
