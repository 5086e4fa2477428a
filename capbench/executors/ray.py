"""The Ray cluster as a workplace: its slots, its nodes' readiness, and the way of a lane group there and back."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import ray
import torch
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from capbench.engine.compiling import Compiling
from capbench.engine.machine import this_machine
from capbench.errors import ClusterUnavailable, DeviceUnavailable, UserError, WorkersDiffer
from capbench.executors import Executor
from capbench.executors.connection import connect
from capbench.executors.flight import GroupLost, RayExecutor
from capbench.executors.mailbox import Mailbox
from capbench.executors.needs import Need, Needs, needs_of
from capbench.executors.ray_worker import Parcel, Report, take_stock, work
from capbench.results import Machine
from capbench.settings import Configured
from capbench.where import Where

STOCK_SECONDS = 60.0
"""For all nodes to say what they have; one that is slower is asked again with its first group."""
MAIL_SECONDS = 10.0
"""For the mailbox to answer; nobody waits longer for a courtesy."""
LOOK_SECONDS = 5.0
"""Between two looks at what the cluster has."""
EMPTY_SECONDS = 60.0
"""How long a cluster may be without any slot before a run is ended."""
Ref: TypeAlias = "ray.ObjectRef[Report]"
"""A group on its way, as Ray names it."""
COLOUR = re.compile(r"\x1b\[[\d;]*m")
MOST_TEXT = 4000
HEAD = "node:__internal_head__"
"""The resource by which Ray marks the node that a cluster cannot be without."""


def open_cluster(where: Where) -> RayCluster:
    """Joins the cluster and finds the device in it."""
    connect(where.address)
    threads = threads_a_worker()
    device = _device(where, threads)
    return RayCluster(where, device, threads)


def threads_a_worker() -> int:
    """One, or what OMP_NUM_THREADS says: the sums of a trial depend on it."""
    said = os.environ.get("OMP_NUM_THREADS", "")
    return max(1, int(said)) if said.isdecimal() else 1


class RayCluster:
    """A cluster that this process has joined. Shared by the threads of a series: its state is behind a lock."""

    def __init__(self, where: Where, device: torch.device, threads: int) -> None:
        self.where, self.device, self.threads = where, device, threads
        gpus = where.gpus if device.type == "cuda" else 0
        self._work: Any = ray.remote(work).options(
            name="capbench lane group", num_cpus=threads, num_gpus=gpus, max_retries=0
        )
        pinned = {HEAD: 0.001} if any(HEAD in node["Resources"] for node in _alive()) else {}
        self._mailbox: Any = ray.remote(Mailbox).options(num_cpus=0, resources=pinned).remote()
        self._room = threading.Condition()
        self._n_taken = 0
        self._stock_lock = threading.Lock()
        self._ready: set[Need] = set()
        self._slots = Slots(where, device, threads)

    @property
    def machine(self) -> Machine:
        """This process, which trains nothing; the device and the threads are a worker's."""
        here = this_machine(torch.device("cpu"))
        there = {"device": str(self.device), "device_name": "see workers", "threads": self.threads}
        return here.model_copy(update=there)

    @property
    def n_runs_at_once(self) -> int:
        """One more than groups can run at once: a run that plans its next round keeps nobody waiting."""
        return self._slots.count() + 1

    def executor(self, compiling: Compiling, trial_timeout: float) -> Executor:
        """Sends the groups of one run."""
        return RayExecutor(self, compiling, trial_timeout)

    def take_room(self) -> bool:
        """Whether a slot is free, which is then the caller's: Ray keeps passing on a group that has to wait for one."""
        with self._room:
            is_free = self._n_taken < self._slots.count()
            self._n_taken += is_free
        return is_free

    def leave_room(self) -> None:
        """A slot that was taken is free again."""
        with self._room:
            self._n_taken -= 1
            self._room.notify_all()

    def wait_for_room(self, seconds: float) -> None:
        """Returns when some group has ended, and after so many seconds at most."""
        with self._room:
            self._room.wait(seconds)

    def send(self, parcel: Parcel) -> Ref:
        """Puts a group on its way, to a slot that was taken for it."""
        ref: Ref = self._work.remote(parcel, self._mailbox)
        return ref

    def landed(self, refs: Iterable[Ref], seconds: float) -> list[Ref]:
        """Those of the groups that have come to an end, after so many seconds at most."""
        try:
            ended, _ = ray.wait(list(refs), timeout=seconds)
        except (ray.exceptions.RayError, ConnectionError) as error:
            raise ClusterUnavailable(
                f"the Ray cluster is gone: {error}; all finished trials are stored, the same command goes on from there"
            ) from error
        self._slots.count()  # ends the run where nothing is left that could end any group
        return ended

    def fetch(self, ref: Ref) -> Report:
        """The last report of a group; GroupLost where none will come."""
        self.leave_room()
        try:
            report: Report = ray.get(ref)
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, UserError):
                raise error.cause from None
            raise GroupLost(COLOUR.sub("", str(error))[-MOST_TEXT:]) from error
        except ray.exceptions.RayError as error:
            raise GroupLost(f"{type(error).__name__}: {' '.join(str(error).split())}") from error
        return report

    def recall(self, refs: Iterable[Ref]) -> None:
        """Ends groups that nobody waits for any more."""
        for ref in refs:
            self.leave_room()
            ray.cancel(ref)

    def mail(self, boxes: Sequence[str]) -> dict[str, list[bytes]]:
        """What workers have told ahead of these groups' ends; nothing where the mailbox does not answer."""
        try:
            found: dict[str, list[bytes]] = ray.get(self._mailbox.take.remote(boxes), timeout=MAIL_SECONDS)
        except ray.exceptions.RayError:
            return {}
        return found

    def forget(self, boxes: Sequence[str]) -> None:
        """Empties boxes that nobody will look into."""
        if boxes:
            self._mailbox.take.remote(boxes)

    def prepare(self, plugins: Iterable[Configured[Any]]) -> None:
        """Raises where a node has another capbench or other plugins than this process; asks each node once."""
        needs = needs_of(plugins)
        with self._stock_lock:
            if self._ready.issuperset(needs.plugins):
                return
            asked = [(node, _ask(node, needs)) for node in self._slots.nodes()]
            told, _ = ray.wait([ref for _, ref in asked], num_returns=len(asked), timeout=STOCK_SECONDS)
            for node, ref in asked:
                if ref in told:
                    _hear(node, ref)
            self._ready.update(needs.plugins)


