"""The old name of the linear associative memory."""

from __future__ import annotations

from typing import ClassVar

from capbench import Architecture, hookimpl
from capbench_plugins.linear_memory import LinearMemory


class Bilinear(LinearMemory):
    """The old name of `linear_memory`, kept for results under it; the gated MLP is `gated_mlp` with gate=bilinear."""

    name: ClassVar[str] = "bilinear"


@hookimpl
def capbench_architectures() -> list[type[Architecture]]:
    """The associative memory under its old name."""
    return [Bilinear]
