"""Memory: the peak need of a lane, counted on small groups without numbers, and how many lanes fit a device."""

from __future__ import annotations

import copy
import math
import os
import re
import warnings
import weakref
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from capbench.contract.solver import GradientSolver
from capbench.engine.stack import Batched, Stack, build_stack
from capbench.engine.step import Step
from capbench.engine.torch_private import TorchDispatchMode, storage_id, tree_leaves
from capbench.engine.trials import Setup, TrialGroup, TrialSpec

SHARE = 0.5
"""Share of the free memory that a group may take."""
MOST_LANES = {"cpu": 512, "cuda": 8192}
"""More lanes than this gain nothing: the fixed costs of a step are negligible by then."""
BYTES_PER_TENSOR_BYTE = {"cpu": 1.95}
"""Bytes that a process takes per byte of its tensors: resident ones with glibc, measured on six built-in pairs."""
ELSEWHERE = 1.3
"""The same on other devices: assumed, because none was measured; a group that does not fit is halved."""
PROBES = (2, 6)
"""Numbers of lanes at which the peak is counted; the difference gives the need per lane."""
PROBE_SHARE = 0.7
"""Share of the free memory that the smallest group may take: beyond it a machine starts to swap."""
CPU, META = torch.device("cpu"), torch.device("meta")
_n_sharing = 1
"""Processes that train on this machine at the same time, this one included."""
_device_share = 1.0
"""Share of a CUDA device's memory that this process may use."""
MEMINFO = Path("/proc/meminfo")
"""Where Linux reports the available memory, file caches included."""


class DoesNotFit(MemoryError):
    """Not even the smallest group fits this machine."""


@dataclass(frozen=True)
class MemoryNeed:
    """The peak memory of a training step: a fixed part and a part per lane."""

    fixed: int
    per_lane: int

    def bytes(self, n_lanes: int) -> int:
        """For a group of that many lanes."""
        return self.fixed + self.per_lane * n_lanes


