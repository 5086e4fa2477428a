"""Other readings of the same trials, beside the capacity: other criteria, the best seed, the most bits."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import fmean

from capbench.contract.task import Criterion
from capbench.documents.result import Protocol, Reading, Trial, TrialStatus
from capbench.measure.estimate.posterior import Observation
from capbench.measure.estimate.summary import axis_of, find_threshold, leading_rate, observations, student
from capbench.measure.estimate.threshold import Threshold, fit_threshold

LAX = 0.9
"""A metric that must come near 1 is also read at this value; one with a lower threshold, at this share of it."""


def read_trials(trials: Sequence[Trial], protocol: Protocol) -> tuple[Reading, ...]:
    """Every reading that the trials of a search for the largest load allow."""
    if protocol.mode != "capacity":
        return ()
    found = find_threshold(trials, protocol)
    readings = [_reading("half", found, "half of the seeds meet the criterion"), _any_seed(trials, protocol, found)]
    if protocol.criterion.at_least and 0 < protocol.criterion.threshold <= 1:
        readings += [_lax(trials, protocol), _perfect(trials, protocol)]
    return (*readings, *_most_bits(trials, protocol))


def _reading(name: str, found: Threshold, note: str) -> Reading:
    return Reading(
        name=name,
        unit="facts",
        estimate=found.estimate,
        ci_low=found.ci_low,
        ci_high=found.ci_high,
        status=found.status.value,
        note=note,
    )


def _lax(trials: Sequence[Trial], protocol: Protocol) -> Reading:
    """Half of the seeds come to 0.9, or to 90 % of a criterion that is below it."""
    strict = protocol.criterion
    lax = replace(strict, threshold=LAX if strict.threshold > LAX else LAX * strict.threshold)
    # A trial that held stopped at the criterion, and so met the laxer one too.
    found = _refit(trials, protocol, lambda trial: _meets(trial, lax) or trial.status is TrialStatus.HELD, lax)
    return _reading("lax", found, f"half of the seeds reach {lax}")


def _perfect(trials: Sequence[Trial], protocol: Protocol) -> Reading:
    """Half of the seeds have a metric of 1; a trial that held short of 1 stopped there and might have reached it."""
    perfect = replace(protocol.criterion, threshold=1.0)
    unknown = sum(t.status is TrialStatus.HELD and not _meets(t, perfect) for t in _at_leading_rate(trials, protocol))
    found = _refit(trials, protocol, lambda trial: _meets(trial, perfect))
    note = f"half of the seeds reach {perfect}"
    if not unknown:
        return _reading("perfect", found, note)
    highest = _refit(trials, protocol, lambda trial: _meets(trial, perfect) or trial.status is TrialStatus.HELD)
    note += (
        f"; {unknown} held trials stopped short of it: not above {highest.estimate:.4g} if they would have reached it"
    )
    status = "below" if found.status.value == "below" else "at_least"
    return _reading("perfect", found, note).model_copy(update={"status": status, "ci_high": highest.ci_high})


def _any_seed(trials: Sequence[Trial], protocol: Protocol, found: Threshold) -> Reading:
    """The load at which the best of k seeds holds in half of the cases, read off the fitted curve."""
    seeds = Counter(t.at for t in _at_leading_rate(trials, protocol))
    k = max(seeds.values())
    # One of k seeds holds with probability ½ where each holds with p: 1 − (1 − p)^k = ½.
    p = 1 - 0.5 ** (1 / k)
    factor = math.exp(found.steepness * math.log((1 - found.lapse) / p - 1))
    low, high = (
        None if end is None else min(end * factor, protocol.limits[1]) for end in (found.ci_low, found.ci_high)
    )
    estimate = min(found.estimate * factor, protocol.limits[1])
    reading = _reading("any_seed", found, f"any of {k} seeds meets the criterion, by the fitted curve")
    return reading.model_copy(update={"estimate": estimate, "ci_low": low, "ci_high": high})


def _most_bits(trials: Sequence[Trial], protocol: Protocol) -> list[Reading]:
    """The most bits held on average at any load (Morris et al. 2025, arXiv 2505.24832)."""
    by_load: dict[int, list[float]] = defaultdict(list)
    for trial in _at_leading_rate(trials, protocol):
        if "bits" in trial.metrics:
            by_load[trial.load].append(trial.metrics["bits"])
    if not by_load:
        return []
    load, bits = max(by_load.items(), key=lambda item: (fmean(item[1]), item[0]))
    low, high = student(bits, protocol.confidence)
    # Bits still rise with the load where the last one has the most.
    status = "at_least" if load == max(by_load) else "estimated"
    note = f"mean of {len(bits)} seeds at {load} facts, the load with the most bits (arXiv 2505.24832)"
    return [
        Reading(name="most_bits", unit="bits", estimate=fmean(bits), ci_low=low, ci_high=high, status=status, note=note)
    ]


def _at_leading_rate(trials: Sequence[Trial], protocol: Protocol) -> list[Trial]:
    rate = leading_rate(trials, protocol)
    return [t for t in trials if t.learning_rate == rate and t.status is not TrialStatus.FAILED]


def _meets(trial: Trial, criterion: Criterion) -> bool:
    """Whether the recorded metric of a trial meets a criterion."""
    value = trial.metrics.get(criterion.metric)
    return trial.status is not TrialStatus.DIVERGED and value is not None and criterion.is_met(value)


def _refit(
    trials: Sequence[Trial], protocol: Protocol, holds: Callable[[Trial], bool], criterion: Criterion | None = None
) -> Threshold:
    """The threshold at the same learning rate under another rule for what holds; near misses of `criterion` count."""
    leader = leading_rate(trials, protocol)
    rates = sorted({t.learning_rate for t in trials}, key=lambda rate: (rate != leader, rate or 0.0))
    judged = [_judged(t, holds(t)) for t in trials]
    seen, *others = (
        _observed([t for t in judged if t.learning_rate == rate], protocol.criterion, criterion) for rate in rates
    )
    return fit_threshold(seen, axis_of(protocol), others)


def _judged(trial: Trial, held: bool) -> Trial:
    """A trial with another verdict; one that failed to run or diverged keeps its own."""
    if trial.status in (TrialStatus.FAILED, TrialStatus.DIVERGED):
        return trial
    return trial.model_copy(update={"status": TrialStatus.HELD if held else TrialStatus.NOT_HELD})


def _observed(trials: Sequence[Trial], stated: Criterion, criterion: Criterion | None) -> list[Observation]:
    """Trials as the estimator sees them, with shortfalls from `criterion` or without any."""
    seen = observations(trials, criterion or stated)
    return seen if criterion else [replace(o, shortfall=None) for o in seen]
