"""The workplace that is asked for: opened once, before anything is trained or written."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from capbench.engine.compiling import Compiling
from capbench.engine.devices import resolve_device
from capbench.engine.machine import this_machine
from capbench.errors import ClusterUnavailable
from capbench.executors import Executor, Workplace
from capbench.executors.local import LocalExecutor
from capbench.results import Machine
from capbench.settings import Configured
from capbench.where import Where


@dataclass(frozen=True)
class ThisMachine:
    """One device of this machine, trained on by this process."""

    device: torch.device
    n_runs_at_once: int = 1

    @property
    def machine(self) -> Machine:
        """This process and its device."""
        return this_machine(self.device)

    def prepare(self, plugins: Iterable[Configured[Any]]) -> None:
        """Nothing: what is loaded here is used here."""

    def executor(self, compiling: Compiling, trial_timeout: float) -> Executor:
        """Trains in this process."""
        return LocalExecutor(self.device, compiling, trial_timeout)


def open_workplace(where: Where) -> Workplace:
    """This machine, or the cluster at an address; what is not there is told at once."""
    where.check()
    return _open_cluster(where) if where.executor == "ray" else ThisMachine(resolve_device(where.device))


def _open_cluster(where: Where) -> Workplace:
    try:
        from capbench.executors.ray import open_cluster
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        raise ClusterUnavailable(
            "--executor ray needs Ray, which is not installed here; pip install 'capbench[ray]'"
        ) from error
    return open_cluster(where)
