"""L-BFGS: steps along an estimate of the inverse curvature, from the last few gradients."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from capbench import Solver, hookimpl
from capbench_plugins.schedule import Scheduled

LEAST_COSINE = 1e-3
"""A pair of steps and gradient changes at a wider angle says nothing certain about the curvature, and is left out."""
LEAST_PRODUCT = 1e-30
"""Nor does a pair whose inner product is smaller: its inverse would overflow."""


class Lbfgs(Scheduled):
    """L-BFGS (Liu & Nocedal 1989) with a trust region in place of a line search, for training on all facts at once.

    The learning rate is the largest root mean square of a step, so that the rates of Adam fit.
    """

    name: ClassVar[str] = "lbfgs"

    history: int = Field(8, ge=1, le=64, description="steps from which the curvature is estimated")

    def init(self, weights: Tensor) -> dict[str, Tensor]:
        """The last weights and gradient, and as many changes of both as there is history."""
        past = torch.zeros_like(weights).unsqueeze(1).repeat(1, self.history, 1)  # (lanes, history, n_parameters)
        return {"weights": weights.clone(), "gradient": torch.zeros_like(weights), "moved": past, "bent": past.clone()}

    def update(
        self,
        weights: Tensor,
        gradient: Tensor,
        state: dict[str, Tensor],
        learning_rate: Tensor,
        step: Tensor,
        steps: Tensor,
    ) -> None:
        """One step along the two-loop direction, in place."""
        for name, now in (("weights", weights), ("gradient", gradient)):
            past = state["moved" if name == "weights" else "bent"]
            past.copy_(torch.cat([past[:, 1:], (now - state[name]).unsqueeze(1)], dim=1))
            state[name].copy_(now)
        direction = two_loop(gradient, state["moved"], state["bent"])
        longest = learning_rate * self.schedule(step, steps) * math.sqrt(weights.shape[1])
        weights.sub_(direction * (longest / _norm(direction)).clamp(max=1.0))


def two_loop(gradient: Tensor, moved: Tensor, bent: Tensor) -> Tensor:
    """The gradient times the estimated inverse curvature, (lanes, n_parameters); just its direction without history."""
    product = (moved * bent).sum(dim=2)  # (lanes, history)
    lengths = moved.square().sum(dim=2).sqrt() * bent.square().sum(dim=2).sqrt()
    is_usable = product > (LEAST_COSINE * lengths).clamp(min=LEAST_PRODUCT)
    rho = torch.where(is_usable, 1 / torch.where(is_usable, product, 1.0), 0.0).unsqueeze(2)  # (lanes, history, 1)
    direction, shares = gradient, []
    for i in reversed(range(moved.shape[1])):
        shares.append(rho[:, i] * (moved[:, i] * direction).sum(dim=1, keepdim=True))
        direction = direction - shares[-1] * bent[:, i]
    direction = direction * _scale(gradient, product, bent, is_usable)
    for i, share in enumerate(reversed(shares)):
        direction = direction + moved[:, i] * (share - rho[:, i] * (bent[:, i] * direction).sum(dim=1, keepdim=True))
    return direction


def _scale(gradient: Tensor, product: Tensor, bent: Tensor, is_usable: Tensor) -> Tensor:
    """The inverse curvature along the last step; where it is not known, that which gives a step of length 1."""
    last = product[:, -1:] / (bent[:, -1].square().sum(dim=1, keepdim=True) + 1e-30)
    return torch.where(is_usable[:, -1:], last, 1 / _norm(gradient))


def _norm(x: Tensor) -> Tensor:
    return x.square().sum(dim=1, keepdim=True).sqrt().clamp(min=1e-30)


@hookimpl
def capbench_solvers() -> list[type[Solver]]:
    """L-BFGS."""
    return [Lbfgs]
