"""Interfaces: Executor runs trial groups; Backend provides executors to runs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Protocol, Self

if TYPE_CHECKING:
    import torch

    from capbench.documents.result import Machine, Worker
    from capbench.engine.cost import Cost
    from capbench.engine.evaluation import OnProgress, OnTrials
    from capbench.engine.trials import TrialGroup
    from capbench.registry.settings import Configured


class Executor(Protocol):
    """Runs the trial groups of one run and reports the trials as they end."""

    @property
    def workers(self) -> tuple[Worker, ...]:
        """The cluster workers that have trained so far; none where this machine trains."""
        ...

    def run(self, groups: Iterable[TrialGroup], on_trials: OnTrials, on_progress: OnProgress) -> Cost:
        """Runs all groups. A group that fails costs its own trials, never those of other groups."""
        ...


class Backend(Protocol):
    """Where runs are computed: this process, a worker pool, or a Ray cluster. Its exit ends its workers."""

    @property
    def device(self) -> torch.device:
        """The device that groups run on, wherever that is."""
        ...

    @property
    def machine(self) -> Machine:
        """Versions and hardware of this process, with the device and threads that groups run with."""
        ...

    @property
    def n_parallel_runs(self) -> int:
        """How many runs of a study should be in progress at the same time."""
        ...

    @property
    def n_free(self) -> int:
        """Free slots: a run's trials are split into this many groups."""
        ...

    def prepare(self, plugins: Iterable[Configured[Any]]) -> None:
        """Checks that workers have these plugins as they are here, before they are used."""
        ...

    def executor(self, trial_timeout: float) -> Executor:
        """An executor for one run."""
        ...

    def kill(self) -> None:
        """Ends all workers of this machine at once; their groups are lost."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...
