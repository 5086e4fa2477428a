"""What is known exactly about a hyperplane: Cover 1965 for points in general position, and a look-up table."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from scipy.special import bdtr

from capbench import (
    FACTS,
    Architecture,
    Bound,
    BoundValue,
    CalibrationCell,
    ExactBound,
    NotApplicable,
    Pedigree,
    Task,
    hookimpl,
)
from capbench_tasks.dichotomies import Dichotomies

COVER = "Cover 1965, IEEE Transactions on Electronic Computers EC-14, 326-334, doi 10.1109/PGEC.1965.264137"
WAYS = {"exact": "exact", "adam": "trained"}
"""The solvers of a calibration, and what the table calls them."""


def _dimensions(task: Task, architecture: Architecture, points: str) -> int:
    """The weights of a perceptron on such points, one per coordinate."""
    if not isinstance(task, Dichotomies):
        raise NotApplicable("it is about random dichotomies")
    if architecture.name != "perceptron":
        raise NotApplicable(f"it is about a hyperplane through the origin; {architecture.name} is none")
    if task.points != points:
        raise NotApplicable(f"it is about {points} points; points is {task.points!r}")
    return task.d_input


def _cells(label: str, d: int, points: str, solvers: Iterable[str] = WAYS) -> tuple[CalibrationCell, ...]:
    """The runs of one size, one per solver."""
    settings = (f"task.d_input={d}", f"task.points={points}", f"task.n_points={8 * d}")
    return tuple(
        CalibrationCell(f"{label}={d}, {WAYS[solver]}", Dichotomies.name, "perceptron", solver, settings)
        for solver in solvers
    )


class Separable(ExactBound):
    """Twice as many random points as dimensions are separable half of the time."""

    name: ClassVar[str] = "cover1965.separable"
    statement: ClassVar[str] = (
        "N points in general position with random labels are separable by a hyperplane through the origin with "
        "probability 2^(1-N) times the number of ways to choose fewer than d of N-1: one half at N = 2d"
    )
    formula: ClassVar[str] = "P(N) = 2^(1-N) Σ_{k<d} C(N-1, k); capacity = 2d"
    citation: ClassVar[str] = f"{COVER}, Theorem 1"
    pedigree: ClassVar[Pedigree] = Pedigree.PAPER
    calibration: ClassVar[tuple[CalibrationCell, ...]] = tuple(
        cell for d in (8, 16, 32) for cell in _cells("perceptron d", d, "gaussian")
    )

    def evaluate(self, task: Task, architecture: Architecture, load: int | None) -> BoundValue:
        """2d."""
        return BoundValue(2 * _dimensions(task, architecture, "gaussian"), FACTS, "half of the labellings")

    def success(self, task: Task, architecture: Architecture, load: int) -> float:
        """The share of labellings that are separable: fewer than d heads in N - 1 tosses of a coin."""
        d = _dimensions(task, architecture, "gaussian")
        return float(bdtr(min(d - 1, load - 1), load - 1, 0.5))


class TableRows(ExactBound):
    """A table holds as many facts as it has rows, and those beyond only by luck."""

    name: ClassVar[str] = "table.rows"
    statement: ClassVar[str] = (
        "a look-up table of d rows with one weight each holds any d labels; each further one shares a row, and agrees "
        "with it half of the time"
    )
    formula: ClassVar[str] = "P(N) = 2^(-max(0, N - d)); capacity = d + 1"
    citation: ClassVar[str] = f"counting of collisions, derived for capbench; cf. {COVER}, for general position"
    pedigree: ClassVar[Pedigree] = Pedigree.DERIVED
    # No powers of two, which a search tries itself: it would place the step midway to the next load, 2 % too high.
    calibration: ClassVar[tuple[CalibrationCell, ...]] = (
        *_cells("table rows", 100, "one_hot"),
        *_cells("table rows", 200, "one_hot", solvers=("exact",)),
    )

    def evaluate(self, task: Task, architecture: Architecture, load: int | None) -> BoundValue:
        """d + 1: d facts always fit, and one more fits half of the time."""
        d = _dimensions(task, architecture, "one_hot")
        return BoundValue(d + 1, FACTS, f"{d} always fit; one more agrees with its row half of the time")

    def success(self, task: Task, architecture: Architecture, load: int) -> float:
        """The probability that every point beyond the rows has the label of its row."""
        return float(0.5 ** max(0, load - _dimensions(task, architecture, "one_hot")))


@hookimpl
def capbench_bounds() -> list[type[Bound]]:
    """Both exact capacities."""
    return [Separable, TableRows]