@cache
def memory_need(setup: Setup, slots: int, device: torch.device = CPU) -> MemoryNeed:
    """The need of a setup's groups on a device, from the peaks of two small ones.

    Raises DoesNotFit where a peak must be measured here and not even the smaller group fits; where the larger would
    not, all of the smaller one's peak counts as its lanes'.
    """
    few = _peak(setup, slots, PROBES[0])
    try:
        more = _peak(setup, slots, PROBES[1])
    except DoesNotFit:
        more = few * PROBES[1] // PROBES[0]
    per_lane = max(1, (more - few) // (PROBES[1] - PROBES[0]))
    fixed = max(0, few - PROBES[0] * per_lane)
    return MemoryNeed(int(_factor(device) * fixed), int(_factor(device) * per_lane))


def _factor(device: torch.device) -> float:
    """Bytes that a process takes on a device per byte of its tensors."""
    return BYTES_PER_TENSOR_BYTE.get(device.type, ELSEWHERE)


def lanes_that_fit(setup: Setup, slots: int, device: torch.device) -> int:
    """How many lanes a group may have on a device; two at least, because one alone uses other kernels."""
    if not isinstance(setup.solver.plugin, GradientSolver):
        return MOST_LANES["cpu"]
    room, most = SHARE * free_memory(device), most_lanes(device)
    if _smallest_group(setup, slots, device) / PROBES[0] * most <= room:  # as if nothing were fixed
        return most
    need = memory_need(setup, slots, device)
    return int(min(max(2, (room - need.fixed) / need.per_lane), most))


@cache
def _smallest_group(setup: Setup, slots: int, device: torch.device) -> float:
    """Bytes that the smallest group takes; raises DoesNotFit where they are not free when first asked for."""
    n_bytes, room = _factor(device) * _peak(setup, slots, PROBES[0]), PROBE_SHARE * free_memory(device)
    if n_bytes > room:
        raise _does_not_fit(room)
    return n_bytes


def _does_not_fit(n_bytes: float) -> DoesNotFit:
    return DoesNotFit(
        f"out of memory: a step of {PROBES[0]} models takes more than {n_bytes / 1e9:.1f} GB, {PROBE_SHARE:.0%} of "
        "what is free; make the task or the architecture smaller"
    )


def fits_lanes(n_bytes: int) -> bool:
    """Whether the memory of a compiled program is free."""
    return n_bytes <= SHARE * free_memory(CPU)


def most_lanes(device: torch.device) -> int:
    """The lanes beyond which a group gains nothing on a device, whatever its memory."""
    return MOST_LANES.get(device.type, MOST_LANES["cpu"])


def share_memory(n_processes: int) -> None:
    """Sets how many processes train on this machine: each uses its share of the free memory."""
    global _n_sharing
    _n_sharing = n_processes


def share_device(share: float) -> None:
    """Limits this process to a share of its CUDA device, where several processes use it."""
    global _device_share
    _device_share = share
    torch.cuda.set_per_process_memory_fraction(share)


def free_memory(device: torch.device) -> int:
    """Bytes that are free for this process on a device now, what torch holds there without using it included."""
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        held = torch.cuda.memory_reserved(device)
        return min(free + held, int(_device_share * total)) - torch.cuda.memory_allocated(device)
    return _free_here() // _n_sharing


def _free_here() -> int:
    if MEMINFO.exists():
        available = re.search(r"MemAvailable:\s+(\d+) kB", MEMINFO.read_text())
        if available:
            return 1024 * int(available[1])
    if hasattr(os, "sysconf") and "SC_AVPHYS_PAGES" in os.sysconf_names:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return 4 << 30  # assumed where the system does not report it


@cache
def _peak(setup: Setup, slots: int, n_lanes: int) -> int:
    """The most memory that tensors take at once while a group of that size is built and takes a step.

    Counted on `meta`, which takes no memory; measured on the CPU where the plugins' code reads numbers.
    """
    trials = (TrialSpec(1, 0, 0.1),) * n_lanes  # which problem does not matter here
    group = TrialGroup(setup, slots, trials)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # training repeats the warning
        try:
            return _peak_without_numbers(group)
        except Exception:  # noqa: BLE001 - the plugin border: what fails here may work on the CPU, or fails there too
            with _Watch(PROBE_SHARE * free_memory(CPU) / _factor(CPU)) as watch:
                stack, _ = build_stack(group, CPU)
                _take_step(setup, stack, Batched(setup, stack))
            return int(watch.peak)


def _peak_without_numbers(group: TrialGroup) -> int:
    """The peak on `meta`, of copies of the plugins: one may keep a tensor that it makes."""
    group = replace(group, setup=copy.deepcopy(group.setup))
    with _Watch() as building:
        host, _ = build_stack(group, CPU)
    batched = Batched.untried(group.setup, host)
    with _Watch() as training:
        _take_step(group.setup, host.moved(META), batched)
    return max(int(building.peak), int(training.peak))


def _take_step(setup: Setup, stack: Stack, batched: Batched) -> None:
    """One step and one evaluation."""
    solver = setup.solver.plugin
    assert isinstance(solver, GradientSolver)
    number = torch.zeros((), dtype=torch.float64, device=stack.weights.device)
    Step(batched, setup)(stack, solver.init(stack.weights), [number])
    batched.metrics(stack)


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of all live storages that operations create; raises DoesNotFit beyond a limit."""

    def __init__(self, room: float = math.inf) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.peak = 0
        self._room = room
        self._live = 0
        self._seen: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs the operation and counts what it returned."""
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor):
                self._count(tensor.untyped_storage())
        return result

    def _count(self, storage: torch.UntypedStorage) -> None:
        address, size = storage_id(storage), storage.nbytes()
        if address in self._seen:
            return
        self._seen.add(address)
        self._live += size
        self.peak = max(self.peak, self._live)
        weakref.finalize(storage, self._forget, address, size)
        if self._live > self._room:
            raise _does_not_fit(self._room * _factor(CPU))

    def _forget(self, address: int, size: int) -> None:
        self._seen.discard(address)
        self._live -= size
