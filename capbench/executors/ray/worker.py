"""A worker of a Ray cluster: checks that it has the driver's plugins, runs trial groups, and reports on them."""

from __future__ import annotations

import os
import pickle
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import ray
import torch

from capbench.documents.result import Trial, Worker, WorkerPlugin
from capbench.engine.cost import Cost
from capbench.engine.devices import this_machine
from capbench.engine.lane_program import keep_programs
from capbench.engine.memory import share_device, share_memory
from capbench.engine.trials import TrialGroup
from capbench.errors import DeviceFailed
from capbench.executors.in_flight import GroupReport
from capbench.executors.local import LocalExecutor
from capbench.executors.ray.requirements import Requirements, check_requirements
from capbench.store.store import home

REPORT_SECONDS = 2.0
"""Time between two reports on a group that is still training."""


@dataclass(frozen=True)
class RayGroup:
    """A trial group on its way to a worker, with everything that decides how it is run."""

    box: str
    requirements: Requirements
    group: bytes
    """Pickled separately: it can only be read where its plugins are, which is checked first."""
    device: str
    threads: int
    gpus: float
    trial_timeout: float


def check_node(requirements: Requirements) -> str:
    """Raises where this node lacks what is required; run on every node before the first group."""
    node = this_node()
    check_requirements(node, requirements)
    return node


def run_group(message: RayGroup, mailbox: Any) -> GroupReport:
    """Runs a group to its end; the local executor handles memory, time limits and faults."""
    check_requirements(this_node(), message.requirements)
    group: TrialGroup = pickle.loads(message.group)
    device = torch.device(message.device)
    torch.set_num_threads(message.threads)
    keep_programs(home() / "compiled")  # for the other workers of this node, and for later runs
    share_memory(_n_workers(device, message.threads, message.gpus))
    if device.type == "cuda" and message.gpus < 1:
        share_device(message.gpus)
    reporter = Reporter(message, mailbox, device)
    executor = LocalExecutor(device, message.trial_timeout)
    try:
        cost = executor.run([group], reporter.keep, reporter.report_progress)
    except DeviceFailed:
        os._exit(1)  # a new process can use the device again; the driver retries the group, then its halves
    return reporter.report(0, 0, cost=cost)


def slots_on(resources: Mapping[str, float], device: torch.device, threads: int, gpus: float) -> int:
    """How many groups a node with these resources runs at once."""
    slots = int(resources.get("CPU", 0) / threads)
    # Ray keeps resources in ten-thousandths, and 3 × 0.3333 must fit on one GPU.
    on_gpus = int(resources.get("GPU", 0)) * int(1 / gpus + 1e-9)
    return min(slots, on_gpus) if device.type == "cuda" else slots


@cache
def _n_workers(device: torch.device, threads: int, gpus: float) -> int:
    """How many groups this node runs at once: each gets its share of the memory."""
    here = ray.get_runtime_context().get_node_id()
    nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    return max([1, *(slots_on(node["Resources"], device, threads, gpus) for node in nodes if node["NodeID"] == here)])


def this_node() -> str:
    """The cluster's id of this node, shortened; results are published, so its host name is not used."""
    return str(ray.get_runtime_context().get_node_id())[:12]


class Mailbox:
    """An actor that keeps early reports of workers until the driver reads them.

    Losing its content costs nothing but time: a group's last report repeats all trials.
    """

    def __init__(self) -> None:
        self._boxes: dict[str, list[bytes]] = defaultdict(list)

    def put(self, box: str, report: bytes) -> None:
        """Keeps a worker's report on the group of that box."""
        self._boxes[box].append(report)

    def take(self, boxes: Iterable[str]) -> dict[str, list[bytes]]:
        """Empties these boxes and returns what was in them."""
        return {box: self._boxes.pop(box) for box in boxes if box in self._boxes}


class Reporter:
    """Collects the trials of a group, and sends them to the mailbox from time to time."""

    def __init__(self, message: RayGroup, mailbox: Any, device: torch.device) -> None:
        self._box, self._mailbox = message.box, mailbox
        self._worker = _this_worker(message.requirements, device, message.threads)
        self._trials: list[Trial] = []
        self._n_sent = 0
        self._sent_at = time.monotonic()

    def keep(self, trials: Sequence[Trial]) -> None:
        """Keeps trials that have ended for the next report."""
        self._trials.extend(trials)

    def report_progress(self, step: int, n_alive: int) -> None:
        """Sends a report if the last one is long ago.

        It does not wait for an answer: Ray gives the CPU of a waiting task to another one, in another process.
        """
        if time.monotonic() - self._sent_at < REPORT_SECONDS:
            return
        self._sent_at = time.monotonic()
        self._mailbox.put.remote(self._box, pickle.dumps(self.report(step, n_alive, since=self._n_sent)))
        self._n_sent = len(self._trials)

    def report(self, step: int, n_alive: int, cost: Cost | None = None, since: int = 0) -> GroupReport:
        """The group's progress; the last report, with the cost, repeats all trials."""
        return GroupReport(tuple(self._trials[since:]), step, n_alive, self._worker, cost)


@cache
def _this_worker(requirements: Requirements, device: torch.device, threads: int) -> Worker:
    """This process as the result document describes it."""
    del threads  # part of the cache key only
    plugins = tuple(
        WorkerPlugin(name=each.name, plugin=f"{each.distribution} {each.version}", code_hash=each.code_hash)
        for each in requirements.plugins
    )
    return Worker(**this_machine(device).model_dump(), node=this_node(), plugins=plugins)
