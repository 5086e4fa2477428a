"""A Ray cluster as a backend: its slots, its nodes' requirements, and how trial groups are submitted to it."""

from __future__ import annotations

import os
import pickle
import re
import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self, TypeAlias

import ray
import torch
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from capbench.documents.result import Machine
from capbench.engine.devices import this_machine
from capbench.engine.trials import TrialGroup
from capbench.errors import ClusterUnavailable, DeviceUnavailable, UserError, WorkersDiffer
from capbench.executors.executor import Executor
from capbench.executors.in_flight import GroupError, GroupLost, GroupReport, Message, RemoteExecutor, ReservedSlots
from capbench.executors.ray.connection import connect
from capbench.executors.ray.requirements import Requirement, Requirements, requirements_of
from capbench.executors.ray.worker import REPORT_SECONDS, Mailbox, RayGroup, check_node, run_group, slots_on
from capbench.executors.target import ComputeTarget
from capbench.registry.settings import Configured

CHECK_SECONDS = 60.0
"""Timeout for the nodes' answers whether they meet the requirements; a slower one is checked with its first group."""
MAIL_SECONDS = 10.0
"""Timeout for an answer of the mailbox: early reports are not worth a longer wait."""
SLOT_COUNT_SECONDS = 5.0
"""Time between two counts of the cluster's slots."""
EMPTY_SECONDS = 60.0
"""How long a cluster may be without any slot before a run is ended."""
Ref: TypeAlias = "ray.ObjectRef[GroupReport]"
COLOUR = re.compile(r"\x1b\[[\d;]*m")
MOST_TEXT = 4000
HEAD = "node:__internal_head__"
"""Ray's resource that marks the head node."""


@dataclass(eq=False)
class RayTicket:
    """A submitted group: Ray's reference to its last report, and its box in the mailbox."""

    ref: Ref
    box: str
    read_at: float = field(default_factory=time.monotonic)
    """When it was submitted, or its box last read."""

    @property
    def may_have_mail(self) -> bool:
        """Whether as much time has passed as a worker waits between two reports."""
        return time.monotonic() - self.read_at > REPORT_SECONDS


def open_cluster(target: ComputeTarget) -> RayCluster:
    """Joins the cluster and chooses the device there."""
    connect(target.address)
    threads = threads_per_worker()
    device = _device(target, threads)
    return RayCluster(target, device, threads)


def threads_per_worker() -> int:
    """One, or OMP_NUM_THREADS: it affects the order of summation."""
    said = os.environ.get("OMP_NUM_THREADS", "")
    return max(1, int(said)) if said.isdecimal() else 1


