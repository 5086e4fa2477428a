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
SHARE_SAVED = 0.65
"""Share of the time that a compiled step is taken to save."""
SHARE_TAKEN = 0.6
"""Share of all steps that a lane is taken to need where it may end early."""


@dataclass(frozen=True)
class Compiling:
    """The user's choice, and the folder that keeps compiled steps between runs."""

    mode: CompileMode = "off"
    folder: Path | None = None

    def block(self, group: LaneGroup, lane_bytes: int, device: torch.device) -> int | None:
        """The lanes of a compiled step's block, or None where the group runs eagerly.

        The work ahead decides and not a clock: the same run makes the same choice and gets the same numbers.
        """
        block = min(max(2, len(group.trials)), LANES_A_BLOCK.get(device.type, LANES_A_BLOCK["cpu"]))
        if self.mode == "auto":
            known = self.folder is not None and self._mark(group, block, device).exists()
            cost = AGAIN_SECONDS if known else FIRST_SECONDS
            return block if _seconds(group, lane_bytes) * SHARE_SAVED > cost else None
        return block if self.mode == "on" else None

    def prepare(self) -> None:
        """Has the compiler keep its work in the folder, unless the user has said where."""
        if self.folder is not None:
            os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(self.folder / "kernels"))

    def remember(self, group: LaneGroup, block: int, device: torch.device) -> None:
        """Notes that the shape has been compiled here."""
        if self.folder is not None:
            mark = self._mark(group, block, device)
            mark.parent.mkdir(parents=True, exist_ok=True)
            mark.touch()

    def _mark(self, group: LaneGroup, block: int, device: torch.device) -> Path:
        assert self.folder is not None
        shape = f"{group.pair.identity} {group.slots} {block} {device.type} {torch.__version__}"
        return self.folder / "shapes" / hashlib.sha256(shape.encode()).hexdigest()[:32]


def _seconds(group: LaneGroup, lane_bytes: int) -> float:
    """What the group, and what may follow it in the same shape, is taken to need eagerly."""
    training = group.pair.training
    steps = training.steps * (SHARE_TAKEN if training.stops_early else 1)
    return (len(group.trials) + group.n_ahead) * steps * lane_bytes / EAGER_SPEED
