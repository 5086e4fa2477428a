"""Laws: the constant within each series of sizes, and how well the smaller sizes predict the larger ones."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import groupby
from statistics import fmean

from capbench.studies.theories.judged import (
    BoundOnCells,
    Contradiction,
    JudgedCell,
    LawLimits,
    TheoryRow,
    Verdict,
    theory_row,
)


def law_row(trial: BoundOnCells, limits: LawLimits) -> TheoryRow:
    """A law: its constant within each series of sizes, and how well the smaller sizes predict the larger ones."""
    series = [each for each in map(LawSeries, series_of(trial.judged).values()) if len(each.sizes) > 1]
    errors = [error for each in series for _, error in each.held_out_errors]
    found = _off_law(series, limits, rms(errors))
    verdict: Verdict = "failed" if trial.has_failed else "rejected" if found else "holds" if series else "untested"
    return theory_row(trial, verdict, found).model_copy(
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
            for cell in (min(each.cells, key=lambda each: each.ratio), max(each.cells, key=lambda each: each.ratio)):
                found[cell.cell.result.run_id] = cell.against(f"constant {cell.ratio:.3g}; {why}")
    if error is not None and error > limits.error:
        for cell, off in (pair for each in series for pair in each.held_out_errors):
            if abs(off) > limits.error:
                why = f"measured / predicted from smaller sizes = {math.exp(off):.3g}; held-out error {error:.3g}"
                found.setdefault(cell.cell.result.run_id, cell.against(f"{why}, allowed: {limits.error:g}"))
    return list(found.values())


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
