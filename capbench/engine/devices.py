"""Devices: what this machine has, by the names the user types."""

from __future__ import annotations

import platform

import torch

from capbench.errors import DeviceUnavailable


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


def device_name(device: torch.device) -> str:
    """What the hardware calls itself."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return platform.processor() or platform.machine()
