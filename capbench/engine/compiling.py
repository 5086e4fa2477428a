"""Compiling: whether a group's step is worth it, and the memory of what was compiled before."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from capbench.engine.lanes import LaneGroup

CompileMode = Literal["auto", "on", "off"]

LANES_A_BLOCK = {"cpu": 32, "cuda": 256}
"""Lanes that a compiled step takes at once: on a CPU few, whose tensors stay in the cache."""
FIRST_SECONDS, AGAIN_SECONDS = 15.0, 4.0
"""What compiling is taken to cost where the shape is new, and where the compiler finds its own work again."""
EAGER_SPEED = 3e9
"""Bytes of a lane's peak memory that an eager step is taken to get through in a second."""
SHARE_SAVED = 0.4
"""Share of the time that a compiled step is taken to save."""
SHARE_TAKEN = 0.6
"""Share of all steps that a lane is taken to need where it may end early."""


@dataclass(frozen=True)
class Compiling:
    """The user's choice, and the folder that keeps compiled steps between runs."""

    mode: CompileMode = "off"
    folder: Path | None = None
    known: frozenset[str] = frozenset()
    """Shapes that were compiled before, as told by somebody who has the folder."""

    def block(self, group: LaneGroup, lane_bytes: int, device: torch.device) -> int | None:
        """The lanes of a compiled step's block, or None where the group runs eagerly.

        The work ahead decides and not a clock: the same run makes the same choice and gets the same numbers.
        """
        block = _lanes_a_block(group, device)
        if self.mode == "auto":
            cost = AGAIN_SECONDS if self._knows(_shape(group, block, device)) else FIRST_SECONDS
            return block if _seconds(group, lane_bytes) * SHARE_SAVED > cost else None
        return block if self.mode == "on" else None

    def elsewhere(self, group: LaneGroup, device: torch.device) -> Compiling:
        """The same choice for a process without the folder: it is told whether the group's shape is known."""
        shape = _shape(group, _lanes_a_block(group, device), device)
        return Compiling(self.mode, known=frozenset({shape} if self._knows(shape) else ()))

    def prepare(self) -> None:
        """Has the compiler keep its work in the folder, unless the user has said where."""
        if self.folder is not None:
            os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(self.folder / "kernels"))

    def remember(self, group: LaneGroup, device: torch.device) -> None:
        """Notes that the group's shape has been compiled."""
        if self.folder is not None:
            mark = self._mark(self.folder, _shape(group, _lanes_a_block(group, device), device))
            mark.parent.mkdir(parents=True, exist_ok=True)
            mark.touch()

    def _knows(self, shape: str) -> bool:
        return shape in self.known or (self.folder is not None and self._mark(self.folder, shape).exists())

    def _mark(self, folder: Path, shape: str) -> Path:
        return folder / "shapes" / shape


def _lanes_a_block(group: LaneGroup, device: torch.device) -> int:
    return min(max(2, len(group.trials)), LANES_A_BLOCK.get(device.type, LANES_A_BLOCK["cpu"]))


def _shape(group: LaneGroup, block: int, device: torch.device) -> str:
    """Hash of all that a compiled step depends on."""
    shape = f"{group.pair.identity} {group.slots} {block} {device.type} {torch.__version__}"
    return hashlib.sha256(shape.encode()).hexdigest()[:32]


def _seconds(group: LaneGroup, lane_bytes: int) -> float:
    """What the group, and what may follow it in the same shape, is taken to need eagerly."""
    training = group.pair.training
    steps = training.steps * (SHARE_TAKEN if training.stops_early else 1)
    share_seen = min(1, training.sampling.batch / group.slots) if training.sampling else 1
    return (len(group.trials) + group.n_ahead) * steps * share_seen * lane_bytes / EAGER_SPEED
