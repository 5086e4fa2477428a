"""Board entries: the part of a record that the board shows, so that ten thousand fit in memory."""

from __future__ import annotations

import hashlib
import json
import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean, median_low
from typing import NamedTuple

from capbench.documents.result import Result, Trial, TrialStatus
from capbench.studies.theories.cells import largest_held
from capbench_leaderboard.ranking.comparison import TrialPrint, TrialPrints


class LoadPoint(NamedTuple):
    """The trials at one load (or parameter value), at the learning rate of the capacity."""

    at: int
    held: int
    trials: int
    metric: float | None
    """Mean of the criterion's metric."""


@dataclass(frozen=True)
class BoardEntry:
    """A record without its raw trials, and what the board shows of them."""

    path: str
    """Path of the record, relative to the folder of records."""
    result: Result
    points: tuple[LoadPoint, ...]
    held_by_trial: Mapping[tuple[int, int], bool]
    """Whether the trial held, by load and seed, at the learning rate of the capacity."""
    prints: TrialPrints
    """What tells whether two records are of the same model: a digest of each trial."""
    trials: str
    """The raw trials as compact JSON: load or parameter value, seed, rate, status, steps, metric."""
    failures: str
    """How many trials failed, and the error of the first; empty if none did."""
    steps_to_hold: int | None = None
    """Median steps of the trials that hold, at the largest load that at least half of them hold."""

    largest_held: int | None = None
    """The largest load that any trial held; None where none did."""

    @property
    def interval(self) -> tuple[float, float]:
        """The interval of the capacity; an open end is infinite."""
        low, high = self.result.capacity.ci_low, self.result.capacity.ci_high
        return (-math.inf if low is None else low, math.inf if high is None else high)

    @property
    def is_unsettled(self) -> bool:
        """Whether more steps raise the capacity, or may where the suite asks for it to be settled: it is not ranked."""
        settled, suite = self.result.capacity.settled, self.result.suite
        return settled is False or (settled is None and suite is not None and suite.settle is not None)


class TrialRow(NamedTuple):
    """The fields of a trial that the board shows."""

    at: int
    seed: int
    rate: float | None
    status: TrialStatus
    steps: int
    metric: float | None
    """Value of the criterion's metric."""


def make_entry(path: str, result: Result) -> BoardEntry:
    """Reduces a record to what the board shows."""
    metric = result.protocol.criterion.metric
    rows = [_trial_row(trial, metric) for trial in result.trials]
    rate = result.rates.best if result.rates else None
    at_best_rate = [trial for trial in rows if trial.rate == rate and trial.status is not TrialStatus.FAILED]
    constructed = result.constructed and result.constructed.model_copy(update={"trials": ()})
    selection = result.selection and result.selection.model_copy(update={"trials": ()})
    bounds = tuple(bound for bound in result.bounds if bound.value is not None)
    capacity = result.above_floor or result.capacity  # explicit weights count above the margin floor only
    return BoardEntry(
        path=path,
        result=result.model_copy(
            update={
                "trials": (),
                "selection": selection,
                "constructed": constructed,
                "bounds": bounds,
                "capacity": capacity,
            }
        ),
        points=_points(at_best_rate),
        held_by_trial={(trial.at, trial.seed): trial.status is TrialStatus.HELD for trial in at_best_rate},
        prints={
            (t.at, t.seed, t.learning_rate): _print(t) for t in result.trials if t.status is not TrialStatus.FAILED
        },
        trials=json.dumps([_rounded(trial) for trial in rows], separators=(",", ":")),
        failures=_failures(result),
        steps_to_hold=_steps_to_hold(at_best_rate),
        largest_held=largest_held(result.trials),
    )


def _trial_row(trial: Trial, metric: str) -> TrialRow:
    return TrialRow(trial.at, trial.seed, trial.learning_rate, trial.status, trial.steps, trial.metrics.get(metric))


def _print(trial: Trial) -> TrialPrint:
    outcome = json.dumps([trial.status, trial.steps, trial.metrics], sort_keys=True)
    digest = hashlib.blake2b(outcome.encode(), digest_size=8).hexdigest()
    return TrialPrint(trial.status is TrialStatus.HELD, digest)


def _rounded(trial: TrialRow) -> tuple[str | float | int | None, ...]:
    """A trial with its metric rounded for display."""
    return (*trial[:-1], None if trial.metric is None else float(f"{trial.metric:.5g}"))


def _points(trials: list[TrialRow]) -> tuple[LoadPoint, ...]:
    by_load: dict[int, list[TrialRow]] = defaultdict(list)
    for trial in trials:
        by_load[trial.at].append(trial)
    return tuple(_point(at, group) for at, group in sorted(by_load.items()))


def _point(at: int, trials: list[TrialRow]) -> LoadPoint:
    values = [trial.metric for trial in trials if trial.metric is not None]
    held = sum(trial.status is TrialStatus.HELD for trial in trials)
    return LoadPoint(at, held, len(trials), fmean(values) if values else None)


def _steps_to_hold(trials: list[TrialRow]) -> int | None:
    by_load: dict[int, list[TrialRow]] = defaultdict(list)
    for trial in trials:
        by_load[trial.at].append(trial)
    for _, group in sorted(by_load.items(), reverse=True):
        steps = [trial.steps for trial in group if trial.status is TrialStatus.HELD]
        if 2 * len(steps) >= len(group):
            return median_low(steps)
    return None


def _failures(result: Result) -> str:
    failed = [t for t in result.trials if t.status is TrialStatus.FAILED]
    if not failed:
        return ""
    return f"{len(failed)} of {len(result.trials)} trials failed: {failed[0].reason}"
