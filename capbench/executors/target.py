"""The compute target: the device that trial groups run on, in this process or on a Ray cluster."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from capbench.errors import BadSetting

ExecutorName = Literal["local", "ray"]

ADDRESS = re.compile(r"auto|(ray://)?(?P<host>\[[^\[\]/\s]+\]|[^\[\]:/\s]+):(?P<port>\d{1,5})")


@dataclass(frozen=True)
class ComputeTarget:
    """Where trial groups run, as the command line words it. It changes no number and is in no trial's key."""

    device: str = "auto"
    executor: ExecutorName = "local"
    address: str = "auto"
    gpus: float = 1.0
    """Share of a GPU that one trial group takes on a cluster."""

    def check(self) -> None:
        """Raises BadSetting for values without a meaning, before a cluster is contacted."""
        if self.executor not in ("local", "ray"):
            raise BadSetting(f"--executor takes local or ray, got {self.executor!r}")
        if self.executor == "local" and (self.address, self.gpus) != (ComputeTarget.address, ComputeTarget.gpus):
            raise BadSetting("--address and --gpus are for a Ray cluster; add --executor ray, or leave them out")
        if not ADDRESS.fullmatch(self.address):
            raise BadSetting(f"--address takes auto, HOST:PORT or ray://HOST:PORT, got {self.address!r}")
        if not 0 < self.gpus <= 1:
            raise BadSetting(f"--gpus takes a share of one GPU, above 0 and up to 1, got {self.gpus:g}")
