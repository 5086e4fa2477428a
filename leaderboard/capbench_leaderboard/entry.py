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
    digest: str
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


def make_entry(path: str, digest: str, result: Result) -> Entry:
    """Takes from a record what the board shows, and lets the rest go."""
    rate = result.rates.best if result.rates else None
    leading = [t for t in result.trials if t.learning_rate == rate and t.status is not TrialStatus.FAILED]
    metric = result.protocol.criterion.metric
    constructed = result.constructed and result.constructed.model_copy(update={"trials": ()})
    bounds = tuple(bound for bound in result.bounds if bound.value is not None)
    return Entry(
        path=path,
        digest=digest,
        result=result.model_copy(update={"trials": (), "constructed": constructed, "bounds": bounds}),
        points=_points(leading, metric),
        outcomes={(_place(t), t.seed): t.status is TrialStatus.HELD for t in leading},
        trials=json.dumps([_trial(t, metric) for t in result.trials], separators=(",", ":")),
        failures=_failures(result),
    )


def _place(trial: Trial) -> int:
    return trial.load if trial.budget is None else trial.budget


def _trial(trial: Trial, metric: str) -> list[str | float | int | None]:
    value = trial.metrics.get(metric)
    shown = None if value is None else float(f"{value:.5g}")
    return [_place(trial), trial.seed, trial.learning_rate, trial.status.value, trial.steps, shown]


def _points(trials: list[Trial], metric: str) -> tuple[Point, ...]:
    by_place: dict[int, list[Trial]] = defaultdict(list)
    for trial in trials:
        by_place[_place(trial)].append(trial)
    return tuple(_point(at, here, metric) for at, here in sorted(by_place.items()))


def _point(at: int, trials: list[Trial], metric: str) -> Point:
    values = [t.metrics[metric] for t in trials if metric in t.metrics]
    held = sum(t.status is TrialStatus.HELD for t in trials)
    return Point(at, held, len(trials), fmean(values) if values else None)


def _failures(result: Result) -> str:
    failed = [t for t in result.trials if t.status is TrialStatus.FAILED]
    if not failed:
        return ""
    reason = (failed[0].error or "no message").strip().splitlines()[-1]
    return f"{len(failed)} of {len(result.trials)} trials failed: {reason}"
