"""Precision: how numbers are kept and multiplied, by the names the user types."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Literal

import torch

from capbench.errors import DeviceUnavailable

Dtype = Literal["float32", "float64", "tf32", "bfloat16"]


def kept_as(dtype: str) -> torch.dtype:
    """The type of weights, optimiser state and data: the two quick precisions are quick in products alone."""
    return torch.float64 if dtype == "float64" else torch.float32


def check_precision(dtype: str, device: torch.device) -> None:
    """Refuses a precision that the device does not have."""
    if dtype == "tf32" and device.type != "cuda":
        raise DeviceUnavailable(f"--dtype tf32 is a mode of CUDA devices, got {device.type}; use float32 or bfloat16")


@contextlib.contextmanager
def multiplying(dtype: str, device: torch.device) -> Iterator[None]:
    """A scope in which matrix products have the given precision."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if dtype == "tf32" else "highest")
    try:
        with torch.autocast(device.type, torch.bfloat16, enabled=dtype == "bfloat16"):
            yield
    finally:
        torch.set_float32_matmul_precision(before)
