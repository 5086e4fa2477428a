"""Bounds beside a measurement: each evaluated, compared, and enforced where it is an upper bound."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from capbench.contract.architecture import Architecture
from capbench.contract.bound import D_K, FACTS, Bound, Kind
from capbench.contract.task import Task
from capbench.documents.result import BoundRecord, Capacity
from capbench.errors import BoundBroken, NotApplicable

LARGEST_HELD = "largest load held"
"""Key of the largest load that any trial held, in the measured values."""


def measured_values(
    capacity: Capacity, at: int | None, values: Mapping[str, float], largest_held: int | None
) -> tuple[int, dict[str, float]]:
    """The load at which bounds are evaluated, and the measured values there by quantity; `at` is a load given."""
    measured = dict(values)
    if capacity.kind == "largest_load":
        at = max(1, round(capacity.estimate))
        measured |= {FACTS: capacity.estimate, LARGEST_HELD: float(largest_held or 0)}
    assert at is not None
    if capacity.d_qk_total is not None:
        measured[D_K] = capacity.d_qk_total
    return at, measured


def compare(
    bounds: Iterable[type[Bound]],
    task: Task,
    architecture: Architecture,
    load: int | None,
    measured: Mapping[str, float],
) -> list[BoundRecord]:
    """Evaluates every bound at a load, and compares it with the measured values by quantity."""
    return [_compare_one(bound(), task, architecture, load, measured) for bound in bounds]


def is_lower_better(bound: Bound, quantity: str, task: Task) -> bool:
    """Whether less of a bounded quantity is better: as the bound states, or else for D_K and falling criteria."""
    if bound.lower_is_better is not None:
        return bound.lower_is_better
    return quantity == D_K or (quantity == task.criterion.metric and not task.criterion.at_least)


def _compare_one(
    bound: Bound, task: Task, architecture: Architecture, load: int | None, measured: Mapping[str, float]
) -> BoundRecord:
    try:
        found = bound.evaluate_on(task, architecture, load, measured)
    except NotApplicable as error:
        return _record(bound, quantity="", reason=str(error))
    lower_is_better = is_lower_better(bound, found.quantity, task)
    record = _record(
        bound, quantity=found.quantity, value=found.value, note=found.note, lower_is_better=lower_is_better
    )
    value = measured.get(found.quantity)
    if value is None or found.value <= 0:
        return record
    if bound.kind is Kind.LAW:
        return record.model_copy(update={"measured": value, "constant": value / found.value})
    if bound.kind is Kind.EXACT:  # estimates lie on both sides of it, so that nothing can break it
        return record.model_copy(update={"measured": value, "ratio": value / found.value})
    is_ceiling = bound.kind is Kind.UPPER and not lower_is_better
    # A ceiling on facts must hold for every single trial, not only for the estimate.
    extreme = measured.get(LARGEST_HELD, value) if found.quantity == FACTS else value
    holds = extreme <= found.value if is_ceiling else value >= found.value
    return record.model_copy(update={"measured": value, "ratio": value / found.value, "holds": holds})


def _record(
    bound: Bound,
    *,
    quantity: str,
    value: float | None = None,
    note: str = "",
    lower_is_better: bool = False,
    reason: str | None = None,
) -> BoundRecord:
    return BoundRecord(
        id=bound.name,
        kind=bound.kind.value,
        quantity=quantity,
        value=value,
        pedigree=bound.pedigree.value,
        citation=bound.citation,
        note=note,
        lower_is_better=lower_is_better,
        reason=reason,
    )


def refuse_broken(records: Iterable[BoundRecord]) -> None:
    """Raises BoundBroken where a measurement is beyond an upper bound: one of the two numbers is wrong."""
    for record in records:
        if record.kind == "upper" and record.holds is False:
            side = "below the floor" if record.is_floor else "above the bound"
            raise BoundBroken(
                f"measured {record.quantity} {record.measured:g} is {side} {record.value:g} of {record.id} "
                f"[{record.pedigree}]: one of the two is wrong; please report it with the run's --json"
            )


def bracket(bounds: Iterable[type[Bound]], task: Task, architecture: Architecture) -> tuple[float, float]:
    """The range in which theory expects the capacity, where a search starts.

    Exact bounds are left out: a calibration that starts at the answer would prove nothing.
    """
    records = compare(bounds, task, architecture, None, {})
    facts = [r for r in records if r.quantity == FACTS and r.value]
    guaranteed = [r.value for r in facts if r.kind == "lower" and r.value]
    expected = [r.value for r in facts if r.kind == "law" and r.value]
    impossible = [r.value for r in facts if r.kind == "upper" and r.value]
    low = min([v / 2 for v in guaranteed] + [v / 8 for v in expected], default=1.0)
    high = max([v * 32 for v in guaranteed] + [v * 8 for v in expected], default=float(task.max_load))
    high = min([high, float(task.max_load), *impossible])
    return max(1.0, min(low, high)), max(1.0, high)
