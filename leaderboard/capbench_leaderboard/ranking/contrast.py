"""The answer of a comparison: who holds more, by how much, how sure that is, and what it would cost to be surer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from capbench.documents.result import Capacity, RatioStatus, Result
from capbench.documents.text import number, ratio_text
from capbench_leaderboard.ranking.posterior import MAX_DRAWS, make_posterior

SURE = 0.95
"""From this probability on, the answer is stated without a doubt."""
MOST_TIMES = 50
"""A difference that needs more than so many times the trials is not worth asking for."""
DRAW_SEED = 0


@dataclass(frozen=True)
class Contrast:
    """The architecture with the largest estimate against the next one."""

    more: Result
    less: Result
    ratio: float
    low: float
    """The lower end of the 95 % interval of the ratio; 0 where a capacity has an open end."""
    high: float
    """Its upper end; infinite where a capacity has an open end."""
    probability: float
    """Of the first holding more: the least that open ends allow."""

    @property
    def is_sure(self) -> bool:
        """Whether the order is known."""
        return self.probability >= SURE

    @property
    def status(self) -> RatioStatus:
        """What is known of the ratio, whose estimate is a limit where one of the capacities is one."""
        return self.more.capacity.ratio_status(self.less.capacity)

    @property
    def times_the_trials(self) -> float:
        """How many times the trials it takes until the order is known, if intervals shrink with their root."""
        distance, deviation = (
            abs(math.log(self.ratio)),
            math.hypot(_deviation(self.more), _deviation(self.less)),
        )
        if not distance or math.isinf(deviation):
            return math.inf
        return max(1.0, math.pow(NormalDist().inv_cdf(SURE) * deviation / distance, 2))


def contrast(results: Sequence[Result]) -> Contrast:
    """The first two by estimate, compared by joint draws of their posteriors; of equals, first what may be more."""
    more, less = sorted(results, key=_place)[:2]
    generator = np.random.default_rng(DRAW_SEED)
    draws = [make_posterior(r.capacity).draw_merits(generator.standard_normal(MAX_DRAWS)) for r in (more, less)]
    (least, greatest), (other_least, other_greatest) = draws
    with np.errstate(divide="ignore", invalid="ignore"):
        lows, highs = least / other_greatest, greatest / other_least
    return Contrast(
        more=more,
        less=less,
        ratio=more.capacity.estimate / less.capacity.estimate if less.capacity.estimate else math.inf,
        low=float(np.quantile(np.where(np.isnan(lows), 0.0, lows), 0.025, method="inverted_cdf")),
        high=float(np.quantile(np.where(np.isnan(highs), np.inf, highs), 0.975, method="inverted_cdf")),
        probability=float((least > other_greatest).mean()),
    )


def _place(result: Result) -> tuple[float, int]:
    """What sorts capacities, the most first."""
    return -result.capacity.estimate, ("at_least", "estimated", "below").index(result.capacity.status)


def sentence(found: Contrast) -> str:
    """The answer in one sentence."""
    more, less = found.more, found.less
    who = f"{more.architecture.name} holds {_how_much(found)} as much as {less.architecture.name}"
    if not found.is_sure:
        who = f"whether {more.architecture.name} holds more than {less.architecture.name} is open"
    return f"On {more.task.name}{_sizes(more, less)} {who}{_doubt(found)}; {_cost(found)}."


def _how_much(found: Contrast) -> str:
    if math.isinf(found.ratio) or found.status != "estimated":
        return f"at least {number(found.low)} times"
    return f"{number(found.ratio)} times"


def _doubt(found: Contrast) -> str:
    """What is known of the ratio, the probability of the order, and whether a capacity still moves with the steps."""
    ratio = "" if found.is_sure else f"the ratio is {ratio_text(found.status, number(found.ratio))}"
    known = ", ".join(part for part in (ratio, _ends(found)) if part)
    chance = f"probability of holding more {_percent(found.probability)}"
    text = f" ({known}; {chance})" if known else f" ({chance})"
    unsettled = [r.architecture.name for r in (found.more, found.less) if r.capacity.settled is False]
    return f"{text}, although {' and '.join(unsettled)} would hold more with more steps" if unsettled else text


def _ends(found: Contrast) -> str:
    """The interval of the ratio, without its open ends; empty where both are open."""
    low, high = number(found.low), number(found.high)
    if math.isinf(found.high):
        return f"95 % interval from {low}" if found.low > 0 else ""
    return f"95 % interval {low} to {high}" if found.low > 0 else f"95 % interval up to {high}"


def _percent(probability: float) -> str:
    return ">99 %" if probability > 0.99 else f"{100 * probability:.0f} %"


def _sizes(more: Result, less: Result) -> str:
    """The numbers of parameters: one, where they are about equal."""
    first, second = more.n_parameters, less.n_parameters
    if abs(math.log(first / second)) < 0.1:
        return f" at about {number(round((first + second) / 2))} parameters"
    return f" at {number(first)} and {number(second)} parameters"


def _cost(found: Contrast) -> str:
    """What it takes to be surer, by trials and, where they were all trained now, by time."""
    ended = [r for r in (found.more, found.less) if r.capacity.status == "at_least"]
    if ended:
        names = " and ".join(r.architecture.name for r in ended)
        field = ended[0].capacity.raised_by
        remedy = f"raise task.{field}" if field else "raise --budget"
        return f"{names} may hold more than was asked for: {remedy}"
    trials, seconds = _effort(found.more, found.less)
    times = 4.0 if found.is_sure else found.times_the_trials
    what = "half the interval" if found.is_sure else f"a probability of {SURE:.0%}"
    if times > MOST_TIMES:
        return f"{what} would take more than {MOST_TIMES} times the {trials} trials: they are about equal"
    extra = math.ceil((times - 1) * trials)
    time = f", about {_duration(seconds * (times - 1))}" if seconds else ""
    width = min(found.more.protocol.ci_width, *_half_widths(found)) / math.sqrt(times)
    budget = math.ceil(times * max(map(_n_trials, (found.more, found.less))))
    return f"{what} would take about {extra:,} more trials{time} (--ci-width {width:.2g} --budget {budget})"


def _effort(*results: Result) -> tuple[int, float]:
    """The trials at the rate of the capacity, and the seconds of a measurement that trained them all; 0 if none did."""
    trials = sum(map(_n_trials, results))
    were_trained = all(r.timing.trials_reused == 0 and r.selection is None for r in results)
    return trials, sum(r.timing.wall_seconds for r in results) if were_trained else 0.0


def _n_trials(result: Result) -> int:
    return sum(trial.learning_rate == (result.rates and result.rates.best) for trial in result.trials)


def _duration(seconds: float) -> str:
    return f"{number(math.ceil(seconds))} s" if seconds < 100 else f"{number(math.ceil(seconds / 60))} min"


def _half_widths(found: Contrast) -> list[float]:
    return [1.96 * _deviation(each) for each in (found.more, found.less) if math.isfinite(_deviation(each))] or [1.0]


def _deviation(result: Result) -> float:
    """The standard deviation of the logarithm of a capacity; infinite where its interval has an open end."""
    capacity: Capacity = result.capacity
    if not capacity.ci_low or capacity.ci_high is None:
        return math.inf
    return math.log(capacity.ci_high / capacity.ci_low) / 2 / 1.96
