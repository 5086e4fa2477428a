"""Progress displays on stderr, for one run and for a study: a bar in a terminal, log lines elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from capbench.documents.result import Trial, TrialStatus
from capbench.documents.text import plain
from capbench.measure.session import NullListener, RunListener
from capbench.report.result_text import brief_capacity
from capbench.studies.jobs import FinishedJob, Job, StudyListener


@contextmanager
def show_progress() -> Iterator[RunListener]:
    """A listener for one run that displays its progress until the context ends."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield RunLog(console)
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
            f"{solver}, round {self._round}", total=n_trials, completed=n_reused, state=""
        )

    def trained(self, trial: Trial) -> None:
        """Advances the bar by one trial."""
        self._held += trial.status is TrialStatus.HELD
        assert self._task is not None
        self._progress.update(self._task, advance=1)

    def step(self, step: int, steps: int, n_alive: int) -> None:
        """Shows the training step next to the bar."""
        assert self._task is not None
        self._progress.update(self._task, state=f"trials; {self._held} held, {n_alive} training, step {step}/{steps}")


class RunLog:
    """One log line per round."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._round = 0

    def plan(self, solver: str, n_trials: int, n_reused: int) -> None:
        """Prints how many trials the round has, and how many of them are stored."""
        self._round += 1
        stored = f", {n_reused} of them stored" if n_reused else ""
        self._console.print(f"{solver}, round {self._round}: {n_trials} trials{stored}", highlight=False)

    def trained(self, trial: Trial) -> None:
        """Prints nothing: one line per trial would flood the log."""

    def step(self, step: int, steps: int, n_alive: int) -> None:
        """Prints nothing, for the same reason."""


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
        return CurrentRunStatus(self._show)

    def started(self, job: Job, n_finished: int, n_jobs: int) -> None:
        """Moves the bar."""
        if self._task is None:
            self._task = self._bar.add_task("", total=n_jobs, state="")
        self._bar.update(self._task, completed=n_finished, description=plain(job.label) + self._left, state="runs")

    def finished(self, finished: FinishedJob, seconds_left: float | None) -> None:
        """Prints a line above the bar."""
        self._left = _left(seconds_left)
        self._console.print(_finished_text(finished), highlight=False, markup=False)

    def _show(self, state: str) -> None:
        assert self._task is not None
        self._bar.update(self._task, state=state)


class StudyLog:
    """One log line per finished run."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._n_finished, self._n_jobs = 0, 0

    @property
    def run(self) -> RunListener:
        """Shows nothing within a run: one line per round would flood the log of a study."""
        return NullListener()

    def started(self, job: Job, n_finished: int, n_jobs: int) -> None:
        """Keeps the number of jobs for the lines of finished runs."""
        self._n_jobs = n_jobs

    def finished(self, finished: FinishedJob, seconds_left: float | None) -> None:
        """Prints the answer of the run, how long it took, and the time left."""
        self._n_finished += 1
        line = f"[{self._n_finished}/{self._n_jobs}] {_finished_text(finished)}{_left(seconds_left)}"
        self._console.print(line, highlight=False, markup=False, soft_wrap=True)


class CurrentRunStatus:
    """Passes a one-line status of the current run to a display."""

    def __init__(self, show: Callable[[str], None]) -> None:
        self._show = show

    def plan(self, solver: str, n_trials: int, n_reused: int) -> None:
        """Shows how many trials the round trains."""
        self._show(f"runs; {solver}: {n_trials - n_reused} trials to train")

    def trained(self, trial: Trial) -> None:
        """Shows nothing: the steps follow at once."""

    def step(self, step: int, steps: int, n_alive: int) -> None:
        """Shows the training step."""
        self._show(f"runs; {n_alive} trials training, step {step}/{steps}")


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
