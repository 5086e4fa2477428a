"""A series of runs: one after the other, the failure of one recorded and the others carried out all the same."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Protocol as Interface

from capbench.errors import CapbenchError, DeviceUnavailable, RunInterrupted, StoreUnavailable
from capbench.measurement import Progress
from capbench.registry import Registry
from capbench.request import Request
from capbench.results import Result
from capbench.runner import execute
from capbench.store import Store

GROWTH = 0.75
"""The time of a run is taken to grow with this power of its size, where no run of the size has been seen."""


@dataclass(frozen=True)
class Job:
    """One run of a series."""

    label: str
    request: Request
    size: int
    """Parameters of the model: what the time of a run is taken to grow with."""


@dataclass(frozen=True)
class Ended:
    """How a job went: a result, or the reason why there is none."""

    job: Job
    result: Result | None
    reason: str
    seconds: float

    @property
    def has_trained(self) -> bool:
        """Whether its time says anything of the jobs to come: what is read from the store takes none."""
        return self.result is not None and self.result.timing.trials_trained > 0


class SeriesProgress(Interface):
    """Is told how a series goes."""

    @property
    def run(self) -> Progress:
        """Is told what the runner does within a job."""

    def begins(self, job: Job, n_before: int, n_jobs: int) -> None:
        """A job begins."""

    def ended(self, ended: Ended, seconds_left: float | None) -> None:
        """A job has ended."""


def carry_out(jobs: Sequence[Job], registry: Registry, store: Store, progress: SeriesProgress) -> Iterator[Ended]:
    """Carries out the jobs in order, and yields how each went as soon as it is known."""
    done: list[Ended] = []
    for n_before, job in enumerate(jobs):
        progress.begins(job, n_before, len(jobs))
        try:
            done.append(_carry_out(job, registry, store, progress.run))
        except (RunInterrupted, KeyboardInterrupt):
            raise RunInterrupted(
                f"interrupted in {job.label}, {n_before} of {len(jobs)} runs done; all finished trials are stored: "
                "the same command goes on from there"
            ) from None
        progress.ended(done[-1], seconds_left(done, jobs[n_before + 1 :]))
        yield done[-1]


def seconds_left(done: Sequence[Ended], jobs: Sequence[Job]) -> float | None:
    """An estimate from the most similar runs so far; None before anything was trained."""
    trained = [each for each in done if each.has_trained]
    return sum(_estimate(trained, job) for job in jobs) if trained else None


def _estimate(trained: Sequence[Ended], job: Job) -> float:
    """Mean over the runs of the same task and the nearest size."""

    def distance(each: Ended) -> tuple[bool, float]:
        other_task = each.job.request.task.plugin.name != job.request.task.plugin.name
        return other_task, round(abs(math.log2(each.job.size / job.size)))

    nearest = min(distance(each) for each in trained)
    return fmean(each.seconds * (job.size / each.job.size) ** GROWTH for each in trained if distance(each) == nearest)


def _carry_out(job: Job, registry: Registry, store: Store, progress: Progress) -> Ended:
    """Runs a job. A fault of the store or the device would be every job's, and ends the series."""
    started = time.perf_counter()
    result, reason = None, ""
    try:
        result = execute(job.request, registry, store, progress)
    except (RunInterrupted, StoreUnavailable, DeviceUnavailable):
        raise
    except CapbenchError as error:
        reason = str(error)
    except Exception as error:  # noqa: BLE001 - the plugin border: one pair's fault is not the others'
        reason = f"{type(error).__name__}: {error}"
    return Ended(job, result, " ".join(reason.split()), time.perf_counter() - started)
