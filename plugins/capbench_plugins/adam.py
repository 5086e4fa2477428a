"""Adam over a stack of models, each with a learning rate of its own."""

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

    beta1: float = Field(0.9, ge=0, lt=1, description="memory of the mean gradient")
    beta2: float = Field(0.999, ge=0, lt=1, description="memory of the mean squared gradient")
    epsilon: float = Field(1e-8, gt=0, description="keeps the step finite where gradients vanish")
    decay: Literal["cosine", "linear", "constant"] = Field("cosine", description="how the learning rate falls")
    final_share: float = Field(0.0, ge=0, le=1, description="share of the learning rate left at the last step")
    warmup: float = Field(0.0, ge=0, lt=1, description="share of the steps over which the rate rises linearly")

    def init(self, weights: Tensor) -> dict[str, Tensor]:
        """Both running means at zero."""
        return {"mean": torch.zeros_like(weights), "square": torch.zeros_like(weights)}

    def update(
        self,
        weights: Tensor,
        gradient: Tensor,
        state: dict[str, Tensor],
        learning_rate: Tensor,
        step: Tensor,
        steps: int,
    ) -> None:
        """One step with bias correction."""
        mean, square = state["mean"], state["square"]
        mean.lerp_(gradient, 1 - self.beta1)
        square.mul_(self.beta2).addcmul_(gradient, gradient, value=1 - self.beta2)
        root = torch.sqrt(1 - self.beta2 ** (step + 1))
        rate = learning_rate * (self.schedule(step, steps) * root / (1 - self.beta1 ** (step + 1)))  # (lanes, 1)
        weights.sub_(rate * mean / (square.sqrt() + self.epsilon * root))

    def schedule(self, step: Tensor, steps: int) -> Tensor:
        """The learning rate at a step, as a share of the base rate."""
        warmup = self.warmup * steps
        done = (step - warmup) / max(steps - warmup, 1)
        decayed = self.final_share + (1 - self.final_share) * self._fall(done)
        return torch.where(step < warmup, (step + 1) / max(warmup, 1), decayed) if self.warmup else decayed

    def _fall(self, done: Tensor) -> Tensor:
        """From 1 to 0 over the decaying steps, of which a share is done."""
        if self.decay == "cosine":
            return 0.5 * (1 + torch.cos(math.pi * done))
        return 1 - done if self.decay == "linear" else torch.ones_like(done)


@hookimpl
def capbench_solvers() -> list[type[Solver]]:
    """The gradient solver."""
    return [Adam]