class Slots:
    """How many groups a cluster can run at once, looked up now and then: nodes come and go."""

    def __init__(self, where: Where, device: torch.device, threads: int) -> None:
        self._where, self._device, self._threads = where, device, threads
        self._count, self._looked, self._seen = 0, float("-inf"), time.monotonic()

    def nodes(self) -> list[str]:
        """Ids of the nodes that groups can run on."""
        return [node["NodeID"] for node in _alive() if self._on(node)]

    def count(self) -> int:
        """Slots of all nodes; raises ClusterUnavailable when there has been none for a while."""
        now = time.monotonic()
        if now - self._looked > LOOK_SECONDS:
            self._count, self._looked = sum(self._on(node) for node in _alive()), now
        if self._count:
            self._seen = now
        elif now - self._seen > EMPTY_SECONDS:
            raise ClusterUnavailable(
                f"the Ray cluster has had no node for a lane group for {EMPTY_SECONDS:g} s; all finished trials are "
                "stored: start nodes and give the same command again"
            )
        return self._count

    def _on(self, node: dict[str, Any]) -> int:
        resources = node["Resources"]
        slots = int(resources.get("CPU", 0) / self._threads)
        # Ray keeps resources in ten-thousandths, and 3 × 0.3333 must fit on one GPU.
        on_gpus = int(resources.get("GPU", 0)) * int(1 / self._where.gpus + 1e-9)
        return min(slots, on_gpus) if self._device.type == "cuda" else slots


def _device(where: Where, threads: int) -> torch.device:
    """The device that is asked for, if a node of the cluster has it."""
    if where.device not in ("auto", "cpu", "cuda"):
        raise DeviceUnavailable(f"on a Ray cluster --device takes auto, cpu or cuda, got {where.device!r}; Ray chooses")
    gpus = max((node["Resources"].get("GPU", 0) for node in _alive()), default=0)
    if where.device == "cuda" and not gpus:
        raise DeviceUnavailable(
            f"no GPU on the {len(_alive())} nodes of the Ray cluster; use --device cpu, or add a node that has one"
        )
    device = torch.device("cuda" if where.device != "cpu" and gpus else "cpu")
    if not Slots(where, device, threads).nodes():
        wanted = f"{threads} CPUs" + (f" and {where.gpus:g} of a GPU" if device.type == "cuda" else "")
        raise DeviceUnavailable(
            f"no node of the Ray cluster has the {wanted} that a lane group takes; add one, or lower OMP_NUM_THREADS"
        )
    return device


def _alive() -> list[dict[str, Any]]:
    nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    return [node for node in nodes if node["Alive"]]


def _ask(node: str, needs: Needs) -> ray.ObjectRef[str]:
    """Has a node take stock, whatever else it is doing."""
    there = NodeAffinitySchedulingStrategy(node, soft=False)
    ask: Any = ray.remote(take_stock).options(
        name="capbench take stock", num_cpus=0, max_retries=0, scheduling_strategy=there
    )
    ref: ray.ObjectRef[str] = ask.remote(needs)
    return ref


def _hear(node: str, ref: ray.ObjectRef[str]) -> None:
    """Raises what a node has to say against itself."""
    try:
        ray.get(ref)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, WorkersDiffer):
            raise error.cause from None
        last = (str(error).strip() or "no message").splitlines()[-1]
        raise WorkersDiffer(f"node {node[:12]} cannot run capbench: {last}; install it there as it is here") from error
    except ray.exceptions.RayError:  # the node is gone; another in its place is asked with its first group
        return
