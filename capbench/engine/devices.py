"""Devices and precisions, by the names the user types, and this machine as a result document describes it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import torch

from capbench import __version__
from capbench.documents.result import Machine
from capbench.engine.trials import ENGINE_VERSION
from capbench.errors import DeviceUnavailable

MOST_THREADS = 8
CPU_INFO = Path("/proc/cpuinfo")
M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3
"""glibc's numbers for mallopt(3)."""


def resolve_device(name: str) -> torch.device:
    """The device of that name; `auto` takes CUDA where there is one and the CPU otherwise."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise DeviceUnavailable(f"--device takes auto, cpu, cuda, cuda:N or mps, got {name!r}") from error
    if device.type not in ("cpu", "cuda", "mps"):
        raise DeviceUnavailable(f"--device takes auto, cpu, cuda, cuda:N or mps, got {name!r}")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise DeviceUnavailable(
            f"no device {name!r}: torch {torch.__version__} sees {torch.cuda.device_count()} CUDA devices here; "
            f"use --device cpu, or {_cuda_remedy()}"
        )
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise DeviceUnavailable(f"no device {name!r}: torch {torch.__version__} sees no Apple GPU; use --device cpu")
    return device


def _cuda_remedy() -> str:
    """What makes torch see a CUDA device that it does not see."""
    if not torch.backends.cuda.is_built():  # type: ignore[no-untyped-call]
        return "install a build of torch with CUDA (pytorch.org/get-started): this one has none"
    if torch.cuda.device_count():
        return f"one up to cuda:{torch.cuda.device_count() - 1}"
    return "check nvidia-smi and CUDA_VISIBLE_DEVICES"


def keep_memory() -> None:
    """Makes glibc keep freed blocks instead of returning them to the system.

    By default glibc gives large blocks back to the system at once, and every training step pays for
    hundreds of fresh pages. Elsewhere than on Linux with glibc this does nothing.
    """
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL("libc.so.6")
        for parameter, value in ((M_MMAP_THRESHOLD, 1 << 30), (M_TRIM_THRESHOLD, 1 << 30), (M_TOP_PAD, 1 << 26)):
            libc.mallopt(parameter, value)


def use_fitting_threads() -> None:
    """Uses eight threads at most: with small tensors, more threads mostly wait for each other.

    OMP_NUM_THREADS, where the user has set it, takes precedence.
    """
    if "OMP_NUM_THREADS" not in os.environ and torch.get_num_threads() > MOST_THREADS:
        torch.set_num_threads(MOST_THREADS)


def counting_dtype(device: torch.device) -> torch.dtype:
    """The type in which steps are counted and schedules computed; Apple's GPUs have no double precision."""
    return torch.float32 if device.type == "mps" else torch.float64


def device_name(device: torch.device) -> str:
    """The hardware's name; for a processor also the instructions that torch uses, because both change its sums."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{_processor()}, {torch.backends.cpu.get_cpu_capability()}"


def _processor() -> str:
    """The processor's model from Linux, or else from Python."""
    with contextlib.suppress(OSError):
        for line in CPU_INFO.read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()


def this_machine(device: torch.device) -> Machine:
    """This process: what decides, besides a trial's key, how closely its numbers can be reproduced."""
    return Machine(
        capbench=__version__,
        engine=ENGINE_VERSION,
        python=platform.python_version(),
        torch=torch.__version__,
        device=str(device),
        device_name=device_name(device),
        threads=torch.get_num_threads(),
        platform=platform.platform(),
    )


def kept_as(dtype: str) -> torch.dtype:
    """The type of weights, optimiser state and data: tf32 and bfloat16 are precisions of matrix products only."""
    return torch.float64 if dtype == "float64" else torch.float32


def check_precision(dtype: str, device: torch.device) -> None:
    """Raises DeviceUnavailable for a precision that the device does not have."""
    if dtype == "tf32" and device.type != "cuda":
        raise DeviceUnavailable(f"--dtype tf32 is a mode of CUDA devices, got {device.type}; use float32 or bfloat16")
    if dtype == "float64" and device.type == "mps":
        raise DeviceUnavailable("Apple's GPUs have no double precision, got float64 on mps; add --device cpu")


def current_device(device: torch.device) -> AbstractContextManager[object]:
    """A scope in which a CUDA device is the current one: streams, events and kernels are then its own."""
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()


@contextlib.contextmanager
def matmul_precision(dtype: str, device: torch.device) -> Iterator[None]:
    """A scope in which matrix products have the given precision."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if dtype == "tf32" else "highest")
    try:
        with torch.autocast(device.type, torch.bfloat16, enabled=dtype == "bfloat16"):
            yield
    finally:
        torch.set_float32_matmul_precision(before)


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """A scope in which torch uses one thread: compiled code depends on the number."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
