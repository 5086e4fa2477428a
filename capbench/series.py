"""A series of runs, one by one or several at once: a failure is recorded, and the others are carried out anyway."""

from __future__ import annotations

import math
import time
import warnings
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from statistics import fmean
from typing import Protocol as Interface

from capbench.crew import Crew, Died, Done, Line, Warned, crew_size
from capbench.errors import (
    CapbenchError,
    ClusterUnavailable,
    DeviceUnavailable,
    RunInterrupted,
    StoreUnavailable,
    WorkersDiffer,
)
from capbench.executors import Workplace
from capbench.executors.workplace import open_workplace
from capbench.interrupts import Interrupt, deferred
from capbench.measurement import Progress, Share
from capbench.registry import Registry
from capbench.request import Request
from capbench.results import Result
from capbench.runner import execute
from capbench.store import Store
from capbench.telling import Begun, Heard, Outcome, Teller
from capbench.together import bundles, train_together

FAULTS_OF_ALL = (RunInterrupted, StoreUnavailable, DeviceUnavailable, ClusterUnavailable, WorkersDiffer)
"""What would meet every job of a series, and ends it."""
LISTEN_SECONDS = 0.5
"""Between two looks at whether an end is asked for, while processes work."""
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

    index: int
    """Its place among the jobs: they need not end in their order."""
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
    """Carries out the jobs, in order or several at once, and yields how each went as soon as it is known.

    They share a workplace, which the first one names: a series has one device and one executor. On a CPU they are
    carried out by as many processes as that is worth.
    """
    if not jobs:
        return
    workplace = open_workplace(jobs[0].request.where)
    workplace.prepare(plugin for job in jobs for plugin in job.request.plugins)
    series = Series(jobs, registry, store, progress, workplace)
    if workplace.n_runs_at_once > 1:
        yield from series.at_once()
    elif (n_processes := crew_size(len(series.pieces), workplace.device)) > 1:
        yield from series.by_processes(n_processes)
    else:
        yield from series.one_by_one()


def in_order(ended: Iterable[Ended]) -> Iterator[Ended]:
    """Jobs that end in any order, in the order in which they were given: each as soon as all before it have ended."""
    early: dict[int, Ended] = {}
    n_told = 0
    for each in ended:
        early[each.index] = each
        while n_told in early:
            yield early.pop(n_told)
            n_told += 1


