"""The runs of a study, one by one or several at once: a run that fails is reported, and the others go on."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import closing
from dataclasses import dataclass, field
from statistics import fmean
from typing import Protocol as Interface

from capbench.documents.result import Result
from capbench.engine.lane_program import keep_programs
from capbench.errors import (
    CapbenchError,
    ClusterUnavailable,
    DeviceUnavailable,
    RunInterrupted,
    StoreUnavailable,
    WorkersDiffer,
)
from capbench.executors.backends import open_pool_backend
from capbench.executors.executor import Backend
from capbench.executors.interrupts import Interrupt, deferred
from capbench.measure.request import Request
from capbench.measure.run import MAX_WORKERS, execute_jointly
from capbench.measure.session import NullListener, RunListener
from capbench.registry.registry import Registry
from capbench.store.store import Store

SHARED_FAULTS = (RunInterrupted, StoreUnavailable, DeviceUnavailable, ClusterUnavailable, WorkersDiffer)
"""Errors that every job of a study would meet: they end it."""
POLL_SECONDS = 0.5
"""Time between two checks for an interrupt while jobs run in threads."""
GROWTH = 0.75
"""Exponent by which run time is assumed to grow with parameters, where no run of that size has been seen."""


@dataclass(frozen=True)
class Job:
    """One run of a study, and how progress displays name it."""

    label: str
    request: Request


@dataclass(frozen=True)
class FinishedJob:
    """A job's result, or the reason why there is none."""

    index: int
    """Its index among the jobs: they may finish in any order."""
    job: Job
    result: Result | None
    reason: str
    seconds: float

    @property
    def has_trained(self) -> bool:
        """Whether it trained anything, so that its time predicts that of other jobs."""
        return self.result is not None and self.result.timing.trials_trained > 0


class StudyListener(Interface):
    """Receives progress events of a study."""

    @property
    def run(self) -> RunListener:
        """Receives the events of the runs."""

    def started(self, job: Job, n_finished: int, n_jobs: int) -> None:
        """A job starts."""

    def finished(self, finished: FinishedJob, seconds_left: float | None) -> None:
        """A job has finished."""


class NullStudyListener:
    """A study listener that ignores everything."""

    @property
    def run(self) -> RunListener:
        """Ignores the events of runs, too."""
        return NullListener()

    def started(self, job: Job, n_finished: int, n_jobs: int) -> None:
        """Ignored."""

    def finished(self, finished: FinishedJob, seconds_left: float | None) -> None:
        """Ignored."""


def run_jobs(jobs: Sequence[Job], registry: Registry, store: Store, listener: StudyListener) -> Iterator[FinishedJob]:
    """Runs all jobs, and yields each as soon as it has finished.

    They share one backend, that of the first job: a study has one device and one executor.
    """
    if not jobs:
        return
    plugins = [plugin for job in jobs for plugin in job.request.plugins]
    units = work_units(jobs)
    keep_programs(store.path.parent / "compiled")
    n_parts = max(len(units), MAX_WORKERS)  # the trials of a unit are split over free workers
    with open_pool_backend(jobs[0].request.options.target, n_parts, plugins, store.closed()) as backend:
        backend.prepare(plugins)
        study = Study(jobs, units, registry, store, listener, backend)
        yield from study.run_in_threads() if backend.n_parallel_runs > 1 else study.run_in_order()


def in_order(finished: Iterable[FinishedJob]) -> Iterator[FinishedJob]:
    """Yields finished jobs in their original order, each as soon as all before it have finished."""
    early: dict[int, FinishedJob] = {}
    n_yielded = 0
    for each in finished:
        early[each.index] = each
        while n_yielded in early:
            yield early.pop(n_yielded)
            n_yielded += 1


def work_units(jobs: Sequence[Job]) -> list[list[int]]:
    """Job indices grouped into units of work: jobs that differ only in load form one unit."""
    alike: dict[object, list[int]] = {}
    for index, job in enumerate(jobs):
        is_joint = job.request.protocol.mode == "at"
        alike.setdefault(_all_but_load(job.request) if is_joint else index, []).append(index)
    return sorted(alike.values())


def _all_but_load(request: Request) -> tuple[str, ...]:
    """Everything that decides how a request is run except for its load, as text."""
    plugins = (f"{each.plugin!r} {each.provenance} {each.code_hash}" for each in request.plugins)
    protocol = request.protocol.model_copy(update={"at": None})
    options = request.options.replaced(at=None)
    return (*plugins, protocol.model_dump_json(), options.model_dump_json(exclude={"set", "params", "match"}))


