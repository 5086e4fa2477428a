"""Counts of what a scope asks of a device: operations, and reads for which the host waits."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Self

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.profiler import ProfilerActivity, profile

from capbench.engine.torch_private import TorchDispatchMode, tree_leaves

READS = {"_local_scalar_dense", "equal", "is_nonzero", "masked_select", "nonzero", "_unique2", "unique_dim"}
"""Operations of aten whose result, or its shape, the host waits for."""
FROM_HOST = {"tensor", "as_tensor", "asarray", "new_tensor"}
"""Functions that make a tensor of numbers of the host."""

LAUNCHES = {"LaunchKernel", "GraphLaunch", "MemcpyAsync", "MemsetAsync"}
"""Parts of the names of CUDA's calls that start work on a device."""


class OperationCount(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the operations of a scope that are not views, and those for which the host waits for a device.

    `meta` serves as a device in tests: its tensors cannot be read, and what mixes them with the CPU's raises or counts.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations: Counter[str] = Counter()
        self.waits: Counter[str] = Counter()
        self._from_host = _FromHost(self.waits)

    def __enter__(self) -> Self:
        """Begins to count."""
        self._from_host.__enter__()  # type: ignore[no-untyped-call]
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        """Ends counting."""
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self._from_host.__exit__(*error)  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs the operation and counts it."""
        result = func(*args, **(kwargs or {}))
        name = str(func.overloadpacket.__name__)
        if not func.is_view:
            self.operations[name] += 1
        if name in READS or _crosses(args, result):
            self.waits[name] += 1
        return result


class _FromHost(TorchFunctionMode):
    """Counts tensors that are made of numbers of the host on another device: the copy is waited for."""

    def __init__(self, waits: Counter[str]) -> None:
        super().__init__()
        self._waits = waits

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Calls the function and counts it."""
        result = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        if name in FROM_HOST and result.device.type != "cpu" and result is not args[0]:
            self._waits[name] += 1
        return result


def _crosses(args: Any, result: Any) -> bool:
    """Whether an operation copies between the CPU and another device; single numbers are passed without a copy."""
    given = [tensor for tensor in tree_leaves(args) if isinstance(tensor, Tensor)]
    after = {tensor.device.type for tensor in tree_leaves(result) if isinstance(tensor, Tensor)}
    if after == {"cpu"}:
        return any(tensor.device.type != "cpu" for tensor in given)
    return bool(after) and any(tensor.device.type == "cpu" and tensor.dim() for tensor in given)


@contextmanager
def cuda_waits(device: torch.device) -> Iterator[list[str]]:
    """A scope in which CUDA reports the calls for which the host waits; none are reported on other devices."""
    found: list[str] = []
    if device.type != "cuda":
        yield found
        return
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield found
        finally:
            torch.cuda.set_sync_debug_mode(before)
            found.extend(str(each.message) for each in caught if "synchronizing CUDA operation" in str(each.message))


def count_launches(function: Callable[[], None], device: torch.device) -> int | None:
    """Kernels and copies that a function starts on a CUDA device, by torch's profiler; None on other devices."""
    if device.type != "cuda":
        return None
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as found:
        function()
        torch.cuda.synchronize(device)
    return sum(int(event.count) for event in found.key_averages() if any(part in event.key for part in LAUNCHES))
