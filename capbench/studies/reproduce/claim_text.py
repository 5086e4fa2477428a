"""The text of a claim's published side, of quantities, and of measured values."""

from __future__ import annotations

import re
from collections.abc import Sequence

from capbench.documents.text import number
from capbench.studies.reproduce.claims import (
    Claim,
    FitClaim,
    ForecastClaim,
    LargerClaim,
    RatioClaim,
    Span,
    TableClaim,
    TrendClaim,
    ValueClaim,
)
from capbench.studies.reproduce.values import MeasuredValue

MAX_LISTED = 8
"""Published numbers that are listed; of more, only the range is given."""


def published_text(claim: Claim) -> str:
    """The published side of a claim."""
    match claim:
        case TableClaim():
            return f"{_numbers_text(claim.published)} (± {claim.within:g})"
        case ValueClaim() | FitClaim():
            return _span_text(claim.published, claim.within)
        case TrendClaim():
            preposition = "in" if claim.expected == "flat" else "with"
            return f"{short_name(claim.y)} {claim.expected} {preposition} {short_name(claim.x)}"
        case LargerClaim():
            return "larger" if claim.factor == 1 else f"more than {number(claim.factor)} times as large"
        case ForecastClaim():
            return "every held-out value lies in its 95 % prediction interval"
        case RatioClaim():
            return f"at least {number(claim.least)}" if claim.published is None else _span_text(claim.published, 0)
    raise NotImplementedError(type(claim).__name__)


def short_name(expression: str) -> str:
    """A quantity without its section: n_heads instead of arch.n_heads."""
    if expression == "at":
        return "load"
    return expression.split(".")[-1] if re.fullmatch(r"[\w.]+", expression) else expression


def value_text(found: MeasuredValue) -> str:
    """A value with its interval, if it has one."""
    if found.low == found.high:  # also where both ends are open
        return number(found.value)
    return f"{number(found.value)} ({number(found.low)} to {number(found.high)})"


def _numbers_text(values: Sequence[float]) -> str:
    if len(values) <= MAX_LISTED:
        return ", ".join(number(value) for value in values)
    return f"{len(values)} numbers from {number(min(values))} to {number(max(values))}"


def _span_text(published: Span, within: float) -> str:
    text = f"{number(published[0])} to {number(published[1])}" if isinstance(published, tuple) else number(published)
    return f"{text} (± {within:g})" if within else text
