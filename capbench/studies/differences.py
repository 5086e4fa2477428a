"""How much more one architecture of a sweep holds than the first one, at every other point of the grid."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from capbench.documents.result import Capacity, RatioStatus, Result, Trial, TrialStatus
from capbench.studies.sweep import ARCH, Point

Z95 = 1.959964
"""Normal quantile of a 95 % interval."""


@dataclass(frozen=True)
class Difference:
    """An architecture beside the first one at the same point of the rest of the grid."""

    values: tuple[tuple[str, str], ...]
    """The rest of the grid."""
    architecture: str
    baseline: str
    value: float
    """Ratio of the two capacities; under --at, the difference of the two shares of trials that hold."""
    ci_low: float | None
    ci_high: float | None
    is_share: bool
    status: RatioStatus = "estimated"
    """Whether the value is what is estimated, or a limit because one of the capacities is one."""

    @property
    def is_clear(self) -> bool:
        """Whether the interval excludes that they are equal."""
        equal = 0.0 if self.is_share else 1.0
        return (self.ci_low is not None and self.ci_low > equal) or (self.ci_high is not None and self.ci_high < equal)


def differences(points: Sequence[Point]) -> list[Difference]:
    """Every architecture against the first one, wherever both have a result."""
    by_rest: dict[tuple[tuple[str, str], ...], list[Point]] = {}
    for point in points:
        rest = tuple(each for each in point.values if each[0] != ARCH)
        by_rest.setdefault(rest, []).append(point)
    return [each for rest, group in by_rest.items() for each in _of_group(rest, group)]


def _of_group(rest: tuple[tuple[str, str], ...], group: Sequence[Point]) -> Iterator[Difference]:
    """The architectures of one point of the rest of the grid against the first one."""
    first, *others = group
    for other in others:
        if first.result is not None and other.result is not None:
            yield _difference(rest, other.result, first.result)


def _difference(rest: tuple[tuple[str, str], ...], mine: Result, base: Result) -> Difference:
    is_share = mine.capacity.kind == "success_rate"
    value, low, high = _paired_shares(mine, base) if is_share else _ratio(mine.capacity, base.capacity)
    status = mine.capacity.ratio_status(base.capacity)
    return Difference(rest, mine.architecture.name, base.architecture.name, value, low, high, is_share, status)


def _ratio(mine: Capacity, base: Capacity) -> tuple[float, float | None, float | None]:
    """The ratio of two capacities; its interval adds those of the two logarithms as independent ones.

    Both see the same problems at a load, which makes their errors alike if anything: the interval is not too narrow.
    """
    value, status = mine.estimate / base.estimate if base.estimate else math.inf, mine.ratio_status(base)
    down, up = _half_width(mine.ci_low, mine, base.ci_high, base), _half_width(mine.ci_high, mine, base.ci_low, base)
    low = None if down is None or status in ("at_most", "unknown") else value / down
    high = None if up is None or status in ("at_least", "unknown") else value * up
    return value, low, high


def _half_width(mine_end: float | None, mine: Capacity, base_end: float | None, base: Capacity) -> float | None:
    """The factor by which the ratio may lie beyond its value on one side; None where one of the ends is open."""
    if not mine_end or not base_end or min(mine_end, base_end, mine.estimate, base.estimate) <= 0:
        return None
    return math.exp(math.hypot(math.log(mine_end / mine.estimate), math.log(base_end / base.estimate)))


def _paired_shares(mine: Result, base: Result) -> tuple[float, float, float]:
    """The difference of two shares of trials that hold, seed by seed, with an interval of the paired differences."""
    own, others = _held_by_seed(mine), _held_by_seed(base)
    paired = [own[seed] - others[seed] for seed in sorted(own.keys() & others.keys())]
    n = len(paired)
    value = sum(paired) / n
    # Agresti and Min: half a count of each kind keeps the interval from vanishing where all seeds agree.
    ups, downs = sum(each > 0 for each in paired) + 0.5, sum(each < 0 for each in paired) + 0.5
    centre = (ups - downs) / (n + 2)
    spread = math.sqrt((ups + downs) / (n + 2) - centre**2) / math.sqrt(n + 2)
    return value, max(-1.0, centre - Z95 * spread), min(1.0, centre + Z95 * spread)


def _held_by_seed(result: Result) -> dict[int, bool]:
    """Whether the trial of each seed holds, at the best rate."""
    rate = result.rates.best if result.rates else None

    def counts(trial: Trial) -> bool:
        return trial.learning_rate == rate and trial.status is not TrialStatus.FAILED

    return {trial.seed: trial.status is TrialStatus.HELD for trial in result.trials if counts(trial)}
