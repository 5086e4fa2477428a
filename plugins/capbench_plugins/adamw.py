"""AdamW: Adam with weight decay that does not pass through the running means."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field
from torch import Tensor

from capbench import Solver, hookimpl
from capbench_plugins.adam import Adam


class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov & Hutter 2019, arXiv 1711.05101)."""

    name: ClassVar[str] = "adamw"

    weight_decay: float = Field(0.01, ge=0, le=1, description="share by which weights shrink per step and unit of rate")

    def update(
        self,
        weights: Tensor,
        gradient: Tensor,
        state: dict[str, Tensor],
        learning_rate: Tensor,
        step: Tensor,
        steps: Tensor,
    ) -> None:
        """The weights shrink, then take a step of Adam, in place."""
        weights.mul_(1 - self.weight_decay * learning_rate * self.schedule(step, steps))
        super().update(weights, gradient, state, learning_rate, step, steps)


@hookimpl
def capbench_solvers() -> list[type[Solver]]:
    """Adam with weight decay."""
    return [AdamW]
