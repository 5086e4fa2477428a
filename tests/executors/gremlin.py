"""A plugin file: an architecture that is a single matrix, and misbehaves in every process but one."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import ClassVar, Literal

import torch

from capbench import Architecture, Relation, Signature, UnsupportedSignature, hookimpl

LETHAL = 0.85


class Gremlin(Architecture):
    """Scores of pairs from a single matrix."""

    name: ClassVar[str] = "gremlin"
    tame: int = 0
    """The process in which it behaves."""
    mood: Literal["kind", "slow", "kill once", "kill some", "raise some"] = "kind"
    folder: str = ""
    """Where it leaves its marks."""
    salt: int = 0
    """Changes the shape of a buffer, and so the draw of every seed."""

    def build(self, signature: Signature) -> torch.nn.Module:
        """Draws first, so that the draw is the seed's alone."""
        if not isinstance(signature, Relation):
            raise UnsupportedSignature("gremlin scores relations only")
        draw = float(torch.rand(()))
        wild = os.getpid() != self.tame
        if wild and self.mood == "slow":
            self._mark_node()
        if wild and (self._for_once() or (self.mood == "kill some" and draw > LETHAL)):
            os.kill(os.getpid(), signal.SIGKILL)
        if wild and self.mood == "raise some" and draw > LETHAL:
            raise RuntimeError("this seed is poison")
        return Scores(signature.d_item, 0.02 if wild and self.mood == "slow" else 0.0, self.salt)

    def _for_once(self) -> bool:
        if self.mood != "kill once":
            return False
        try:
            Path(self.folder, "killed").touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def _mark_node(self) -> None:
        import ray

        if ray.is_initialized():
            Path(self.folder, ray.get_runtime_context().get_node_id()).touch()


class Scores(torch.nn.Module):
    """Pairs scored by one matrix, now and then slowly."""

    def __init__(self, d: int, seconds: float, salt: int) -> None:
        super().__init__()
        self.W = torch.nn.Parameter(torch.randn(d, d) * 0.5)
        self.threshold = torch.nn.Parameter(torch.ones(()))
        self.seconds = seconds
        self.register_buffer("salt", torch.zeros(1 + salt))

    def forward(self, items: torch.Tensor) -> torch.Tensor:
        """The scores."""
        time.sleep(self.seconds)
        return items @ self.W @ items.T - self.threshold


@hookimpl
def capbench_architectures() -> list[type[Architecture]]:
    """The one architecture."""
    return [Gremlin]
