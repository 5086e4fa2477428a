"""A bound on trial: where it applies, how tight it is, and the cells that contradict it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import fmean, median
from typing import Literal

from pydantic import Field

from capbench.contract.bound import D_K, FACTS, Bound, Kind
from capbench.documents.result import BoundRecord, Record
from capbench.measure.theory import LARGEST_HELD, compare
from capbench.studies.theories.cells import MeasuredCell

Verdict = Literal["holds", "gaps", "broken", "rejected", "compared", "untested", "failed"]
FAILING = ("broken", "failed")
"""Verdicts of which one is wrong, the theory or the measurement, or on a theory that cannot be evaluated."""
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

    cell: MeasuredCell
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

    bound: Bound
    n_cells: int
    n_applies: int
    judged: tuple[JudgedCell, ...]
    reasons: Counter[str]

    @property
    def has_failed(self) -> bool:
        """Whether the bound raised an error of its own."""
        return any(reason.startswith(RAISED) for reason in self.reasons)


def judge(bounds: Iterable[type[Bound]], cells: Sequence[MeasuredCell], limits: LawLimits) -> list[TheoryRow]:
    """Every bound on every cell: upper bounds first, then guarantees, exact curves and laws."""
    order = (Kind.UPPER, Kind.LOWER, Kind.EXACT, Kind.LAW)
    trials = [try_bound(bound(), cells) for bound in sorted(bounds, key=lambda b: (order.index(b.kind), b.name))]
    return [_law_row(trial, limits) if trial.bound.kind is Kind.LAW else _bound_row(trial) for trial in trials]


def try_bound(bound: Bound, cells: Iterable[MeasuredCell]) -> BoundOnCells:
    """Evaluates a bound on every cell, with the reason where it cannot be compared."""
    judged: list[JudgedCell] = []
    reasons: Counter[str] = Counter()
    n_cells = n_applies = 0
    for cell in cells:
        n_cells += 1
        found = _evaluate(bound, cell)
        if isinstance(found, str):
            reasons[found] += 1
            continue
        n_applies += found.value is not None
        reason = _why_not(bound, cell, found)
        if reason:
            reasons[reason] += 1
        else:
            judged.append(_judged(bound, cell, found))
    return BoundOnCells(bound, n_cells, n_applies, tuple(judged), reasons)


def _evaluate(bound: Bound, cell: MeasuredCell) -> BoundRecord | str:
    """The bound beside the measurement; an error of the bound's own code as text."""
    try:
        return compare([type(bound)], cell.task, cell.architecture, cell.load, cell.measured)[0]
    except Exception as error:  # noqa: BLE001 - the border to a plugin: whatever it raises is a verdict on it
        return RAISED + " ".join(f"{type(error).__name__}: {error}".split())[:120]


def _why_not(bound: Bound, cell: MeasuredCell, found: BoundRecord) -> str:
    """Why a bound cannot be compared with a cell; empty where it can."""
    if found.value is None:
        return found.reason or "no reason given"
    if found.quantity not in cell.measured:
        return f"the run did not measure {found.quantity}"
    if found.quantity == D_K and not cell.is_held:
        return "no trial held the load, so that its D_K is not known to be enough"
    if found.value <= 0 and (bound.kind is not Kind.UPPER or found.is_floor):
        return "it says nothing here: its value is not above 0"
    if bound.kind is Kind.LAW and cell.measured[found.quantity] <= 0:
        return f"the run measured no {found.quantity} above 0"
    if bound.kind in (Kind.LAW, Kind.EXACT) and not cell.is_estimated:
        return "the capacity is known from one side only"
    return ""


def _judged(bound: Bound, cell: MeasuredCell, found: BoundRecord) -> JudgedCell:
    assert found.value is not None
    measured = cell.measured[found.quantity]
    is_beyond = _is_beyond(bound, cell, found, measured)
    if is_beyond and bound.kind is Kind.UPPER and found.quantity == FACTS:
        measured = max(measured, cell.measured.get(LARGEST_HELD, 0.0))
    return JudgedCell(cell, found.quantity, found.value, measured, is_beyond)


def _is_beyond(bound: Bound, cell: MeasuredCell, found: BoundRecord, measured: float) -> bool:
    """Whether a measurement is on the excluded side of an upper bound, or below a guarantee."""
    assert found.value is not None
    if bound.kind is Kind.UPPER:
        return found.holds is False or (found.value <= 0 and not found.is_floor and measured > found.value)
    is_short = measured > found.value if found.is_floor else measured < found.value
    return bound.kind is Kind.LOWER and is_short and cell.result.capacity.status != "at_least"


