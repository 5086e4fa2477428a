"""Measured values with their intervals: expressions at points, their means and differences.

At a given load, the interval is Student's t over seeds at the best learning rate; a capacity has its own
interval. Values with the same seeds are paired.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from pydantic import JsonValue

from capbench.documents.expressions import NameLookup, evaluate, names_in
from capbench.documents.result import Capacity
from capbench.errors import BadSetting
from capbench.measure.estimate.summary import student
from capbench.studies.reproduce.claims import PointFilter
from capbench.studies.reproduce.data import PointRecord

CONFIDENCE = 0.95
SEARCHED = ("capacity", "d_qk_total")
"""Names of quantities that a search finds, with an interval."""


class NotShown(Exception):
    """The data cannot decide a claim; the message is the reason."""


@dataclass(frozen=True)
class MeasuredValue:
    """A value with its interval; an open end is None."""

    value: float
    low: float | None
    high: float | None
    by_seed: Mapping[int, float] = field(default_factory=dict)

    @classmethod
    def over_seeds(cls, by_seed: Mapping[int, float]) -> MeasuredValue:
        """The mean over seeds, with Student's t interval."""
        values = list(by_seed.values())
        return cls(fmean(values), *student(values, CONFIDENCE), by_seed)

    @classmethod
    def exactly(cls, value: float) -> MeasuredValue:
        """A value with an interval of no width."""
        return cls(value, value, value)

    @property
    def floor(self) -> float:
        """The lower end, -inf if it is open."""
        return -math.inf if self.low is None else self.low

    @property
    def ceiling(self) -> float:
        """The upper end, inf if it is open."""
        return math.inf if self.high is None else self.high

    def times(self, factor: float) -> MeasuredValue:
        """The value and its interval multiplied by a positive number."""
        low, high = (None if end is None else factor * end for end in (self.low, self.high))
        return MeasuredValue(
            factor * self.value, low, high, {seed: factor * each for seed, each in self.by_seed.items()}
        )


def select_points(points: Sequence[PointRecord], only: PointFilter) -> list[PointRecord]:
    """The points that pass a filter."""
    return [point for point in points if all(_has_value(point, name, value) for name, value in only.items())]


def setting_at(point: PointRecord, name: str) -> JsonValue:
    """The value of a field at a point, or of another number of that name."""
    found = point.settings.get(name, point.numbers.get(name))
    if found is None:
        raise BadSetting(f"no field {name!r}; known: {', '.join(sorted(point.settings))}")
    return int(found) if isinstance(found, float) and found.is_integer() else found


def evaluate_at(point: PointRecord, expression: str) -> MeasuredValue:
    """The value of an expression at a point; its interval is over seeds, from the search, or of no width."""
    if expression in point.alike:
        return MeasuredValue(evaluate(expression, _lookup(point, {})), *point.alike[expression])
    names = names_in(expression)
    seeds = [each for each in point.seeds if any(name in each.numbers for name in names)]
    if seeds:
        return MeasuredValue.over_seeds(
            {each.seed: evaluate(expression, _lookup(point, each.numbers)) for each in seeds}
        )
    value = evaluate(expression, _lookup(point, {}))
    overrides = _ends_of(point, names)
    if not overrides:
        return MeasuredValue.exactly(value)
    ends = [evaluate(expression, _lookup(point, end)) if end else None for end in overrides]
    known = [end for end in ends if end is not None]
    low = min((end for end in known if end <= value), default=None)
    high = max((end for end in known if end >= value), default=None)
    return MeasuredValue(value, low, high)


def mean(values: Sequence[MeasuredValue]) -> MeasuredValue:
    """The mean of several values: per seed if they share seeds, else with their errors added in quadrature."""
    if len(values) == 1:
        return values[0]
    shared = _shared_seeds(values)
    if shared:
        return MeasuredValue.over_seeds({seed: fmean(each.by_seed[seed] for each in values) for seed in shared})
    middle, n = fmean(each.value for each in values), len(values)
    below = math.sqrt(sum((each.value - each.floor) ** 2 for each in values)) / n
    above = math.sqrt(sum((each.ceiling - each.value) ** 2 for each in values)) / n
    return _with_interval(middle, middle - below, middle + above)


def difference(one: MeasuredValue, other: MeasuredValue) -> MeasuredValue:
    """One minus the other: per seed if they share seeds, else with their errors added in quadrature."""
    shared = _shared_seeds([one, other])
    if shared:
        return MeasuredValue.over_seeds({seed: one.by_seed[seed] - other.by_seed[seed] for seed in shared})
    value = one.value - other.value
    below = math.hypot(one.value - one.floor, other.ceiling - other.value)
    above = math.hypot(one.ceiling - one.value, other.value - other.floor)
    return _with_interval(value, value - below, value + above)


def _with_interval(value: float, low: float, high: float) -> MeasuredValue:
    return MeasuredValue(value, low if math.isfinite(low) else None, high if math.isfinite(high) else None)


def _shared_seeds(values: Sequence[MeasuredValue]) -> list[int]:
    """The seeds that all values have; none if there are fewer than the two that an interval needs."""
    seeds = sorted(set.intersection(*(set(each.by_seed) for each in values)))
    return seeds if len(seeds) > 1 else []


def _ends_of(point: PointRecord, names: set[str]) -> list[dict[str, float]]:
    """The numbers of an expression at both ends of their interval; no list where none of them has one."""
    own = names & set(point.intervals)
    if own:
        lows, highs = ({name: point.intervals[name][end] for name in own} for end in (0, 1))
        return [{name: v for name, v in ends.items() if v is not None} for ends in (lows, highs)]
    return [] if point.capacity is None or not names & set(SEARCHED) else _ends(point.capacity)


def _ends(capacity: Capacity) -> list[dict[str, float]]:
    """The numbers of a search at both ends of its interval; empty for an open end."""
    totals: tuple[float | None, float | None] = (capacity.d_qk_total_low, capacity.d_qk_total_high)
    if capacity.kind != "least_budget":
        totals = (capacity.d_qk_total, capacity.d_qk_total)
    return [
        {} if end is None else {"capacity": end, **({} if total is None else {"d_qk_total": total})}
        for end, total in zip((capacity.ci_low, capacity.ci_high), totals, strict=True)
    ]


def _lookup(point: PointRecord, overrides: Mapping[str, float]) -> NameLookup:
    """Looks names up among the overrides, then among the numbers and settings of a point."""

    def look_up(name: str) -> float:
        found = overrides.get(name, point.numbers.get(name, point.settings.get(name)))
        if isinstance(found, bool) or not isinstance(found, int | float):
            raise BadSetting(f"run {point.run_id} has no number {name!r}")
        return float(found)

    return look_up


def _has_value(point: PointRecord, name: str, wanted: JsonValue) -> bool:
    found = setting_at(point, name)
    return found in wanted if isinstance(wanted, list) else found == wanted
