"""Live progress on stderr: a bar in a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from capbench.measurement import Progress as Listener
from capbench.results import Trial, TrialStatus


@contextmanager
def show_progress() -> Iterator[Listener]:
    """A listener for the runner, drawn while the run lasts."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield Lines(console)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[state]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        yield Bar(progress)


class Bar:
    """A bar a round: trials ended of trials planned."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._round = 0
        self._held = 0
        self._task: TaskID | None = None

    def plan(self, solver: str, n_trials: int, n_reused: int) -> None:
        """A new bar, with what the store had already filled in."""
        self._round += 1
        self._held = 0
        if self._task is not None:
            self._progress.remove_task(self._task)
        self._task = self._progress.add_task(
            f"{solver}, round {self._round}", total=n_trials, completed=n_reused, state=""
        )

    def trained(self, trial: Trial) -> None:
        """One trial further."""
        self._held += trial.status is TrialStatus.HELD
        assert self._task is not None
        self._progress.update(self._task, advance=1)

    def step(self, step: int, steps: int, n_alive: int) -> None:
        """Shows how far training has come."""
        assert self._task is not None
        self._progress.update(self._task, state=f"trials; {self._held} held, {n_alive} training, step {step}/{steps}")


class Lines:
    """A line a round, for logs."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._round = 0

    def plan(self, solver: str, n_trials: int, n_reused: int) -> None:
        """Says what the round will do."""
        self._round += 1
        stored = f", {n_reused} of them stored" if n_reused else ""
        self._console.print(f"{solver}, round {self._round}: {n_trials} trials{stored}", highlight=False)

    def trained(self, trial: Trial) -> None:
        """Nothing: a line a trial would drown the log."""

    def step(self, step: int, steps: int, n_alive: int) -> None:
        """Nothing, for the same reason."""
