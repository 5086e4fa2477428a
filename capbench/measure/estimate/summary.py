"""The summary of a run's trials: a pure function of the trials and the protocol."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from scipy.special import stdtrit

from capbench.contract.task import Criterion
from capbench.documents.result import FACTS_HELD, Capacity, Protocol, RateWindow, Trial, TrialStatus
from capbench.measure.estimate.posterior import Observation
from capbench.measure.estimate.threshold import Axis, Threshold, fit_threshold, wilson
from capbench.measure.estimate.threshold_v1 import fit_threshold_v1

FULL_SHARE = 0.98
"""A model that holds more than this share of the load is not overloaded."""


@dataclass(frozen=True)
class Summary:
    """Capacity, learning rates and metrics of a run, derived from its trials."""

    capacity: Capacity
    rates: RateWindow | None
    metrics: dict[str, float]
    data: dict[str, float]
    largest_held: int | None
    """The largest load that any trial held; upper bounds are checked against it."""
    reported_at: int
    """The load, or the value of the minimised parameter, at which the metrics are means."""


def summarise(trials: Sequence[Trial], protocol: Protocol) -> Summary:
    """Capacity with its interval, the learning rates that work, and the metrics at the capacity."""
    rate = leading_rate(trials, protocol)
    at_rate = [t for t in trials if t.learning_rate == rate]
    capacity = _capacity(trials, at_rate, protocol)
    reported = _reported_at(capacity, protocol, [t.at for t in at_rate])
    near = [t for t in at_rate if t.at == reported]
    metrics, data = _means([t.metrics for t in near]), _means([t.data for t in near])
    held = [t.load for t in trials if t.status is TrialStatus.HELD]
    return Summary(capacity, rate_window(trials, rate, protocol), metrics, data, max(held, default=None), reported)


def _means(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Mean of each named number over the trials that have it."""
    names = sorted({name for row in rows for name in row})
    return {name: fmean(row[name] for row in rows if name in row) for name in names}


def leading_rate(trials: Sequence[Trial], protocol: Protocol) -> float | None:
    """The learning rate whose trials hold most often; among equals, the nearest to the criterion, then the fastest.

    Only rates that the search has not dropped are compared: they have the same trials.
    """
    in_use = rates_in_use(trials)
    return max(in_use, key=lambda r: (*_merit(trials, r, protocol), -r)) if in_use else None


def rates_in_use(trials: Sequence[Trial]) -> list[float]:
    """The learning rates that the search has not dropped: those with the most trials."""
    counts = Counter(t.learning_rate for t in trials if t.learning_rate is not None)
    return sorted(rate for rate, count in counts.items() if count == max(counts.values()))


def holds_fewer(trials: Sequence[Trial], rate: float, other: float) -> bool:
    """Whether a learning rate held fewer than another of the trials that both have."""
    own, others = _shares_held(trials, rate, other)
    return own < others


def _shares_held(trials: Sequence[Trial], rate: float, other: float) -> tuple[float, float]:
    """The shares of trials that held at two learning rates, of those that both have; 0 where they have none."""
    held = [
        {(t.at, t.seed): t.status is TrialStatus.HELD for t in trials if t.learning_rate == r} for r in (rate, other)
    ]
    common = held[0].keys() & held[1].keys()
    own, others = (fmean(each[trial] for trial in common) if common else 0.0 for each in held)
    return own, others


