"""Devices: what this machine has, by the names the user types."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
from pathlib import Path

import torch

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
            "use --device cpu"
        )
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise DeviceUnavailable(f"no device {name!r}: torch {torch.__version__} sees no Apple GPU; use --device cpu")
    return device


def keep_memory() -> None:
    """Lets the C library keep freed blocks of any size.

    By default glibc gives large blocks back to the system at once, and every training step pays for
    hundreds of fresh pages. Elsewhere than on Linux with glibc this does nothing.
    """
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL("libc.so.6")
        for parameter, value in ((M_MMAP_THRESHOLD, 1 << 30), (M_TRIM_THRESHOLD, 1 << 30), (M_TOP_PAD, 1 << 26)):
            libc.mallopt(parameter, value)


def release_memory() -> None:
    """Has the C library give back what it keeps, where something else will take its place."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def use_fitting_threads() -> None:
    """Uses eight threads at most: the tensors are small, and more threads wait for each other longer than they work.

    OMP_NUM_THREADS, where the user has set it, stands.
    """
    if "OMP_NUM_THREADS" not in os.environ and torch.get_num_threads() > MOST_THREADS:
        torch.set_num_threads(MOST_THREADS)


def counting_dtype(device: torch.device) -> torch.dtype:
    """The type in which steps are counted and schedules worked out; Apple's GPUs have no double precision."""
    return torch.float32 if device.type == "mps" else torch.float64


def device_name(device: torch.device) -> str:
    """What the hardware calls itself; a processor with the instructions torch uses on it: both decide its sums."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{_processor()}, {torch.backends.cpu.get_cpu_capability()}"


def _processor() -> str:
    """The model where Linux tells it, else what Python knows."""
    with contextlib.suppress(OSError):
        for line in CPU_INFO.read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()
