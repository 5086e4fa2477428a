"""What a theory says of measured cells: beside each cell, and as one row of counts and ratios."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

from pydantic import Field

from capbench.contract.bound import Kind
from capbench.documents.result import Record
from capbench.studies.theories.cells import RecordedCell

Verdict = Literal["holds", "gaps", "broken", "rejected", "compared", "untested", "failed"]
RAISED = "it raised "
"""Begins the reason of a cell on which a bound raised an error of its own."""


@dataclass(frozen=True)
class LawLimits:
    """What a law must keep to on the cells."""

    spread: float = 2.0
    """Most that its constant may differ within a series of sizes, as largest / smallest."""
    error: float = 0.35
    """Most that its predictions of larger sizes may err: rms of log(measured / predicted)."""


class Contradiction(Record):
    """A cell that is beyond a bound, below what is guaranteed, or off the law."""

    run_id: str
    task: str
    architecture: str
    n_parameters: int
    quantity: str
    measured: float
    value: float
    """What the theory says: the bound, or the law's value with its constant set to 1."""
    why: str


class TheoryRow(Record):
    """A bound as --json prints it: counts of cells, its tightness, its verdict and the cells against it."""

    bound: str
    kind: Literal["lower", "upper", "law", "exact"]
    cells: int
    applies: int
    """Cells to which it applies."""
    judged: int
    """Those of them whose run measured the quantity, and where the bound says something."""
    violations: int
    """Cells beyond an upper bound, or off a law that is rejected."""
    gaps: int
    """Cells where training reached less than is guaranteed: an optimisation gap, which no theorem excludes."""
    median_ratio: float | None
    """Measured / bound; for a law its constant."""
    lowest_ratio: float | None
    highest_ratio: float | None
    series: int = 0
    """Series of a law: cells of at least two sizes that differ in sizes only."""
    constant: float | None = None
    """Of a law: the geometric mean."""
    spread: float | None = None
    """Largest / smallest constant within a series, in the worst one."""
    heldout_error: float | None = None
    """rms of log(measured / predicted), the constant of each series fitted on its smaller sizes."""
    verdict: Verdict
    contradictions: tuple[Contradiction, ...] = ()
    """The cells beyond it, below it, or off it."""
    reasons: dict[str, int] = Field(default_factory=dict)
    """Why it does not apply, or cannot be compared, with the number of cells."""


@dataclass(frozen=True)
class JudgedCell:
    """A cell beside the value of a bound on it."""

    cell: RecordedCell
    quantity: str
    value: float
    measured: float
    is_beyond: bool = False
    """Whether the measurement is on the side that the bound excludes, or that a guarantee does."""

    @property
    def ratio(self) -> float:
        """Measured / bound; for a law its constant."""
        return self.measured / self.value

    def against(self, why: str) -> Contradiction:
        """The cell as one that contradicts the theory."""
        result = self.cell.result
        return Contradiction(
            run_id=result.run_id,
            task=result.task.name,
            architecture=result.architecture.name,
            n_parameters=result.n_parameters,
            quantity=self.quantity,
            measured=self.measured,
            value=self.value,
            why=why,
        )


@dataclass(frozen=True)
class BoundOnCells:
    """A bound on all cells."""

    name: str
    kind: Kind
    n_cells: int
    n_applies: int
    judged: tuple[JudgedCell, ...]
    reasons: Counter[str]

    @property
    def has_failed(self) -> bool:
        """Whether the bound raised an error of its own."""
        return any(reason.startswith(RAISED) for reason in self.reasons)


def theory_row(trial: BoundOnCells, verdict: Verdict, contradictions: Sequence[Contradiction]) -> TheoryRow:
    """The row of a bound, its counts of violations and gaps still at 0."""
    ratios = [each.ratio for each in trial.judged if each.value > 0]
    return TheoryRow(
        bound=trial.name,
        kind=trial.kind.value,
        cells=trial.n_cells,
        applies=trial.n_applies,
        judged=len(trial.judged),
        violations=0,
        gaps=0,
        median_ratio=median(ratios) if ratios else None,
        lowest_ratio=min(ratios, default=None),
        highest_ratio=max(ratios, default=None),
        verdict=verdict,
        contradictions=tuple(contradictions),
        reasons=dict(trial.reasons.most_common()),
    )
