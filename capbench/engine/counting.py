"""Counts of what a scope asks of a device: operations, and reads for which the host waits."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch import Tensor

from capbench.engine.torch_private import TorchDispatchMode, tree_leaves

READS = {"_local_scalar_dense", "equal", "is_nonzero", "masked_select", "nonzero", "_unique2", "unique_dim"}
"""Operations of aten whose result, or its shape, the host waits for."""


class OperationCount(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the operations of a scope that are not views, and those for which the host waits for a device."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations: Counter[str] = Counter()
        self.waits: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs the operation and counts it."""
        result = func(*args, **(kwargs or {}))
        name = str(func.overloadpacket.__name__)
        if not func.is_view:
            self.operations[name] += 1
        if name in READS or _crosses(args, result):
            self.waits[name] += 1
        return result


def _crosses(args: Any, result: Any) -> bool:
    """Whether an operation takes tensors of another device to the CPU."""
    before = {tensor.device.type for tensor in tree_leaves(args) if isinstance(tensor, Tensor)}
    after = {tensor.device for tensor in tree_leaves(result) if isinstance(tensor, Tensor)}
    return after == {torch.device("cpu")} and bool(before - {"cpu"})
