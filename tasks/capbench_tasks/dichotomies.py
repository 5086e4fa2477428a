"""Dichotomies: on which side of a surface does each of N randomly labelled points lie?

Cover, "Geometrical and Statistical Properties of Systems of Linear Inequalities with Applications in Pattern
Recognition", IEEE Transactions on Electronic Computers EC-14, 1965, doi 10.1109/PGEC.1965.264137.
"""

from __future__ import annotations

import math
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Generator, Tensor
from torch.nn import functional as F

from capbench import Criterion, LoadOutOfRange, Problem, Recall, Recipe, Task, hookimpl


class Dichotomies(Task):
    """Give each of N points its random label, + or -. A fact is one labelled point.

    To architectures with a context, the context of a point is the point itself.
    """

    name: ClassVar[str] = "dichotomies"
    fact: ClassVar[str] = "point"
    scoring_fields: ClassVar[frozenset[str]] = frozenset({"n_points"})
    criterion: ClassVar[Criterion] = Criterion("accuracy", 1.0)
    recipe: ClassVar[Recipe] = Recipe(learning_rates=(0.1, 0.3, 1.0), steps=2000)
    presets: ClassVar = {"smoke": {"d_input": 8, "n_points": 128}}

    d_input: int = Field(16, ge=1, le=4096, description="d: coordinates of a point")
    points: Literal["gaussian", "one_hot"] = Field(
        "gaussian",
        description="gaussian: random, so in general position; one_hot: unit vectors in turn, so that points beyond "
        "the d-th repeat earlier ones",
    )
    n_points: int = Field(1024, ge=1, le=1_000_000, description="the largest load that a search may try")

    @property
    def signature(self) -> Recall:
        """A point in, one score out: its sign is the label."""
        return Recall(n_context=1, d_input=self.d_input, n_classes=1)

    @property
    def max_load(self) -> int:
        """`n_points`: points are drawn from a continuum, so the limit is the user's."""
        return self.n_points

    @property
    def typical_load(self) -> int:
        """Twice the dimensions, where half of all labellings are separable, or as many as allowed."""
        return min(self.max_load, 2 * self.d_input)

    def problem(self, load: int, slots: int, generator: Generator) -> Problem:
        """`load` points with random labels; the slots beyond them repeat points, masked out."""
        if not 1 <= load <= self.max_load:
            raise LoadOutOfRange(f"dichotomies has 1 to {self.max_load} points, got {load}; raise n_points")
        slot = torch.arange(slots)
        points = self._points(load, generator)[slot % load]  # (slots, d)
        labels = (2.0 * torch.randint(2, (load,), generator=generator) - 1)[slot % load]  # (slots,)
        return Problem((points.unsqueeze(1), points), labels, (slot < load).to(points.dtype))

    def loss(self, outputs: Tensor, problem: Problem) -> Tensor:
        """Mean logistic loss of the scores."""
        return _mean(self._losses(outputs, problem), problem.mask)

    def metrics(self, outputs: Tensor, problem: Problem) -> dict[str, Tensor]:
        """Share of points on their side, and the bits of the labels that the scores store."""
        is_right = (outputs[:, 0] * problem.targets > 0).to(outputs.dtype)
        bits = 1 - self._losses(outputs, problem) / math.log(2)  # (slots,)
        return {
            "accuracy": _mean(is_right, problem.mask),
            "bits": (bits * problem.mask).sum().clamp(min=0.0),
        }

    def handicapped(self, outputs: Tensor, problem: Problem, share: float) -> Tensor:
        """The scores set back towards the other side of 0 by a share of the largest one."""
        scale = (outputs[:, 0].abs() * problem.mask).max()
        return outputs - share * scale * problem.targets.unsqueeze(1)

    def _points(self, load: int, generator: Generator) -> Tensor:
        if self.points == "one_hot":
            return torch.eye(self.d_input)[torch.arange(load) % self.d_input]
        return torch.randn(load, self.d_input, generator=generator)

    def _losses(self, outputs: Tensor, problem: Problem) -> Tensor:
        """Logistic loss of each point in nats, (slots,)."""
        return F.softplus(-outputs[:, 0] * problem.targets)


def _mean(values: Tensor, mask: Tensor) -> Tensor:
    """Mean over the points."""
    return (values * mask).sum() / mask.sum()


@hookimpl
def capbench_tasks() -> list[type[Task]]:
    """Random dichotomies."""
    return [Dichotomies]
