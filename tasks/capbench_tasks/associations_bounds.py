"""How many pairs a linear associative memory holds: the conjectured law of Barnfield et al. 2026."""

from __future__ import annotations

import math
from typing import ClassVar

from scipy.special import lambertw

from capbench import (
    FACTS,
    Architecture,
    Bound,
    BoundValue,
    CalibrationCell,
    Kind,
    NotApplicable,
    Pedigree,
    Task,
    hookimpl,
)
from capbench_tasks.associations import PairAssociations

LINEAR_MEMORIES = ("linear_memory", "bilinear")
"""The architecture with one matrix between keys and values, and its old name."""


class TopOne(Bound):
    """How many pairs one matrix holds if every value must beat all others."""

    name: ClassVar[str] = "barnfield2026.top_one"
    kind: ClassVar[Kind] = Kind.LAW
    statement: ClassVar[str] = (
        "a d x d linear memory holds n random pairs by top-1 read-out up to d² of order n ln n; the constant 2 is "
        "conjectured"
    )
    formula: ClassVar[str] = "d² ~ 2 n ln n"
    citation: ClassVar[str] = (
        "Barnfield, Kim, Nichani, Lee & Lu 2026, Sharp Capacity Thresholds in Linear Associative Memory, "
        "arXiv 2605.05189"
    )
    pedigree: ClassVar[Pedigree] = Pedigree.PAPER
    calibration: ClassVar[tuple[CalibrationCell, ...]] = tuple(
        CalibrationCell(
            f"linear memory d={d}, trained",
            PairAssociations.name,
            LINEAR_MEMORIES[0],
            settings=(f"task.d_item={d}", f"task.n_pairs={5 * d}"),
        )
        for d in (8, 12)
    )

    def evaluate(self, task: Task, architecture: Architecture, load: int | None) -> BoundValue:
        """The n at which 2 n ln n equals d²."""
        if not isinstance(task, PairAssociations):
            raise NotApplicable("it is about associations of random vectors")
        if architecture.name not in LINEAR_MEMORIES:
            raise NotApplicable(f"it is about one matrix between keys and values; {architecture.name} is another model")
        pairs = math.exp(lambertw(task.d_item**2 / 2).real)  # solves n ln n = d² / 2
        return BoundValue(pairs, FACTS, "as n grows; conjectured from a small-tail extrapolation")


@hookimpl
def capbench_bounds() -> list[type[Bound]]:
    """The law."""
    return [TopOne]