def _bound_row(trial: BoundOnCells) -> TheoryRow:
    beyond = [each for each in trial.judged if each.is_beyond]
    is_upper = trial.bound.kind is Kind.UPPER
    why = "beyond the bound" if is_upper else "training reached less than is guaranteed"
    verdict: Verdict = "holds"
    if trial.has_failed:
        verdict = "failed"
    elif not trial.judged:
        verdict = "untested"
    elif beyond:
        verdict = "broken" if is_upper else "gaps"
    elif trial.bound.kind is Kind.EXACT:
        verdict = "compared"
    row = _row(trial, verdict, [each.against(why) for each in beyond])
    counts = {"violations": len(beyond)} if is_upper else {"gaps": len(beyond)}
    return row.model_copy(update=counts)


def _law_row(trial: BoundOnCells, limits: LawLimits) -> TheoryRow:
    """A law: its constant within each series of sizes, and how well the smaller sizes predict the larger ones."""
    series = [each for each in map(LawSeries, series_of(trial.judged).values()) if len(each.sizes) > 1]
    errors = [error for each in series for _, error in each.held_out_errors]
    found = _off_law(series, limits, rms(errors))
    verdict: Verdict = "failed" if trial.has_failed else "rejected" if found else "holds" if series else "untested"
    return _row(trial, verdict, found).model_copy(
        update={
            "violations": len(found),
            "series": len(series),
            "constant": geometric_mean(trial.judged),
            "spread": max((each.spread for each in series), default=None),
            "heldout_error": rms(errors),
        }
    )


class LawSeries:
    """Cells that differ in sizes only, on which the constant of a law must stay the same."""

    def __init__(self, cells: Iterable[JudgedCell]) -> None:
        self.cells = sorted(cells, key=lambda each: each.cell.result.n_parameters)
        self.sizes = sorted({each.cell.result.n_parameters for each in self.cells})

    @property
    def spread(self) -> float:
        """Largest / smallest constant."""
        constants = [each.ratio for each in self.cells]
        return max(constants) / min(constants)

    @property
    def held_out_errors(self) -> list[tuple[JudgedCell, float]]:
        """log(measured / predicted) of the larger half of the sizes, by the constant of the smaller half."""
        last = self.sizes[(len(self.sizes) + 1) // 2 - 1]
        n_small = sum(each.cell.result.n_parameters <= last for each in self.cells)
        constant = geometric_mean(self.cells[:n_small])
        assert constant is not None
        return [(each, math.log(each.ratio / constant)) for each in self.cells[n_small:]]


def _off_law(series: Sequence[LawSeries], limits: LawLimits, error: float | None) -> list[Contradiction]:
    """The cells against a law: both ends of a constant that is none, and the worst predicted of a law that errs."""
    found: dict[str, Contradiction] = {}
    for each in series:
        if each.spread > limits.spread:
            why = f"the constant differs by a factor of {each.spread:.3g} in this series; allowed: {limits.spread:g}"
            for cell in (min(each.cells, key=_ratio), max(each.cells, key=_ratio)):
                found[cell.cell.result.run_id] = cell.against(f"constant {cell.ratio:.3g}; {why}")
    if error is not None and error > limits.error:
        for cell, off in (pair for each in series for pair in each.held_out_errors):
            if abs(off) > limits.error:
                why = f"measured / predicted from smaller sizes = {math.exp(off):.3g}; held-out error {error:.3g}"
                found.setdefault(cell.cell.result.run_id, cell.against(f"{why}, allowed: {limits.error:g}"))
    return list(found.values())


def _row(trial: BoundOnCells, verdict: Verdict, contradictions: Sequence[Contradiction]) -> TheoryRow:
    ratios = [each.ratio for each in trial.judged if each.value > 0]
    return TheoryRow(
        bound=trial.bound.name,
        kind=trial.bound.kind.value,
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


def series_of(judged: Iterable[JudgedCell]) -> dict[str, list[JudgedCell]]:
    """Cells by series and quantity: one law may give several quantities."""
    ordered = sorted(judged, key=series_name)
    return {name: list(cells) for name, cells in groupby(ordered, key=series_name)}


def series_name(judged: JudgedCell) -> str:
    """The series of a cell, and the quantity."""
    return f"{judged.cell.series} {judged.quantity}"


def geometric_mean(judged: Sequence[JudgedCell]) -> float | None:
    """The constant of a law: the mean of its logs."""
    return math.exp(fmean(math.log(each.ratio) for each in judged)) if judged else None


def rms(errors: Sequence[float]) -> float | None:
    """Root mean square; None of nothing."""
    return math.sqrt(fmean(error**2 for error in errors)) if errors else None


def _ratio(judged: JudgedCell) -> float:
    return judged.ratio