def fixed_grid(trials: Sequence[Trial], protocol: Protocol) -> int:
    """Number of trials of a fixed grid with the search's range, resolution, seeds and rates; 0 without a search.

    Its points are one wanted half-width of the interval apart; each gets every rate, and as many seeds as the search
    used at any one point.
    """
    if protocol.mode not in ("capacity", "minimize") or not trials:
        return 0
    seeds = Counter((t.at, t.learning_rate) for t in trials)
    low, high = min(t.at for t in trials), max(t.at for t in trials)
    points = 1 + math.ceil(math.log(high / low) / math.log1p(protocol.ci_width))
    return min(points, 1 + (high - low) // protocol.unit) * max(seeds.values()) * max(1, len(protocol.learning_rates))


def observations(trials: Sequence[Trial], criterion: Criterion) -> list[Observation]:
    """Trials as the search sees them."""
    return [
        Observation(
            t.at,
            t.seed,
            None if t.status is TrialStatus.FAILED else t.status is TrialStatus.HELD,
            _shortfall(t, criterion),
        )
        for t in trials
    ]


def _shortfall(trial: Trial, criterion: Criterion) -> float | None:
    """How far a trial that took its course and did not hold is from the criterion; None for the others."""
    if trial.status not in (TrialStatus.NOT_HELD, TrialStatus.PLATEAU) or criterion.metric not in trial.metrics:
        return None
    return criterion.shortfall(trial.metrics[criterion.metric])


def observations_by_rate(
    trials: Sequence[Trial], protocol: Protocol
) -> tuple[list[Observation], list[list[Observation]]]:
    """The trials at the leading learning rate, and those at each of the other rates."""
    leader = leading_rate(trials, protocol)
    # Sorted, so that the result does not depend on the order of the trials.
    others = sorted({t.learning_rate for t in trials if t.learning_rate != leader}, key=lambda rate: rate or 0.0)
    by_rate = ([t for t in trials if t.learning_rate == rate] for rate in (leader, *others))
    first, *rest = (observations(at_rate, protocol.criterion) for at_rate in by_rate)
    return first, rest


def find_threshold(trials: Sequence[Trial], protocol: Protocol) -> Threshold:
    """The threshold at the leading learning rate, by the estimator that the protocol names."""
    seen, others = observations_by_rate(trials, protocol)
    if protocol.estimator == 1:
        return fit_threshold_v1(seen, axis_of(protocol))
    return fit_threshold(seen, axis_of(protocol), others, protocol.estimator)


def axis_of(protocol: Protocol) -> Axis:
    """The axis that a run searches along."""
    low, high = protocol.limits
    return Axis(low, high, rising=protocol.mode == "minimize", confidence=protocol.confidence, unit=protocol.unit)


def _capacity(trials: Sequence[Trial], at_rate: Sequence[Trial], protocol: Protocol) -> Capacity:
    """The capacity from all trials, or from those at the leading rate where no threshold is asked for."""
    if protocol.mode == "at":
        seen = [o for o in observations(at_rate, protocol.criterion) if o.held is not None]
        held = sum(o.held is True for o in seen)
        low, high = wilson(held, len(seen), protocol.confidence)
        share = held / len(seen) if seen else 0.0
        return Capacity(
            kind="success_rate",
            estimate=share,
            ci_low=low,
            ci_high=high,
            confidence=protocol.confidence,
            status="estimated",
        )
    if protocol.mode == "overload":
        return _overload(at_rate, protocol)
    found = find_threshold(trials, protocol)
    least, estimate, most = (
        end if end is None or protocol.mode != "minimize" else least_passing(end, protocol)
        for end in (found.ci_low, found.estimate, found.ci_high)
    )
    assert estimate is not None
    return Capacity(
        kind="least_budget" if protocol.mode == "minimize" else "largest_load",
        estimate=estimate,
        ci_low=least,
        ci_high=most,
        confidence=found.confidence,
        status=found.status.value,
        parameter=protocol.parameter,
        limited_by=found.limited_by and found.limited_by.value,
    )


def _overload(trials: Sequence[Trial], protocol: Protocol) -> Capacity:
    """Mean number of facts that overloaded models hold, with Student's t interval over seeds."""
    held = [t.metrics[FACTS_HELD] for t in trials if FACTS_HELD in t.metrics]
    mean = fmean(held) if held else 0.0
    low, high = student(held, protocol.confidence)
    is_full = protocol.at is not None and mean > FULL_SHARE * protocol.at
    return Capacity(
        kind="overload",
        estimate=mean,
        ci_low=low,
        ci_high=None if is_full else high,
        confidence=protocol.confidence,
        status="at_least" if is_full else "estimated",
    )


def student(values: Sequence[float], confidence: float) -> tuple[float | None, float | None]:
    """Student's t interval of the mean; both ends are None for fewer than two values."""
    if len(values) < 2:
        return None, None
    mean, tail = fmean(values), float(stdtrit(len(values) - 1, (1 + confidence) / 2))
    half = tail * stdev(values) / math.sqrt(len(values))
    return mean - half, mean + half


def least_passing(threshold: float, protocol: Protocol) -> float:
    """The least multiple of the unit at or above a threshold, which lies between failing and passing values."""
    # Less a little: a threshold that is a multiple but for rounding passes itself.
    multiple = math.ceil(threshold / protocol.unit - 1e-9) * protocol.unit
    return float(min(max(multiple, protocol.unit), protocol.limits[1]))


def _reported_at(capacity: Capacity, protocol: Protocol, tried: Sequence[int]) -> int:
    """The value at which metrics are reported: nearest to the capacity; under --minimize, one that passes."""
    if protocol.mode == "minimize":
        return min((at for at in tried if at >= capacity.estimate), default=max(tried))
    wanted = float(protocol.at or 0) if protocol.mode in ("at", "overload") else capacity.estimate
    return min(tried, key=lambda at: abs(at - wanted))


def _merit(trials: Sequence[Trial], rate: float, protocol: Protocol) -> tuple[float, float, float]:
    """How often trials at a rate held, how near they came to the criterion, and how fast; larger is better."""
    own = [t for t in trials if t.learning_rate == rate]
    criterion = protocol.criterion
    sign = 1 if criterion.at_least else -1
    goal = sign * criterion.threshold
    scores = [min(sign * t.metrics[criterion.metric], goal) for t in own if criterion.metric in t.metrics]
    held = sum(t.status is TrialStatus.HELD for t in own) / len(own)
    return held, fmean(scores) if scores else -math.inf, -fmean(t.steps for t in own)


def rate_window(trials: Sequence[Trial], best: float | None, protocol: Protocol) -> RateWindow | None:
    """The rates that work: that held at least half as many as the best of the trials that both have."""
    if best is None:
        return None
    tried = tuple(sorted({t.learning_rate for t in trials if t.learning_rate is not None}))
    points = {r: {(t.at, t.seed) for t in trials if t.learning_rate == r} for r in tried}
    if protocol.estimator == 1:  # judged on the trials that all rates have
        trials = [t for t in trials if (t.at, t.seed) in set.intersection(*points.values())]
    shares = {r: _shares_held(trials, r, best) for r in tried}
    working = tuple(r for r in tried if shares[r][0] > 0 and shares[r][0] >= shares[r][1] / 2)
    pruned = tuple(r for r in tried if len(points[r]) < len(points[best]))
    return RateWindow(best=best, tried=tried, working=working, pruned=pruned)
