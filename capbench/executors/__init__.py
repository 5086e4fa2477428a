"""Executors: where lane groups run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from capbench.engine.cost import Cost
from capbench.engine.lanes import LaneGroup
from capbench.engine.train import OnProgress, OnTrial


class Executor(Protocol):
    """Runs lane groups and reports each trial as it ends."""

    def run(self, groups: Iterable[LaneGroup], on_trial: OnTrial, on_progress: OnProgress) -> Cost:
        """Runs all groups. A group that fails costs its own trials, never the others."""
        ...