@dataclass
class Study:
    """Jobs in progress on one backend, and those that have finished."""

    jobs: Sequence[Job]
    units: Sequence[Sequence[int]]
    registry: Registry
    store: Store
    listener: StudyListener
    backend: Backend
    finished: list[FinishedJob] = field(default_factory=list)

    def run_in_order(self) -> Iterator[FinishedJob]:
        """Runs unit after unit in this thread."""
        for unit in self.units:
            label = self._start(unit)
            try:
                finished = self._run(unit, self.store, None)
            except (RunInterrupted, KeyboardInterrupt):
                raise self._interrupted(label) from None
            for each in finished:
                yield self._record(each, 1)

    def run_in_threads(self) -> Iterator[FinishedJob]:
        """Runs units in one thread each, as many at once as the backend can use: threads plan and store only.

        Long ones first: the rounds of a search follow each other, and workers would wait for one that starts last.
        """
        longest_first = sorted(self.units, key=self._work, reverse=True)
        waiting, running = deque(longest_first), dict[Future[list[FinishedJob]], Sequence[int]]()
        n_parallel = min(self.backend.n_parallel_runs, len(self.units))
        with deferred() as interrupt, ThreadPoolExecutor(n_parallel) as pool:
            try:
                while waiting or running:
                    while waiting and len(running) < n_parallel:
                        unit = waiting.popleft()
                        self._start(unit)
                        running[pool.submit(self._run_in_thread, unit, interrupt)] = unit
                    for future in wait(running, POLL_SECONDS, return_when=FIRST_COMPLETED).done:
                        del running[future]
                        for each in future.result():
                            yield self._record(each, n_parallel)
                    interrupt.check()
            except (RunInterrupted, KeyboardInterrupt):
                if interrupt.is_repeated:
                    self.backend.kill()
                raise self._interrupted(f"{len(running) + 1} of them") from None
            finally:
                interrupt.request()  # whatever ends the study ends its threads

    def _work(self, unit: Sequence[int]) -> float:
        """How long a unit takes, relative to others."""
        return sum(expected_work(self.jobs[index].request) for index in unit)

    def _start(self, unit: Sequence[int]) -> str:
        for index in unit:
            self.listener.started(self.jobs[index], len(self.finished), len(self.jobs))
        return self.jobs[unit[0]].label

    def _run_in_thread(self, unit: Sequence[int], interrupt: Interrupt) -> list[FinishedJob]:
        """Runs a unit with its own connection to the store: SQLite connections belong to one thread."""
        with closing(Store(self.store.path.parent)) as store:
            return self._run(unit, store, interrupt)

    def _run(self, unit: Sequence[int], store: Store, interrupt: Interrupt | None) -> list[FinishedJob]:
        """Runs the jobs of a unit; a fault of the store or the backend would be every job's, and is raised."""
        started = time.perf_counter()
        requests = [self.jobs[index].request for index in unit]
        results: Sequence[Result | Exception]
        try:
            results = execute_jointly(requests, self.registry, store, self.listener.run, self.backend, interrupt)
        except SHARED_FAULTS:
            raise
        except Exception as error:  # noqa: BLE001 - the plugin border: one pair's fault is not the others'
            results = [error] * len(unit)
        seconds = time.perf_counter() - started
        return [self._finished(index, result, seconds) for index, result in zip(unit, results, strict=True)]

    def _finished(self, index: int, result: Result | Exception, seconds: float) -> FinishedJob:
        if isinstance(result, Exception):
            text = str(result) if isinstance(result, CapbenchError) else f"{type(result).__name__}: {result}"
            return FinishedJob(index, self.jobs[index], None, " ".join(text.split()), seconds)
        return FinishedJob(index, self.jobs[index], result, "", result.timing.wall_seconds)

    def _record(self, finished: FinishedJob, n_parallel: int) -> FinishedJob:
        self.finished.append(finished)
        done = {each.index for each in self.finished}
        left = [job for index, job in enumerate(self.jobs) if index not in done]
        seconds = seconds_left(self.finished, left)
        self.listener.finished(finished, seconds and seconds / n_parallel)
        return finished

    def _interrupted(self, where: str) -> RunInterrupted:
        return RunInterrupted(
            f"interrupted in {where}, {len(self.finished)} of {len(self.jobs)} runs done; all finished trials are "
            "stored: the same command continues"
        )


def expected_work(request: Request) -> float:
    """Steps of all trials at most, scaled by the size of the model: how long a run takes, relative to others."""
    protocol = request.protocol
    n_trials = (protocol.budget if protocol.mode in ("capacity", "minimize") else protocol.seeds) or 1
    growth: float = request.n_parameters**GROWTH
    return n_trials * max(1, len(protocol.learning_rates)) * protocol.steps * growth


def seconds_left(finished: Sequence[FinishedJob], jobs: Sequence[Job]) -> float | None:
    """The time that jobs will take, estimated from the most similar finished ones; None before anything was trained."""
    trained = [each for each in finished if each.has_trained]
    return sum(_estimate(trained, job) for job in jobs) if trained else None


def _estimate(trained: Sequence[FinishedJob], job: Job) -> float:
    """Mean over the jobs of the same task and the nearest size."""
    size = job.request.n_parameters

    def distance(each: FinishedJob) -> tuple[bool, float]:
        is_other_task = each.job.request.task.plugin.name != job.request.task.plugin.name
        return is_other_task, round(abs(math.log2(each.job.request.n_parameters / size)))

    nearest = min(distance(each) for each in trained)
    return fmean(
        each.seconds * (size / each.job.request.n_parameters) ** GROWTH for each in trained if distance(each) == nearest
    )
