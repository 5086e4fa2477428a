"""Compiling: whether a group's step is worth it, and the memory of what was compiled before."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import torch

from capbench.engine.lanes import LaneGroup
from capbench.engine.program import Program

CompileMode = Literal["auto", "on", "off"]

LANES_A_BLOCK = {"cpu": (32, 128), "cuda": (256, 256)}
"""Lanes that a compiled step takes at once, at the most: where smaller groups may follow, and where all are there."""
FIRST_SECONDS, AGAIN_SECONDS = 8.0, 3.0
"""What compiling is taken to cost where the shape is new, and where the compiler finds its own work again."""
ALMOST_FULL = 0.75
"""Share of a block from which it is filled up with finished lanes."""
MOST_SAVED = 0.7
"""Share of an eager step's time that a compiled one saves at the most."""
SHARE_TAKEN = 0.6
"""Share of all steps that a lane is taken to need where it may end early."""


@dataclass(frozen=True)
class Compiling:
    """The user's choice, and the folder that keeps compiled steps between runs."""

    mode: CompileMode = "off"
    folder: Path | None = None
    known: frozenset[str] = frozenset()
    """Shapes that were compiled before, as told by somebody who has the folder."""
    programs: dict[str, Program] = field(default_factory=dict, repr=False, compare=False)
    """Steps compiled in this process, by shape."""

    def block(self, group: LaneGroup, device: torch.device) -> int | None:
        """The lanes of a compiled step's block where there is one from the start; None: the group begins eagerly."""
        block = _lanes_a_block(group, device)
        return block if self.mode == "on" or _shape(group, block, device) in self.programs else None

    def program(self, group: LaneGroup, device: torch.device) -> Program | None:
        """The group's step, where this process has compiled it."""
        return self.programs.get(_shape(group, _lanes_a_block(group, device), device))

    def block_later(
        self, group: LaneGroup, device: torch.device, seconds: float, share_saved: Callable[[], float]
    ) -> int | None:
        """The same for a group that has begun eagerly: a block where compiling saves more than it costs.

        `seconds` is what eager steps would still take; `share_saved`, which takes a while to find out, is asked for
        only where it can decide.
        """
        block = _lanes_a_block(group, device)
        cost = AGAIN_SECONDS if self._knows(_shape(group, block, device)) else FIRST_SECONDS
        if self.mode != "auto" or seconds * MOST_SAVED <= cost:
            return None
        return block if seconds * share_saved() > cost else None

    def elsewhere(self, group: LaneGroup, device: torch.device) -> Compiling:
        """The same choice for a process without the folder: it is told whether the group's shape is known."""
        shape = _shape(group, _lanes_a_block(group, device), device)
        return Compiling(self.mode, known=frozenset({shape} if self._knows(shape) else ()))

    def prepare(self) -> None:
        """Has the compiler keep its work in the folder, unless the user has said where."""
        if self.folder is not None:
            os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(self.folder / "kernels"))

    def remember(self, group: LaneGroup, device: torch.device, program: Program | None = None) -> None:
        """Notes that the group's shape has been compiled, and keeps what came of it if that happened here."""
        shape = _shape(group, _lanes_a_block(group, device), device)
        if program is not None:
            self.programs[shape] = program
        if self.folder is not None:
            mark = self._mark(self.folder, shape)
            mark.parent.mkdir(parents=True, exist_ok=True)
            mark.touch()

    def _knows(self, shape: str) -> bool:
        return shape in self.known or (self.folder is not None and self._mark(self.folder, shape).exists())

    def _mark(self, folder: Path, shape: str) -> Path:
        return folder / "shapes" / shape


def lanes_for(n_alive: int, block: int | None) -> int:
    """How many lanes a stack should have for so many that still train.

    A last block that is almost full is filled up; one that is not runs eagerly as it is. One lane alone would take
    other kernels than two: it gets company.
    """
    rest = n_alive % block if block else n_alive
    if block and rest > ALMOST_FULL * block:
        return n_alive + block - rest
    return n_alive + 1 if rest == 1 else n_alive


def lane_steps_ahead(group: LaneGroup, n_lanes: int, steps_left: int) -> float:
    """The lane-steps that so many lanes of a group, and what may follow it in the same shape, are taken to need."""
    training = group.pair.training
    taken = SHARE_TAKEN if training.stops_early else 1
    return taken * (n_lanes * steps_left + group.n_ahead * training.steps)


def _lanes_a_block(group: LaneGroup, device: torch.device) -> int:
    if_more, if_all = LANES_A_BLOCK.get(device.type, LANES_A_BLOCK["cpu"])
    return min(max(2, len(group.trials)), if_more if group.n_ahead else if_all)


def _shape(group: LaneGroup, block: int, device: torch.device) -> str:
    """Hash of all that a compiled step depends on."""
    shape = f"{group.pair.identity} {group.slots} {block} {device.type} {torch.__version__}"
    return hashlib.sha256(shape.encode()).hexdigest()[:32]
