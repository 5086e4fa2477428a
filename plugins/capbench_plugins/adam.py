"""Adam over a stack of models, each with its own learning rate."""

from __future__ import annotations

import math
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from capbench import GradientSolver, Solver, hookimpl


class Adam(GradientSolver):
    """Adam (Kingma & Ba, arXiv 1412.6980) with warm-up and a decaying learning rate."""

    name: ClassVar[str] = "adam"

    beta1: float = Field(0.9, ge=0, lt=1, description="decay rate of the running mean of the gradient")
    beta2: float = Field(0.999, ge=0, lt=1, description="decay rate of the running mean of the squared gradient")
    epsilon: float = Field(
        1e-8, gt=0, description="added to the denominator; keeps the update finite where gradients vanish"
    )
    decay: Literal["cosine", "linear", "constant"] = Field("cosine", description="how the learning rate decays")
    final_share: float = Field(
        0.0, ge=0, le=1, description="learning rate at the last step, as a share of the base rate"
    )
    warmup: float = Field(0.0, ge=0, lt=1, description="share of the steps over which the learning rate rises linearly")

    def init(self, weights: Tensor) -> dict[str, Tensor]:
        """Both running means, at zero."""
        return {"mean": torch.zeros_like(weights), "square": torch.zeros_like(weights)}

    def update(
        self,
        weights: Tensor,
        gradient: Tensor,
        state: dict[str, Tensor],
        learning_rate: Tensor,
        step: Tensor,
        steps: Tensor,
    ) -> None:
        """One Adam step with bias correction, in place."""
        mean, square = state["mean"], state["square"]
        mean.lerp_(gradient, 1 - self.beta1)
        square.mul_(self.beta2).addcmul_(gradient, gradient, value=1 - self.beta2)
        root = torch.sqrt(1 - self.beta2 ** (step + 1))
        rate = learning_rate * (self.schedule(step, steps) * root / (1 - self.beta1 ** (step + 1)))  # (lanes, 1)
        weights.sub_(rate * mean / (square.sqrt() + self.epsilon * root))

    def schedule(self, step: Tensor, steps: Tensor) -> Tensor:
        """The learning rate at a step, as a share of the base rate."""
        warmup = self.warmup * steps
        done = (step - warmup) / (steps - warmup).clamp(min=1)
        decayed = self.final_share + (1 - self.final_share) * self._decay(done)
        return torch.where(step < warmup, (step + 1) / warmup.clamp(min=1), decayed) if self.warmup else decayed

    def _decay(self, done: Tensor) -> Tensor:
        """The decay curve, from 1 to 0 as `done` goes from 0 to 1."""
        if self.decay == "cosine":
            return 0.5 * (1 + torch.cos(math.pi * done))
        return 1 - done if self.decay == "linear" else torch.ones_like(done)


@hookimpl
def capbench_solvers() -> list[type[Solver]]:
    """The gradient solver."""
    return [Adam]
