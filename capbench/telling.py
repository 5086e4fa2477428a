"""Telling: what a process says of the runs that it carries out for another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from capbench.crew import Line
from capbench.results import Result, Trial


@dataclass(frozen=True)
class Heard:
    """What the runner tells of a job that is under way in another process."""

    name: str
    words: tuple[Any, ...]


@dataclass(frozen=True)
class Begun:
    """A job has begun in another process."""

    index: int


@dataclass(frozen=True)
class Outcome:
    """How a job went in another process."""

    index: int
    result: Result | None
    reason: str
    seconds: float


class Teller:
    """A progress listener in a process of a crew, which passes on what it hears."""

    def __init__(self, line: Line) -> None:
        self._line = line

    def plan(self, solver: str, n_trials: int, n_reused: int) -> None:
        """A round of a solver's trials begins."""
        self._line.tell(Heard("plan", (solver, n_trials, n_reused)))

    def trained(self, trial: Trial) -> None:
        """A trial has ended."""
        self._line.tell(Heard("trained", (trial,)))

    def step(self, step: int, steps: int, n_alive: int) -> None:
        """Training goes on."""
        self._line.tell(Heard("step", (step, steps, n_alive)))
