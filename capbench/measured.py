"""Measured values: a quantity of a point, or of several, with its interval; and differences of two.

Where a load was given, the interval is Student's over seeds of the quantity at the best learning rate;
a capacity brings its own. Values of the same seeds are paired.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from pydantic import JsonValue

from capbench.errors import BadSetting
from capbench.paper_claim import Only
from capbench.quantity import Lookup, evaluate, names_in
from capbench.reproduction import PointRecord
from capbench.results import Capacity
from capbench.summary import student

CONFIDENCE = 0.95
SEARCHED = ("capacity", "d_qk_total")
"""What a search finds, with an interval of its own."""


class NothingToTell(Exception):
    """There is nothing to judge a claim by."""


@dataclass(frozen=True)
class Measured:
    """A value with its interval; an end that is not known is None."""

    value: float
    low: float | None
    high: float | None
    by_seed: Mapping[int, float] = field(default_factory=dict)

    @classmethod
    def over_seeds(cls, by_seed: Mapping[int, float]) -> Measured:
        """The mean over seeds, with Student's interval."""
        values = list(by_seed.values())
        return cls(fmean(values), *student(values, CONFIDENCE), by_seed)

    @property
    def floor(self) -> float:
        """The lower end, open where it is not known."""
        return -math.inf if self.low is None else self.low

    @property
    def ceiling(self) -> float:
        """The upper end, open where it is not known."""
        return math.inf if self.high is None else self.high

    def times(self, factor: float) -> Measured:
        """The value and its interval multiplied by a positive number."""
        low, high = (None if end is None else factor * end for end in (self.low, self.high))
        return Measured(factor * self.value, low, high, {seed: factor * each for seed, each in self.by_seed.items()})


def selected(points: Sequence[PointRecord], only: Only) -> list[PointRecord]:
    """The points that have the wanted values."""
    return [point for point in points if all(_has(point, name, wanted) for name, wanted in only.items())]


def setting(point: PointRecord, name: str) -> JsonValue:
    """The value of a field at a point, or of a number that is not a field."""
    found = point.settings.get(name, point.numbers.get(name))
    if found is None:
        raise BadSetting(f"no field {name!r}; known: {', '.join(sorted(point.settings))}")
    return int(found) if isinstance(found, float) and found.is_integer() else found


def measured(point: PointRecord, words: str) -> Measured:
    """A quantity of a point: by seeds, from the search's interval, or exact."""
    if words in point.alike:
        return Measured(evaluate(words, _lookup(point, {})), *point.alike[words])
    names = names_in(words)
    seeds = [each for each in point.seeds if any(name in each.numbers for name in names)]
    if seeds:
        return Measured.over_seeds({each.seed: evaluate(words, _lookup(point, each.numbers)) for each in seeds})
    value = evaluate(words, _lookup(point, {}))
    if point.capacity is None or not names & set(SEARCHED):
        return Measured(value, value, value)
    ends = [evaluate(words, _lookup(point, end)) if end else None for end in _ends(point.capacity)]
    known = [end for end in ends if end is not None]
    low = min((end for end in known if end <= value), default=None)
    high = max((end for end in known if end >= value), default=None)
    return Measured(value, low, high)


def mean(values: Sequence[Measured]) -> Measured:
    """The mean of several values: seed by seed where they share seeds, else with their errors added in squares."""
    if len(values) == 1:
        return values[0]
    shared = _shared(values)
    if shared:
        return Measured.over_seeds({seed: fmean(each.by_seed[seed] for each in values) for seed in shared})
    middle, n = fmean(each.value for each in values), len(values)
    below = math.sqrt(sum((each.value - each.floor) ** 2 for each in values)) / n
    above = math.sqrt(sum((each.ceiling - each.value) ** 2 for each in values)) / n
    return _between(middle, middle - below, middle + above)


def difference(one: Measured, other: Measured) -> Measured:
    """One minus the other: seed by seed where they share seeds, else with their errors added in squares."""
    shared = _shared([one, other])
    if shared:
        return Measured.over_seeds({seed: one.by_seed[seed] - other.by_seed[seed] for seed in shared})
    value = one.value - other.value
    below = math.hypot(one.value - one.floor, other.ceiling - other.value)
    above = math.hypot(one.ceiling - one.value, other.value - other.floor)
    return _between(value, value - below, value + above)


def _between(value: float, low: float, high: float) -> Measured:
    return Measured(value, low if math.isfinite(low) else None, high if math.isfinite(high) else None)


def _shared(values: Sequence[Measured]) -> list[int]:
    """The seeds that all values have; they can be paired only if there are two."""
    seeds = sorted(set.intersection(*(set(each.by_seed) for each in values)))
    return seeds if len(seeds) > 1 else []


def _ends(capacity: Capacity) -> list[dict[str, float]]:
    """The numbers of a search at the two ends of its interval; nothing where an end is open."""
    totals: tuple[float | None, float | None] = (capacity.d_qk_total_low, capacity.d_qk_total_high)
    if capacity.kind != "least_budget":
        totals = (capacity.d_qk_total, capacity.d_qk_total)
    return [
        {} if end is None else {"capacity": end, **({} if total is None else {"d_qk_total": total})}
        for end, total in zip((capacity.ci_low, capacity.ci_high), totals, strict=True)
    ]


def _lookup(point: PointRecord, own: Mapping[str, float]) -> Lookup:
    """The numbers of a point, with some of its own on top."""

    def named(name: str) -> float:
        found = own.get(name, point.numbers.get(name, point.settings.get(name)))
        if isinstance(found, bool) or not isinstance(found, int | float):
            raise BadSetting(f"run {point.run_id} has no number {name!r}")
        return float(found)

    return named


def _has(point: PointRecord, name: str, wanted: JsonValue) -> bool:
    found = setting(point, name)
    return found in wanted if isinstance(wanted, list) else found == wanted
