"""A worker of a Ray cluster: a lane group is unpacked, checked and run here as this process would run its own."""

from __future__ import annotations

import pickle
import time
from dataclasses import dataclass
from functools import cache
from typing import Any

import ray
import torch
from torch import Tensor

from capbench.engine.compiling import Compiling
from capbench.engine.cost import Cost
from capbench.engine.lanes import LaneGroup
from capbench.engine.machine import this_machine
from capbench.executors.local import LocalExecutor
from capbench.executors.needs import Needs, check_needs
from capbench.results import Trial, Worker, WorkerPlugin

REPORT_SECONDS = 2.0
"""Between two reports on a group that is still training."""


@dataclass(frozen=True)
class Parcel:
    """A lane group on its way to a worker, with all that decides how it is run."""

    box: str
    needs: Needs
    group: bytes
    """Pickled apart: it can be read only where its plugins are, and that is checked first."""
    device: str
    threads: int
    gpus: float
    compiling: Compiling
    trial_timeout: float


@dataclass(frozen=True)
class Report:
    """How a group stands: the trials that have ended, all of them in the last report, and who trains it."""

    trials: tuple[Trial, ...]
    step: int
    n_alive: int
    worker: Worker
    cost: Cost


def take_stock(needs: Needs) -> str:
    """Whether this node has what is needed; run on every node before the first group."""
    node = this_node()
    check_needs(node, needs)
    return node


def work(parcel: Parcel, mailbox: Any) -> Report:
    """Runs a group to its end by the local executor: memory, time limits and faults are its business."""
    check_needs(this_node(), parcel.needs)
    group: LaneGroup = pickle.loads(parcel.group)
    device = torch.device(parcel.device)
    torch.set_num_threads(parcel.threads)
    if device.type == "cuda" and parcel.gpus < 1:
        torch.cuda.set_per_process_memory_fraction(parcel.gpus)
    reporter = Reporter(parcel, mailbox, device)
    cost = LocalExecutor(device, parcel.compiling, parcel.trial_timeout).run([group], reporter.ended, reporter.moved)
    return reporter.report(0, 0, cost)


def this_node() -> str:
    """The cluster's id of the node, short; its name is nobody's business where results are published."""
    return str(ray.get_runtime_context().get_node_id())[:12]


class Reporter:
    """Collects what the executor says, and sends it ahead now and then."""

    def __init__(self, parcel: Parcel, mailbox: Any, device: torch.device) -> None:
        self._box, self._mailbox = parcel.box, mailbox
        self._worker = _worker(parcel.needs, device, parcel.threads)
        self._trials: list[Trial] = []
        self._n_sent = 0
        self._sent = time.monotonic()

    def ended(self, trial: Trial, _: dict[str, Tensor]) -> None:
        """A trial has ended; its weights stay here."""
        self._trials.append(trial)

    def moved(self, step: int, n_alive: int) -> None:
        """Training goes on: from time to time the driver is told.

        Nobody waits for an answer: Ray gives the CPU of a task that waits to the next one, in another process.
        """
        if time.monotonic() - self._sent < REPORT_SECONDS:
            return
        self._sent = time.monotonic()
        self._mailbox.put.remote(self._box, pickle.dumps(self.report(step, n_alive, Cost(), since=self._n_sent)))
        self._n_sent = len(self._trials)

    def report(self, step: int, n_alive: int, cost: Cost, since: int = 0) -> Report:
        """How the group stands."""
        return Report(tuple(self._trials[since:]), step, n_alive, self._worker, cost)


@cache
def _worker(needs: Needs, device: torch.device, threads: int) -> Worker:
    """This process in the words of the result document."""
    del threads  # torch knows them; they are named so that another number makes another worker
    plugins = tuple(
        WorkerPlugin(name=need.name, plugin=f"{need.distribution} {need.version}", code_hash=need.code_hash)
        for need in needs.plugins
    )
    return Worker(**this_machine(device).model_dump(), node=this_node(), plugins=plugins)
