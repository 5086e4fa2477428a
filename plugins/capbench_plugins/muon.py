"""Muon: matrices take steps of which all singular values are equal."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from capbench import Solver, hookimpl
from capbench_plugins.schedule import Scheduled

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of the quintic that brings singular values near 1 [code]."""
ADAM_RMS = 0.2
"""The root mean square of an update of Adam, which Muon's are scaled to [paper]."""


class Muon(Scheduled):
    """Muon (Jordan et al. 2024) for matrices, at the step size of Adam (Liu et al. 2025, arXiv 2502.16982); else Adam.

    A parameter with more than two axes is a stack of matrices. Embeddings count as matrices here; gains and biases do
    not, also where they have an axis of heads. Names tell them apart: `W_Q` and torch's `weight` are matrices, `b` and
    `alpha` are not.
    """

    name: ClassVar[str] = "muon"
    version: ClassVar[int] = 2
    uses_layout: ClassVar[bool] = True

    momentum: float = Field(0.95, ge=0, lt=1, description="decay rate of the running mean of a matrix's gradient")
    iterations: int = Field(5, ge=1, le=20, description="Newton-Schulz iterations")
    beta2: float = Field(0.999, ge=0, lt=1, description="for vectors, as in adam")
    epsilon: float = Field(1e-8, gt=0, description="for vectors, as in adam; and added to the norm of a matrix")

    def init(self, weights: Tensor) -> dict[str, Tensor]:
        """The running means of the gradient and of its square, at zero."""
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
        """One step of all parameters, in place."""
        mean, square = state["mean"], state["square"]
        mean.lerp_(gradient, 1 - self.momentum)
        square.mul_(self.beta2).addcmul_(gradient, gradient, value=1 - self.beta2)
        ahead = torch.lerp(gradient, mean, self.momentum)  # Nesterov's
        unbiased = mean / (1 - self.momentum ** (step + 1))
        deviation = (square / (1 - self.beta2 ** (step + 1))).sqrt() + self.epsilon
        direction = self._directions(ahead, unbiased / deviation)
        weights.sub_(learning_rate * self.schedule(step, steps) * direction)

    def _directions(self, ahead: Tensor, vectors: Tensor) -> Tensor:
        """The direction of each parameter, (lanes, n_parameters): orthogonal for matrices, else as given."""
        sizes = [math.prod(shape) for _, shape in self.layout]
        if not sizes:
            return vectors
        parts = zip(self.layout, *(torch.split(each, sizes, dim=1) for each in (ahead, vectors)), strict=True)
        return torch.cat([self._orthogonal(a, s) if is_matrix(n, s) else v for (n, s), a, v in parts], dim=1)

    def _orthogonal(self, row: Tensor, shape: tuple[int, ...]) -> Tensor:
        """(lanes, n) gradients of matrices -> the nearest matrices with equal singular values, at Adam's scale."""
        G = row.reshape(len(row), *shape)  # (lanes, …, rows, columns)
        X = orthogonalise(G if shape[-2] <= shape[-1] else G.mT, self.iterations, self.epsilon)
        X = X if shape[-2] <= shape[-1] else X.mT
        return ADAM_RMS * math.sqrt(max(shape[-2:])) * X.reshape(row.shape)


def is_matrix(name: str, shape: tuple[int, ...]) -> bool:
    """Whether a parameter is a matrix, or a stack of them, by the last part of its name that is no number."""
    if len(shape) < 2 or 1 in shape[-2:]:
        return False
    last = [part for part in name.split(".") if not part.isdigit()][-1]
    return last[0].isupper() or last.startswith("weight")


def orthogonalise(G: Tensor, iterations: int, epsilon: float) -> Tensor:
    """U Vᵀ of G = U S Vᵀ, about, by Newton-Schulz iterations; for matrices with no more rows than columns."""
    a, b, c = COEFFICIENTS
    X = G / (G.square().sum(dim=(-2, -1), keepdim=True).sqrt() + epsilon)
    for _ in range(iterations):
        A = X @ X.mT
        X = a * X + (b * A + c * A @ A) @ X
    return X


@hookimpl
def capbench_solvers() -> list[type[Solver]]:
    """Muon."""
    return [Muon]
