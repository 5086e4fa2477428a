"""Progress displays on stderr, for one run and for a study: a bar in a terminal, log lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from capbench.documents.result import Trial, TrialStatus
from capbench.documents.text import plain, pluralize
from capbench.measure.session import NullListener, RunListener
from capbench.report.result_text import brief_capacity
from capbench.studies.jobs import FinishedJob, Job, StudyListener

HEARTBEAT_SECONDS = 15.0
"""Time between two lines of a log while trials are training."""


@contextmanager
def show_progress(is_quiet: bool = False) -> Iterator[RunListener]:
    """A listener for one run that displays its progress until the context ends; a quiet one prints no log lines."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield NullListener() if is_quiet else RunLog(console)
        return
    with _progress_bar(console) as progress:
        yield RunBar(progress)


@contextmanager
def show_study() -> Iterator[StudyListener]:
    """A listener for a study that displays its progress until the context ends."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield StudyLog(console)
        return
    with _progress_bar(console) as progress:
        yield StudyBar(console, progress)


def _progress_bar(console: Console) -> Progress:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[state]}"),
        TimeElapsedColumn(),
    )
    return Progress(*columns, console=console, transient=True)


class RunBar:
    """One bar per round: finished trials out of planned trials."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._round = 0
        self._held = 0
        self._task: TaskID | None = None

    def plan(self, solver: str, n_trials: int, n_reused: int) -> None:
        """Starts a new bar, with the stored trials already counted."""
        self._round += 1
        self._held = 0
        if self._task is not None:
            self._progress.remove_task(self._task)
        self._task = self._progress.add_task(
            f"{solver}, round {self._round}", total=n_trials, completed=n_reused, state="trials"
        )

    def compiling(self) -> None:
        """Says that the step is being compiled."""
        assert self._task is not None
        self._progress.update(self._task, state="trials; compiling the training step")

    def trained(self, trial: Trial) -> None:
        """Advances the bar by one trial."""
        self._held += trial.status is TrialStatus.HELD
        assert self._task is not None
        self._progress.update(self._task, advance=1)

    def step(self, step: int, steps: int, n_alive: int) -> None:
        """Shows the training step next to the bar."""
        assert self._task is not None
        self._progress.update(self._task, state=f"trials; {self._held} held, {n_alive} training, step {step}/{steps}")


class Heartbeat:
    """Prints a line only where the last one is some time ago."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._last = time.monotonic()

    def print(self, line: str) -> None:
        """Prints a line."""
        self._last = time.monotonic()
        self._console.print(line, highlight=False, markup=False, soft_wrap=True)

    def beat(self, line: Callable[[], str]) -> None:
        """Prints a line if there has been none for some time."""
        if time.monotonic() - self._last >= HEARTBEAT_SECONDS:
            self.print(line())


class RunLog:
    """One log line per round, and a heartbeat while it trains."""

    def __init__(self, console: Console) -> None:
        self._heartbeat = Heartbeat(console)
        self._round = 0
        self._n_held, self._n_ended = 0, 0
        self._has_compiled = False

    def plan(self, solver: str, n_trials: int, n_reused: int) -> None:
        """Prints how many trials the round has, and how many of them are stored."""
        self._round += 1
        self._n_held, self._n_ended = 0, 0
        stored = f", {n_reused} of them stored" if n_reused else ""
        self._heartbeat.print(f"{solver}, round {self._round}: {pluralize(n_trials, 'trial')}{stored}")

    def compiling(self) -> None:
        """Says once that the step is being compiled: later rounds find the program."""
        if not self._has_compiled:
            self._heartbeat.print("compiling the training step")
        self._has_compiled = True

    def trained(self, trial: Trial) -> None:
        """Counts the trial; one line per trial would flood the log."""
        self._n_ended += 1
        self._n_held += trial.status is TrialStatus.HELD

    def step(self, step: int, steps: int, n_alive: int) -> None:
        """Prints a heartbeat."""
        ended = f"{self._n_ended} ended, {self._n_held} of them held"
        self._heartbeat.beat(lambda: f"step {step:,} of {steps:,}: {pluralize(n_alive, 'trial')} training, {ended}")


class StudyBar:
    """A bar over all runs, with the trials of the current run next to it; finished runs stay above as lines."""

    def __init__(self, console: Console, progress: Progress) -> None:
        self._console = console
        self._bar = progress
        self._task: TaskID | None = None
        self._left = ""

    @property
    def run(self) -> RunListener:
        """Shows the trials of the current run next to the bar."""
        return CurrentRunStatus(lambda state: self._show(f"runs; {state}"))

    def started(self, job: Job, n_finished: int, n_jobs: int) -> None:
        """Moves the bar."""
        if self._task is None:
            self._task = self._bar.add_task("", total=n_jobs, state="")
        self._bar.update(
            self._task, total=n_jobs, completed=n_finished, description=plain(job.label) + self._left, state="runs"
        )

    def finished(self, finished: FinishedJob, seconds_left: float | None) -> None:
        """Prints a line above the bar."""
        self._left = _left(seconds_left)
        self._console.print(_finished_text(finished), highlight=False, markup=False)

    def _show(self, state: str) -> None:
        assert self._task is not None
        self._bar.update(self._task, state=state)


class StudyLog:
    """One log line per finished run, and a heartbeat between them."""

    def __init__(self, console: Console) -> None:
        self._heartbeat = Heartbeat(console)
        self._n_finished, self._n_jobs = 0, 0
        self._current = ""

    @property
    def run(self) -> RunListener:
        """Prints a heartbeat within a run: one line per round would flood the log of a study."""
        return CurrentRunStatus(lambda state: self._heartbeat.beat(lambda: f"{self._current}: {state}"))

    def started(self, job: Job, n_finished: int, n_jobs: int) -> None:
        """Keeps what later lines say: the number of jobs, and the one that started last."""
        self._n_finished, self._n_jobs, self._current = n_finished, n_jobs, plain(job.label)

    def finished(self, finished: FinishedJob, seconds_left: float | None) -> None:
        """Prints the answer of the run, how long it took, and the time left."""
        self._n_finished += 1
        line = f"[{self._n_finished}/{self._n_jobs}] {_finished_text(finished)}{_left(seconds_left)}"
        self._heartbeat.print(line)


class CurrentRunStatus:
    """Passes a one-line status of the current run to a display."""

    def __init__(self, show: Callable[[str], None]) -> None:
        self._show = show

    def plan(self, solver: str, n_trials: int, n_reused: int) -> None:
        """Shows how many trials the round trains."""
        self._show(f"{solver}, {pluralize(n_trials - n_reused, 'trial')} to train")

    def compiling(self) -> None:
        """Says that the step is being compiled."""
        self._show("compiling the training step")

    def trained(self, trial: Trial) -> None:
        """Shows nothing: the steps follow at once."""

    def step(self, step: int, steps: int, n_alive: int) -> None:
        """Shows the training step."""
        self._show(f"{pluralize(n_alive, 'trial')} training, step {step:,} of {steps:,}")


def duration(seconds: float) -> str:
    """A time in readable units: 40 s, 12 min, 1 h 05 min."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02} min"


def _left(seconds: float | None) -> str:
    return f"; about {duration(seconds)} left" if seconds else ""


def _finished_text(finished: FinishedJob) -> str:
    if finished.result is None:
        return plain(f"{finished.job.label}: failed: {finished.reason}")
    cost = f"{duration(finished.seconds)}" if finished.has_trained else "stored"
    return plain(f"{finished.job.label}: {brief_capacity(finished.result)} ({cost})")
