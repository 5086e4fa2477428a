"""Looks: the metrics of a group at a step, on their way to the host while the device trains on."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from capbench.engine.devices import counting_dtype
from capbench.engine.stack import Stack
from capbench.engine.verdicts import Lane


@dataclass
class Look:
    """A group as it stood at a step: its lanes, its weights, and the metrics of each lane once they are read."""

    step: int
    lanes: Sequence[Lane]
    stack: Stack
    names: tuple[str, ...]
    read: Callable[[], Tensor]
    """Waits for the numbers: (metrics and whether the weights are finite, lanes)."""


class Looks:
    """The looks that are due: at once on a CPU, on CUDA one look later, when their numbers have long arrived.

    A device that trains on meanwhile may take steps for lanes that have ended: these are thrown away, and the
    lane's record is that of the look.
    """

    def __init__(self, is_late: bool) -> None:
        self._is_late = is_late
        self._waiting: deque[Look] = deque()

    def due(self, look: Look, is_last: bool) -> list[Look]:
        """Takes a new look; returns those whose verdicts are to be given now."""
        self._waiting.append(look)
        kept = 1 if self._is_late and not is_last else 0
        return [self._waiting.popleft() for _ in range(len(self._waiting) - kept)]

    def take(self, step: int, lanes: Sequence[Lane], stack: Stack, scores: dict[str, Tensor]) -> Look:
        """A look at the present state, its numbers sent on their way."""
        finite = torch.isfinite(stack.weights).all(dim=1)
        counted = counting_dtype(finite.device)
        numbers = torch.stack([*(score.to(counted) for score in scores.values()), finite.to(counted)])
        if self._is_late:
            stack = stack.snapshot()
        return Look(step, tuple(lanes), stack, tuple(scores), _sent(numbers))


def _sent(numbers: Tensor) -> Callable[[], Tensor]:
    """Starts a tensor on its way to the host, into pinned memory so that nobody waits; the function waits for it."""
    if numbers.device.type != "cuda":
        return lambda: numbers
    host = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True)
    host.copy_(numbers, non_blocking=True)
    arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
    arrived.record()

    def read() -> Tensor:
        arrived.synchronize()
        return host

    return read
