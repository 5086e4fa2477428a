"""An entry of the board: a record as far as the board needs it, so that ten thousand of them fit in memory."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple

from capbench.results import Result, Trial, TrialStatus


class Point(NamedTuple):
    """What the trials at one load came to, at the rate the capacity was measured at."""

    at: int
    held: int
    trials: int
    metric: float | None
    """Mean of the criterion's metric."""


@dataclass(frozen=True)
class Entry:
    """A record without its raw trials, and what is read off them."""

    path: str
    """Where the record lies, from the folder of records."""
    result: Result
    points: tuple[Point, ...]
    outcomes: Mapping[tuple[int, int], bool]
    """Whether the trial of a load and a seed held, at the rate the capacity was measured at."""
    trials: str
    """The raw trials as compact JSON: place, seed, rate, ending, steps, metric."""
    failures: str
    """How many trials could not be run, and why the first of them could not; empty where all could."""

    @property
    def interval(self) -> tuple[float, float]:
        """The interval of the capacity; an open end is infinite."""
        low, high = self.result.capacity.ci_low, self.result.capacity.ci_high
        return (-math.inf if low is None else low, math.inf if high is None else high)


class Seen(NamedTuple):
    """A trial as far as the board shows it."""

    at: int
    seed: int
    rate: float | None
    status: TrialStatus
    steps: int
    metric: float | None
    """The criterion's."""


def make_entry(path: str, result: Result) -> Entry:
    """Takes from a record what the board shows, and lets the rest go."""
    metric = result.protocol.criterion.metric
    seen = [_seen(trial, metric) for trial in result.trials]
    rate = result.rates.best if result.rates else None
    leading = [trial for trial in seen if trial.rate == rate and trial.status is not TrialStatus.FAILED]
    constructed = result.constructed and result.constructed.model_copy(update={"trials": ()})
    bounds = tuple(bound for bound in result.bounds if bound.value is not None)
    return Entry(
        path=path,
        result=result.model_copy(update={"trials": (), "constructed": constructed, "bounds": bounds}),
        points=_points(leading),
        outcomes={(trial.at, trial.seed): trial.status is TrialStatus.HELD for trial in leading},
        trials=json.dumps([_rounded(trial) for trial in seen], separators=(",", ":")),
        failures=_failures(result),
    )


def _seen(trial: Trial, metric: str) -> Seen:
    at = trial.load if trial.budget is None else trial.budget
    return Seen(at, trial.seed, trial.learning_rate, trial.status, trial.steps, trial.metrics.get(metric))


def _rounded(trial: Seen) -> tuple[str | float | int | None, ...]:
    """A trial as the page shows it: nobody needs more digits there."""
    return (*trial[:-1], None if trial.metric is None else float(f"{trial.metric:.5g}"))


def _points(trials: list[Seen]) -> tuple[Point, ...]:
    by_place: dict[int, list[Seen]] = defaultdict(list)
    for trial in trials:
        by_place[trial.at].append(trial)
    return tuple(_point(at, here) for at, here in sorted(by_place.items()))


def _point(at: int, trials: list[Seen]) -> Point:
    values = [trial.metric for trial in trials if trial.metric is not None]
    held = sum(trial.status is TrialStatus.HELD for trial in trials)
    return Point(at, held, len(trials), fmean(values) if values else None)


def _failures(result: Result) -> str:
    failed = [t for t in result.trials if t.status is TrialStatus.FAILED]
    if not failed:
        return ""
    reason = (failed[0].error or "no message").strip().splitlines()[-1]
    return f"{len(failed)} of {len(result.trials)} trials failed: {reason}"
