"""The learning-rate schedule that gradient solvers share."""

from __future__ import annotations

from typing import Literal

from pydantic import Field
from torch import Tensor

from capbench import GradientSolver
from capbench_plugins.adam import Adam


class Scheduled(GradientSolver):
    """A gradient solver with the warm-up and decay of `adam`."""

    decay: Literal["cosine", "linear", "constant"] = Field("cosine", description="how the learning rate decays")
    final_share: float = Field(
        0.0, ge=0, le=1, description="learning rate at the last step, as a share of the base rate"
    )
    warmup: float = Field(0.0, ge=0, lt=1, description="share of the steps over which the learning rate rises linearly")

    def schedule(self, step: Tensor, steps: Tensor) -> Tensor:
        """The learning rate at a step, as a share of the base rate."""
        same = Adam(decay=self.decay, final_share=self.final_share, warmup=self.warmup)
        return same.schedule(step, steps)
