"""Opening the backend that a compute target names, before anything is trained or written."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Self

import torch

from capbench.documents.result import Machine
from capbench.engine.devices import resolve_device, this_machine
from capbench.errors import ClusterUnavailable
from capbench.executors.executor import Backend, Executor
from capbench.executors.local import LocalExecutor
from capbench.executors.pool_worker import can_be_sent
from capbench.executors.target import ComputeTarget
from capbench.executors.worker_pool import WorkerPool, pool_size
from capbench.registry.settings import Configured


@dataclass(frozen=True)
class ThisProcess:
    """One device of this machine, on which this process trains."""

    device: torch.device
    n_parallel_runs: int = 1
    n_free: int = 1

    @property
    def machine(self) -> Machine:
        """This process and its device."""
        return this_machine(self.device)

    def prepare(self, plugins: Iterable[Configured[Any]]) -> None:
        """Nothing to do: what is loaded here is used here."""

    def executor(self, trial_timeout: float) -> Executor:
        """Trains in this process."""
        return LocalExecutor(self.device, trial_timeout)

    def kill(self) -> None:
        """Nothing to do: there are no workers."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...


def open_backend(target: ComputeTarget) -> Backend:
    """This process, or the Ray cluster at an address; raises at once where the target is not available."""
    return _open_cluster(target) if target.executor == "ray" else ThisProcess(resolve_device(target.device))


def open_pool_backend(
    target: ComputeTarget,
    n_jobs: int,
    plugins: Sequence[Configured[Any]],
    fork_scope: AbstractContextManager[None] | None = None,
) -> Backend:
    """The backend for so many parallel units of work: on a CPU a worker pool, where that is faster than this process.

    Workers are forked inside `fork_scope`, in which everything is closed that must not be inherited. Plugins whose
    classes cannot be pickled, because they were not defined in a module, train in this process.
    """
    if target.executor == "local":
        device = resolve_device(target.device)
        size = pool_size(n_jobs, device)
        if size > 1 and all(map(can_be_sent, dict.fromkeys(each.plugin for each in plugins))):
            with fork_scope or nullcontext():
                return WorkerPool(device, size)
    return open_backend(target)


def _open_cluster(target: ComputeTarget) -> Backend:
    try:
        from capbench.executors.ray.cluster import open_cluster
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        raise ClusterUnavailable(
            "--executor ray needs Ray, which is not installed here; pip install 'capbench[ray]'"
        ) from error
    return open_cluster(target)
