"""Live progress of a series of runs on stderr: a bar and the time left in a terminal, a line a run elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from capbench.measurement import Progress as Listener
from capbench.report.result_text import brief_capacity
from capbench.report.text import plain
from capbench.results import Trial
from capbench.series import Ended, Job, SeriesProgress


@contextmanager
def show_series() -> Iterator[SeriesProgress]:
    """A listener for a series, drawn while it lasts."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield SeriesLines(console)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[state]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        yield SeriesBar(console, progress)


class SeriesLines:
    """A line a run, for logs."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._n_ended, self._n_jobs = 0, 0

    @property
    def run(self) -> Listener:
        """Says nothing of what happens within a run."""
        return Silent()

    def begins(self, job: Job, n_before: int, n_jobs: int) -> None:
        """Remembers how many there are; the line comes when the run has ended."""
        self._n_jobs = n_jobs

    def ended(self, ended: Ended, seconds_left: float | None) -> None:
        """Says what came out, how long it took, and how much is left."""
        self._n_ended += 1
        line = f"[{self._n_ended}/{self._n_jobs}] {_outcome(ended)}{_left(seconds_left)}"
        self._console.print(line, highlight=False, markup=False, soft_wrap=True)


class SeriesBar:
    """A bar over all runs, with the trials of the present one beside it; finished runs stay above as lines."""

    def __init__(self, console: Console, progress: Progress) -> None:
        self._console = console
        self._bar = progress
        self._task: TaskID | None = None
        self._left = ""

    @property
    def run(self) -> Listener:
        """Shows the trials of the present run beside the bar."""
        return Beside(self._show)

    def begins(self, job: Job, n_before: int, n_jobs: int) -> None:
        """Moves the bar."""
        if self._task is None:
            self._task = self._bar.add_task("", total=n_jobs, state="")
        self._bar.update(self._task, completed=n_before, description=plain(job.label) + self._left, state="runs")

    def ended(self, ended: Ended, seconds_left: float | None) -> None:
        """Leaves a line above the bar."""
        self._left = _left(seconds_left)
        self._console.print(_outcome(ended), highlight=False, markup=False)

    def _show(self, state: str) -> None:
        assert self._task is not None
        self._bar.update(self._task, state=state)


class Silent:
    """Hears of a run and says nothing."""

    def plan(self, solver: str, n_trials: int, n_reused: int) -> None:
        """Nothing: a line a round would drown the log of a series."""

    def trained(self, trial: Trial) -> None:
        """Nothing, for the same reason."""

    def step(self, step: int, steps: int, n_alive: int) -> None:
        """Nothing, for the same reason."""


class Beside:
    """Words on the present run for the end of a bar."""

    def __init__(self, show: Callable[[str], None]) -> None:
        self._show = show

    def plan(self, solver: str, n_trials: int, n_reused: int) -> None:
        """A round begins."""
        self._show(f"runs; {solver}: {n_trials - n_reused} trials to train")

    def trained(self, trial: Trial) -> None:
        """Nothing: the steps tell more."""

    def step(self, step: int, steps: int, n_alive: int) -> None:
        """Training goes on."""
        self._show(f"runs; {n_alive} trials training, step {step}/{steps}")


def duration(seconds: float) -> str:
    """A time as people say it: 40 s, 12 min, 1 h 05 min."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02} min"


def _left(seconds: float | None) -> str:
    return f"; about {duration(seconds)} left" if seconds else ""


def _outcome(ended: Ended) -> str:
    if ended.result is None:
        return plain(f"{ended.job.label}: failed: {ended.reason}")
    cost = f"{duration(ended.seconds)}" if ended.has_trained else "stored"
    return plain(f"{ended.job.label}: {brief_capacity(ended.result)} ({cost})")
