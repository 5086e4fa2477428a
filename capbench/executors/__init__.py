"""Executors: where lane groups run. No torch here: a Ray cluster's mailbox imports this and needs none."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch

    from capbench.engine.compiling import Compiling
    from capbench.engine.cost import Cost
    from capbench.engine.lanes import LaneGroup
    from capbench.engine.train import OnProgress, OnTrial
    from capbench.results import Machine, Worker
    from capbench.settings import Configured


class Executor(Protocol):
    """Runs lane groups and reports each trial as it ends."""

    @property
    def workers(self) -> tuple[Worker, ...]:
        """Who else has trained for it so far; nobody where this process does."""
        ...

    def run(self, groups: Iterable[LaneGroup], on_trial: OnTrial, on_progress: OnProgress) -> Cost:
        """Runs all groups. A group that fails costs its own trials, never the others."""
        ...


class Workplace(Protocol):
    """What runs take their executors from: this machine, or a cluster."""

    @property
    def device(self) -> torch.device:
        """The device that groups run on, wherever that is."""
        ...

    @property
    def machine(self) -> Machine:
        """This process, with the device that groups run on."""
        ...

    @property
    def n_runs_at_once(self) -> int:
        """Runs of a series that are worth carrying out at the same time."""
        ...

    def prepare(self, plugins: Iterable[Configured[Any]]) -> None:
        """Makes sure that these plugins are there as they are here, before work with them starts."""
        ...

    def executor(self, compiling: Compiling, trial_timeout: float) -> Executor:
        """An executor for one run."""
        ...