@dataclass
class Series:
    """Jobs under way in one workplace, and how those went that have ended."""

    jobs: Sequence[Job]
    registry: Registry
    store: Store
    progress: SeriesProgress
    workplace: Workplace
    done: list[Ended] = field(default_factory=list)
    warned: set[Warned] = field(default_factory=set)
    """What processes have warned of: what several say is shown once."""

    @property
    def pieces(self) -> list[list[int]]:
        """The places of jobs that one process had better carry out: those that are trained together, others alone."""
        together = bundles([job.request for job in self.jobs])
        alone = set(range(len(self.jobs))).difference(*together)
        return sorted([*together, *([index] for index in alone)])

    def one_by_one(self) -> Iterator[Ended]:
        """In this thread, each job when the one before it has ended; those of a bundle are trained with its first."""
        beginning = {places[0]: places for places in bundles([job.request for job in self.jobs])}
        shares: dict[int, Share] = {}
        for index, job in enumerate(self.jobs):
            self.progress.begins(job, len(self.done), len(self.jobs))
            try:
                if index in beginning:
                    shares.update(self._train_together(beginning[index], self.store, self.progress.run))
                share = shares.get(index, Share())
                ended = _carry_out(
                    index, job, self.registry, self.store, self.progress.run, self.workplace, share=share
                )
            except (RunInterrupted, KeyboardInterrupt):
                raise self._interrupted(job.label) from None
            yield self._count(ended, self.jobs[index + 1 :], 1)

    def _train_together(
        self, places: Sequence[int], store: Store, listener: Progress, interrupt: Interrupt | None = None
    ) -> dict[int, Share]:
        """What each of the jobs at these places has of their training; where it fails they are trained one by one."""
        requests = {place: self.jobs[place].request for place in places}
        try:
            return train_together(requests, self.registry, store, listener, self.workplace, interrupt)
        except FAULTS_OF_ALL:
            raise
        except Exception:  # noqa: BLE001 - the plugin border: what fails here fails again in the job, and is told there
            return {}

    def by_processes(self, n_processes: int) -> Iterator[Ended]:
        """By processes of this machine; this one hands out the jobs and listens."""
        pieces = self.pieces
        waiting, under_way = deque(range(len(pieces))), dict[int, list[int]]()
        try:
            with deferred() as interrupt, Crew(n_processes, self._in_a_process, self.store.closed) as hands:
                while waiting or hands.n_pieces:
                    if interrupt.is_asked:
                        raise self._interrupted(f"{len(under_way)} of them")
                    while waiting and hands.has_room:
                        number = waiting.popleft()
                        under_way[number] = list(pieces[number])
                        hands.hand(number)
                    for number, told in hands.hear(LISTEN_SECONDS):
                        for ended in self._hear(told, under_way[number]):
                            under_way[number].remove(ended.index)
                            yield self._count(ended, self._left_after(ended), n_processes)
                        if isinstance(told, (Done, Died)):
                            del under_way[number]
        except KeyboardInterrupt:  # asked for twice
            raise self._interrupted(f"{len(under_way)} of them") from None

    def _hear(self, told: object, places: Sequence[int]) -> list[Ended]:
        """Takes in what a process tells of the jobs at these places; returns those that have ended by it."""
        match told:
            case Begun(index):
                self.progress.begins(self.jobs[index], len(self.done), len(self.jobs))
            case Heard(name, words):
                getattr(self.progress.run, name)(*words)
            case Warned() if told not in self.warned:
                self.warned.add(told)
                warnings.showwarning(told.message, told.category, told.file, told.line)
            case Outcome(index, result, reason, seconds):
                return [Ended(index, self.jobs[index], result, reason, seconds)]
            case Done(fault) if fault is not None:
                raise fault
            case Died():
                return [Ended(index, self.jobs[index], None, str(told), 0.0) for index in places]
        return []

    def _in_a_process(self, number: int, line: Line) -> None:
        """Carries out a piece, in a process with a connection of its own to the store."""
        places, store, listener = self.pieces[number], Store(self.store.path.parent), Teller(line)
        try:
            line.tell(Begun(places[0]))
            shares = self._train_together(places, store, listener, line) if len(places) > 1 else {}
            for index in places:
                if index != places[0]:
                    line.tell(Begun(index))
                job, share = self.jobs[index], shares.get(index)
                ended = _carry_out(index, job, self.registry, store, listener, self.workplace, line, share)
                line.tell(Outcome(index, ended.result, ended.reason, ended.seconds))
        finally:
            store.close()

    def _left_after(self, ended: Ended) -> list[Job]:
        """The jobs that are not done when this one is."""
        done = {each.index for each in (*self.done, ended)}
        return [job for index, job in enumerate(self.jobs) if index not in done]

    def at_once(self) -> Iterator[Ended]:
        """A thread a job, as many as the workplace wants: they plan and store, the training is done elsewhere."""
        waiting, running = deque(enumerate(self.jobs)), dict[Future[Ended], Job]()
        n_at_once = min(self.workplace.n_runs_at_once, len(self.jobs))
        with deferred() as interrupt, ThreadPoolExecutor(n_at_once) as pool:
            try:
                while waiting or running:
                    while waiting and len(running) < n_at_once:
                        index, job = waiting.popleft()
                        self.progress.begins(job, len(self.done), len(self.jobs))
                        running[pool.submit(self._in_a_thread, index, job, interrupt)] = job
                    for future in wait(running, return_when=FIRST_COMPLETED).done:
                        del running[future]
                        left = [*running.values(), *(job for _, job in waiting)]
                        yield self._count(future.result(), left, n_at_once)
                    interrupt.check()
            except (RunInterrupted, KeyboardInterrupt):
                raise self._interrupted(f"{len(running) + 1} of them") from None
            finally:
                interrupt.demand()  # whatever ends the series ends its threads

    def _in_a_thread(self, index: int, job: Job, interrupt: Interrupt) -> Ended:
        """A job with a connection of its own to the store: SQLite's belong to their threads."""
        store = Store(self.store.path.parent)
        try:
            return _carry_out(index, job, self.registry, store, self.progress.run, self.workplace, interrupt)
        finally:
            store.close()

    def _count(self, ended: Ended, left: Sequence[Job], n_at_once: int) -> Ended:
        self.done.append(ended)
        seconds = seconds_left(self.done, left)
        self.progress.ended(ended, seconds and seconds / n_at_once)
        return ended

    def _interrupted(self, where: str) -> RunInterrupted:
        return RunInterrupted(
            f"interrupted in {where}, {len(self.done)} of {len(self.jobs)} runs done; all finished trials are stored: "
            "the same command goes on from there"
        )


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


def _carry_out(
    index: int,
    job: Job,
    registry: Registry,
    store: Store,
    progress: Progress,
    workplace: Workplace,
    interrupt: Interrupt | None = None,
    share: Share | None = None,
) -> Ended:
    """Runs a job. A fault of the store or the workplace would be every job's, and ends the series."""
    started = time.perf_counter() - (share.seconds if share else 0.0)
    result, reason = None, ""
    try:
        result = execute(job.request, registry, store, progress, workplace, interrupt, share)
    except FAULTS_OF_ALL:
        raise
    except CapbenchError as error:
        reason = str(error)
    except Exception as error:  # noqa: BLE001 - the plugin border: one pair's fault is not the others'
        reason = f"{type(error).__name__}: {error}"
    return Ended(index, job, result, " ".join(reason.split()), time.perf_counter() - started)
