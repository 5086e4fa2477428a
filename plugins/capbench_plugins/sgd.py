"""Gradient descent with momentum."""

from __future__ import annotations

from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from capbench import Solver, hookimpl
from capbench_plugins.schedule import Scheduled


class Sgd(Scheduled):
    """Gradient descent with momentum (Polyak 1964; Sutskever et al. 2013 with nesterov).

    Its learning rates are not those of Adam, which the tasks propose: give `--lr`, or let `--settle` extend them.
    """

    name: ClassVar[str] = "sgd"

    momentum: float = Field(0.9, ge=0, lt=1, description="share of the last update that is repeated")
    nesterov: bool = Field(False, description="whether the gradient is taken ahead, in the direction of the momentum")

    def init(self, weights: Tensor) -> dict[str, Tensor]:
        """The velocity, at zero."""
        return {"velocity": torch.zeros_like(weights)}

    def update(
        self,
        weights: Tensor,
        gradient: Tensor,
        state: dict[str, Tensor],
        learning_rate: Tensor,
        step: Tensor,
        steps: Tensor,
    ) -> None:
        """One step along the velocity, in place."""
        velocity = state["velocity"].mul_(self.momentum).add_(gradient)
        direction = gradient + self.momentum * velocity if self.nesterov else velocity
        weights.sub_(learning_rate * self.schedule(step, steps) * direction)


@hookimpl
def capbench_solvers() -> list[type[Solver]]:
    """Gradient descent."""
    return [Sgd]
