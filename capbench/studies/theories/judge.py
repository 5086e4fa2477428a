"""A bound on trial: where it applies, how tight it is, and the cells that contradict it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from capbench.contract.bound import D_K, FACTS, Bound, Kind
from capbench.documents.result import BoundRecord
from capbench.measure.theory import LARGEST_HELD, compare
from capbench.studies.theories.cells import MeasuredCell, RecordedCell
from capbench.studies.theories.judged import (
    RAISED,
    BoundOnCells,
    JudgedCell,
    LawLimits,
    TheoryRow,
    Verdict,
    theory_row,
)
from capbench.studies.theories.laws import law_row

FAILING = ("broken", "failed")
"""Verdicts of which one is wrong, the theory or the measurement, or on a theory that cannot be evaluated."""
MOST_RATIO = 1e100
"""Measured / bound beyond which only a forged document can be."""
ORDER = (Kind.UPPER, Kind.LOWER, Kind.EXACT, Kind.LAW)


def judge(bounds: Iterable[type[Bound]], cells: Sequence[MeasuredCell], limits: LawLimits) -> list[TheoryRow]:
    """Every bound, evaluated again on every cell: upper bounds first, then guarantees, exact curves and laws."""
    return _in_order((try_bound(bound(), cells) for bound in bounds), limits)


def judge_recorded(cells: Iterable[RecordedCell], limits: LawLimits) -> list[TheoryRow]:
    """The same from the values that documents state, without any plugin: a bound is known where a document names it."""
    found: dict[tuple[str, Kind], list[tuple[RecordedCell, BoundRecord]]] = defaultdict(list)
    for cell in cells:
        for record in cell.result.bounds:
            found[record.id, Kind(record.kind)].append((cell, record))
    return _in_order((_on_cells(name, kind, pairs) for (name, kind), pairs in found.items()), limits)


def try_bound(bound: Bound, cells: Iterable[MeasuredCell]) -> BoundOnCells:
    """Evaluates a bound on every cell, with the reason where it cannot be compared."""
    return _on_cells(bound.name, bound.kind, ((cell, _evaluate(bound, cell)) for cell in cells))


def _in_order(trials: Iterable[BoundOnCells], limits: LawLimits) -> list[TheoryRow]:
    ordered = sorted(trials, key=lambda trial: (ORDER.index(trial.kind), trial.name))
    return [law_row(trial, limits) if trial.kind is Kind.LAW else _bound_row(trial) for trial in ordered]


def _on_cells(name: str, kind: Kind, pairs: Iterable[tuple[RecordedCell, BoundRecord | str]]) -> BoundOnCells:
    """A bound beside the measurements, given its value on each cell, or the error that it raised."""
    judged: list[JudgedCell] = []
    reasons: Counter[str] = Counter()
    n_cells = n_applies = 0
    for cell, found in pairs:
        n_cells += 1
        if isinstance(found, str):
            reasons[found] += 1
            continue
        n_applies += found.value is not None
        reason = _why_not(kind, cell, found)
        if reason:
            reasons[reason] += 1
        else:
            judged.append(_judged(kind, cell, found))
    return BoundOnCells(name, kind, n_cells, n_applies, tuple(judged), reasons)


def _evaluate(bound: Bound, cell: MeasuredCell) -> BoundRecord | str:
    """The bound beside the measurement; an error of the bound's own code as text."""
    try:
        return compare([type(bound)], cell.task, cell.architecture, cell.load, cell.measured)[0]
    except Exception as error:  # noqa: BLE001 - the border to a plugin: whatever it raises is a verdict on it
        return RAISED + " ".join(f"{type(error).__name__}: {error}".split())[:120]


def _why_not(kind: Kind, cell: RecordedCell, found: BoundRecord) -> str:
    """Why a bound cannot be compared with a cell; empty where it can."""
    if found.value is None:
        return found.reason or "no reason given"
    if found.quantity not in cell.measured:
        return f"the run did not measure {found.quantity}"
    if found.quantity == D_K and not cell.is_held:
        return "no trial held the load, so that its D_K is not known to be enough"
    if found.value <= 0 and (kind is not Kind.UPPER or found.is_floor):
        return "it says nothing here: its value is not above 0"
    if kind is Kind.LAW and cell.measured[found.quantity] <= 0:
        return f"the run measured no {found.quantity} above 0"
    if found.value > 0 and not _has_usable_ratio(kind, cell.measured[found.quantity] / found.value):
        return f"measured and stated {found.quantity} differ by more than any measurement could"
    if kind in (Kind.LAW, Kind.EXACT) and not cell.is_estimated:
        return "the capacity is known from one side only"
    return ""


def _has_usable_ratio(kind: Kind, ratio: float) -> bool:
    """Whether measured / bound can be averaged and compared without leaving the range of floats; a law takes logs."""
    return abs(ratio) <= MOST_RATIO and (kind is not Kind.LAW or ratio >= 1 / MOST_RATIO)


def _judged(kind: Kind, cell: RecordedCell, found: BoundRecord) -> JudgedCell:
    assert found.value is not None
    measured = cell.measured[found.quantity]
    is_beyond = _is_beyond(kind, cell, found, measured)
    if is_beyond and kind is Kind.UPPER and found.quantity == FACTS:
        measured = max(measured, cell.measured.get(LARGEST_HELD, 0.0))
    return JudgedCell(cell, found.quantity, found.value, measured, is_beyond)


def _is_beyond(kind: Kind, cell: RecordedCell, found: BoundRecord, measured: float) -> bool:
    """Whether a measurement is on the excluded side of an upper bound, or below a guarantee."""
    assert found.value is not None
    if kind is Kind.UPPER:
        return found.holds is False or (found.value <= 0 and not found.is_floor and measured > found.value)
    is_short = measured > found.value if found.is_floor else measured < found.value
    return kind is Kind.LOWER and is_short and cell.result.capacity.status != "at_least"


def _bound_row(trial: BoundOnCells) -> TheoryRow:
    beyond = [each for each in trial.judged if each.is_beyond]
    is_upper = trial.kind is Kind.UPPER
    why = "beyond the bound" if is_upper else "training reached less than is guaranteed"
    verdict: Verdict = "holds"
    if trial.has_failed:
        verdict = "failed"
    elif not trial.judged:
        verdict = "untested"
    elif beyond:
        verdict = "broken" if is_upper else "gaps"
    elif trial.kind is Kind.EXACT:
        verdict = "compared"
    row = theory_row(trial, verdict, [each.against(why) for each in beyond])
    counts = {"violations": len(beyond)} if is_upper else {"gaps": len(beyond)}
    return row.model_copy(update=counts)
