"""Where and how trial groups run, in the words of the command line, which imports this: no torch here."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from capbench.errors import BadSetting

ExecutorName = Literal["local", "ray"]
CompileMode = Literal["auto", "on", "off"]
Dtype = Literal["float32", "float64", "tf32", "bfloat16"]
TRIAL_TIMEOUT = 600.0
"""Seconds without progress after which a trial group counts as hanging."""

ADDRESS = re.compile(r"auto|(ray://)?(?P<host>\[[^\[\]/\s]+\]|[^\[\]:/\s]+):(?P<port>\d{1,5})")


@dataclass(frozen=True)
class ComputeTarget:
    """Where trial groups run, as given on the command line. It changes no number and is in no trial's key.

    Making one checks it: raises BadSetting for values without a meaning, before a cluster is contacted.
    """

    device: str = "auto"
    executor: ExecutorName = "local"
    address: str = "auto"
    gpus: float = 1.0
    """Share of a GPU that one trial group takes on a cluster."""

    def __post_init__(self) -> None:
        if self.executor not in ("local", "ray"):
            raise BadSetting(f"--executor takes local or ray, got {self.executor!r}")
        if self.executor == "local" and (self.address, self.gpus) != (ComputeTarget.address, ComputeTarget.gpus):
            raise BadSetting("--address and --gpus are for a Ray cluster; add --executor ray, or leave them out")
        if not ADDRESS.fullmatch(self.address):
            raise BadSetting(f"--address takes auto, HOST:PORT or ray://HOST:PORT, got {self.address!r}")
        if not 0 < self.gpus <= 1:
            raise BadSetting(f"--gpus takes a share of one GPU, above 0 and up to 1, got {self.gpus:g}")
