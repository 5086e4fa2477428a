"""Whether measured values agree with what was published.

agrees               the measured value is within the tolerance of the claim, or its interval contains the published
                     value
agrees in direction  the estimates follow the published trend, but not as far, or not beyond the variation between seeds
does not             they do not
not shown here       the data cannot decide: there are no points, or the interval is too wide
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
NEAR_FACTOR = 1.25
"""A value agrees in direction if it is within this factor of the published one."""
MAX_HALF_WIDTH = 0.5
"""An interval that extends further than this share of the published value to one side decides nothing."""


class Verdict(StrEnum):
    """The verdict on a claim."""

    AGREES = "agrees"
    IN_DIRECTION = "agrees in direction"
    DOES_NOT = "does not"
    NOT_SHOWN = "not shown here"


def judge_value(found: MeasuredValue, published: Span, within: float) -> Verdict:
    """Whether the estimate is within the tolerance of the published value, or the interval contains that value."""
    low, high = published if isinstance(published, tuple) else (published, published)
    if low - within <= found.value <= high + within:
        return Verdict.AGREES
    is_touching = found.floor <= high + within and found.ceiling >= low - within
    half_width = max(found.ceiling - found.value, found.value - found.floor)
    if is_touching and half_width > MAX_HALF_WIDTH * max(abs(low), abs(high)):
        raise NotShown(f"{value_text(found)}: too wide an interval to tell")
    if found.floor <= high and found.ceiling >= low:
        return Verdict.AGREES
    is_near = low / NEAR_FACTOR <= found.value <= high * NEAR_FACTOR
    return Verdict.IN_DIRECTION if is_touching or is_near else Verdict.DOES_NOT


def judge_positive(gap: MeasuredValue) -> Verdict:
    """Whether a difference is above zero."""
    if gap.floor > 0:
        return Verdict.AGREES
    return Verdict.IN_DIRECTION if gap.value > 0 else Verdict.DOES_NOT


def judge_rising(values: Sequence[MeasuredValue]) -> Verdict:
    """Whether the last value is above the first, and no value is below the one before it."""
    rise = difference(values[-1], values[0])
    has_fall = any(difference(b, a).ceiling < 0 for a, b in itertools.pairwise(values))
    if rise.floor > 0 and not has_fall:
        return Verdict.AGREES
    is_rising = rise.value > 0 and are_ordered_alike(range(len(values)), [value.value for value in values])
    return Verdict.IN_DIRECTION if is_rising else Verdict.DOES_NOT


def judge_flat(values: Sequence[MeasuredValue], within: float) -> Verdict:
    """Whether every value is within the tolerance of the first."""
    gaps = [difference(value, values[0]) for value in values[1:]]
    if all(-within <= gap.floor and gap.ceiling <= within for gap in gaps):
        return Verdict.AGREES
    return Verdict.IN_DIRECTION if all(abs(gap.value) <= within for gap in gaps) else Verdict.DOES_NOT


def are_ordered_alike(one: Sequence[float], other: Sequence[float]) -> bool:
    """Whether two series rise and fall together, by their rank correlation."""
    if len(set(one)) < 2 or len(set(other)) < 2:
        return False
    return float(spearmanr(one, other).statistic) > MIN_RANK_CORRELATION