class RayCluster(ReservedSlots):
    """A cluster that this process has joined. The threads of a study share it: its state is behind a lock."""

    def __init__(self, target: ComputeTarget, device: torch.device, threads: int) -> None:
        self._slots = Slots(target, device, threads)
        super().__init__(self._slots.count)  # groups are never queued in Ray, which keeps moving them between nodes
        self.target, self.device, self.threads = target, device, threads
        gpus = target.gpus if device.type == "cuda" else 0
        self._run_group: Any = ray.remote(run_group).options(
            name="capbench trial group", num_cpus=threads, num_gpus=gpus, max_retries=0
        )
        pinned = {HEAD: 0.001} if any(HEAD in node["Resources"] for node in _alive()) else {}
        self._mailbox: Any = ray.remote(Mailbox).options(num_cpus=0, resources=pinned).remote()
        self._check_lock = threading.Lock()
        self._checked: set[Requirement] = set()

    @property
    def machine(self) -> Machine:
        """This process, which trains nothing, with the device and the threads of a worker."""
        here = this_machine(torch.device("cpu"))
        there = {"device": str(self.device), "device_name": "see workers", "threads": self.threads}
        return here.model_copy(update=there)

    @property
    def n_parallel_runs(self) -> int:
        """One more than there are slots: while a run plans its next trials, no slot is idle."""
        return self._slots.count() + 1

    def executor(self, trial_timeout: float) -> Executor:
        """Trains the groups of one run on the cluster."""
        return RemoteExecutor(self, trial_timeout)

    def submit(self, group: TrialGroup, trial_timeout: float) -> RayTicket:
        """Sends a group to a reserved slot."""
        message = RayGroup(
            box=uuid.uuid4().hex,
            requirements=requirements_of(group.setup.plugins),
            group=pickle.dumps(replace(group)),  # without its cached keys
            device=str(self.device),
            threads=self.threads,
            gpus=self.target.gpus,
            trial_timeout=trial_timeout,
        )
        return RayTicket(self._run_group.remote(message, self._mailbox), message.box)

    def receive(self, tickets: Sequence[RayTicket], seconds: float) -> Iterator[tuple[RayTicket, Message]]:
        """Last reports of groups that have ended, and early ones from the mailbox."""
        ended = set(self._wait([ticket.ref for ticket in tickets], seconds))
        for ticket in tickets:
            if ticket.ref in ended:
                yield from self._end(ticket)
        waiting = [ticket for ticket in tickets if ticket.ref not in ended and ticket.may_have_mail]
        yield from self._read_mail(waiting)

    def cancel(self, tickets: Sequence[RayTicket]) -> Iterator[tuple[RayTicket, Message]]:
        """Cancels groups; unreported trials are retrained when needed."""
        for ticket in tickets:
            self.release()
            ray.cancel(ticket.ref)
        self._empty([ticket.box for ticket in tickets])
        return iter(())

    def kill(self) -> None:
        """Nothing to do: the workers are the cluster's."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def _wait(self, refs: list[Ref], seconds: float) -> list[Ref]:
        """The groups that have ended; waits at most `seconds`."""
        try:
            ended, _ = ray.wait(refs, timeout=seconds)
        except (ray.exceptions.RayError, ConnectionError) as error:
            raise ClusterUnavailable(
                f"the Ray cluster is gone: {error}; all finished trials are stored, and the same command continues"
            ) from error
        self._slots.count()  # raises where no node is left that could end any group
        return ended

    def _end(self, ticket: RayTicket) -> Iterator[tuple[RayTicket, Message]]:
        """The last message about a group; before a loss, what the mailbox has."""
        self.release()
        message = self._fetch(ticket.ref)
        if isinstance(message, GroupLost):
            yield from self._read_mail([ticket])
        elif ticket.may_have_mail:
            self._empty([ticket.box])
        yield ticket, message

    def _fetch(self, ref: Ref) -> Message:
        try:
            report: GroupReport = ray.get(ref)
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, UserError):
                return GroupError(error.cause)
            return GroupLost(COLOUR.sub("", str(error))[-MOST_TEXT:])
        except ray.exceptions.RayError as error:
            return GroupLost(f"{type(error).__name__}: {' '.join(str(error).split())}")
        return report

    def _read_mail(self, tickets: Sequence[RayTicket]) -> Iterator[tuple[RayTicket, Message]]:
        """Early reports of these groups; none where the mailbox does not answer."""
        if not tickets:
            return
        for ticket in tickets:
            ticket.read_at = time.monotonic()
        try:
            boxes = [ticket.box for ticket in tickets]
            mail: dict[str, list[bytes]] = ray.get(self._mailbox.take.remote(boxes), timeout=MAIL_SECONDS)
        except ray.exceptions.RayError:
            return
        for ticket in tickets:
            for report in mail.get(ticket.box, ()):
                yield ticket, pickle.loads(report)

    def _empty(self, boxes: Sequence[str]) -> None:
        """Empties boxes that will not be read."""
        if boxes:
            self._mailbox.take.remote(boxes)

    def prepare(self, plugins: Iterable[Configured[Any]]) -> None:
        """Raises where a node has another capbench or other plugins than this process; checks each plugin once."""
        requirements = requirements_of(plugins)
        with self._check_lock:
            if self._checked.issuperset(requirements.plugins):
                return
            checks = [(node, _start_check(node, requirements)) for node in self._slots.nodes()]
            done, _ = ray.wait([ref for _, ref in checks], num_returns=len(checks), timeout=CHECK_SECONDS)
            for node, ref in checks:
                if ref in done:
                    _raise_failed_check(node, ref)
            self._checked.update(requirements.plugins)


class Slots:
    """How many groups a cluster can run at once, counted anew every few seconds: nodes come and go."""

    def __init__(self, target: ComputeTarget, device: torch.device, threads: int) -> None:
        self._target, self._device, self._threads = target, device, threads
        self._count, self._counted_at, self._seen_at = 0, float("-inf"), time.monotonic()

    def nodes(self) -> list[str]:
        """Ids of the nodes that groups can run on."""
        return [node["NodeID"] for node in _alive() if self._on(node)]

    def count(self) -> int:
        """Slots of all nodes; raises ClusterUnavailable when there has been none for a while."""
        now = time.monotonic()
        if now - self._counted_at > SLOT_COUNT_SECONDS:
            self._count, self._counted_at = sum(self._on(node) for node in _alive()), now
        if self._count:
            self._seen_at = now
        elif now - self._seen_at > EMPTY_SECONDS:
            raise ClusterUnavailable(
                f"the Ray cluster has had no node for a trial group for {EMPTY_SECONDS:g} s; all finished trials are "
                "stored: start nodes and give the same command again"
            )
        return self._count

    def _on(self, node: dict[str, Any]) -> int:
        return slots_on(node["Resources"], self._device, self._threads, self._target.gpus)


def _device(target: ComputeTarget, threads: int) -> torch.device:
    """The device that is asked for, if a node of the cluster has it."""
    if target.device not in ("auto", "cpu", "cuda"):
        raise DeviceUnavailable(
            f"on a Ray cluster --device takes auto, cpu or cuda, got {target.device!r}; Ray chooses"
        )
    gpus = max((node["Resources"].get("GPU", 0) for node in _alive()), default=0)
    if target.device == "cuda" and not gpus:
        raise DeviceUnavailable(
            f"no GPU on the {len(_alive())} nodes of the Ray cluster; use --device cpu, or add a node that has one"
        )
    device = torch.device("cuda" if target.device != "cpu" and gpus else "cpu")
    if not Slots(target, device, threads).nodes():
        wanted = f"{threads} CPUs" + (f" and {target.gpus:g} of a GPU" if device.type == "cuda" else "")
        raise DeviceUnavailable(
            f"no node of the Ray cluster has the {wanted} that a trial group takes; add one, or lower OMP_NUM_THREADS"
        )
    return device


def _alive() -> list[dict[str, Any]]:
    nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    return [node for node in nodes if node["Alive"]]


def _start_check(node: str, requirements: Requirements) -> ray.ObjectRef[str]:
    """Starts the check of a node, whatever else it is doing."""
    on_node = NodeAffinitySchedulingStrategy(node, soft=False)
    check: Any = ray.remote(check_node).options(
        name="capbench check node", num_cpus=0, max_retries=0, scheduling_strategy=on_node
    )
    ref: ray.ObjectRef[str] = check.remote(requirements)
    return ref


def _raise_failed_check(node: str, ref: ray.ObjectRef[str]) -> None:
    """Raises the reason why a node does not meet the requirements."""
    try:
        ray.get(ref)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, WorkersDiffer):
            raise error.cause from None
        last = (str(error).strip() or "no message").splitlines()[-1]
        raise WorkersDiffer(f"node {node[:12]} cannot run capbench: {last}; install it there as it is here") from error
    except ray.exceptions.RayError:  # the node is gone; its replacement is checked with its first group
        return
