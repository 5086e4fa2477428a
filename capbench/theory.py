"""A measurement next to every bound that speaks of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from capbench.architecture import Architecture
from capbench.bound import D_K, FACTS, Bound, BoundValue, Kind
from capbench.errors import BoundBroken, NotApplicable
from capbench.results import BoundRecord
from capbench.task import Task

BUDGETS = frozenset({D_K, "kl", "excess_kl", "mse"})
"""Quantities of which less is better: what is impossible there is to go below."""
LARGEST_HELD = "largest load held"
"""Beside the estimated capacity: the largest load that any trial held. A ceiling on facts is checked against it."""


def compare(
    bounds: Iterable[type[Bound]],
    task: Task,
    architecture: Architecture,
    load: int | None,
    measured: Mapping[str, float],
) -> list[BoundRecord]:
    """Every bound evaluated at a load; `measured` gives what was found, by quantity."""
    return [_compare_one(bound(), task, architecture, load, measured) for bound in bounds]


def _compare_one(
    bound: Bound, task: Task, architecture: Architecture, load: int | None, measured: Mapping[str, float]
) -> BoundRecord:
    try:
        found = bound.evaluate(task, architecture, load)
    except NotApplicable as error:
        return _record(bound, BoundValue(0.0, ""), value=None, reason=str(error))
    seen = measured.get(found.quantity)
    if seen is None or found.value <= 0:
        return _record(bound, found, value=found.value)
    if bound.kind is Kind.LAW:
        return _record(bound, found, value=found.value, measured=seen, constant=seen / found.value)
    is_ceiling = bound.kind is Kind.UPPER and found.quantity not in BUDGETS
    extreme = measured.get(LARGEST_HELD, seen) if found.quantity == FACTS else seen
    holds = extreme <= found.value if is_ceiling else seen >= found.value
    return _record(bound, found, value=found.value, measured=seen, ratio=seen / found.value, holds=holds)


def _record(
    bound: Bound,
    found: BoundValue,
    *,
    value: float | None,
    measured: float | None = None,
    ratio: float | None = None,
    constant: float | None = None,
    holds: bool | None = None,
    reason: str | None = None,
) -> BoundRecord:
    return BoundRecord(
        id=bound.name,
        kind=bound.kind.value,
        quantity=found.quantity,
        value=value,
        measured=measured,
        ratio=ratio,
        constant=constant,
        pedigree=bound.pedigree.value,
        citation=bound.citation,
        holds=holds,
        note=found.note,
        reason=reason,
    )


def refuse_broken(records: Iterable[BoundRecord]) -> None:
    """Raises where a measurement is beyond what is provably possible: one of the two numbers is wrong."""
    for record in records:
        if record.kind == "upper" and record.holds is False:
            side = "below the floor" if record.quantity in BUDGETS else "above the bound"
            raise BoundBroken(
                f"measured {record.quantity} {record.measured:g} is {side} {record.value:g} of {record.id} "
                f"[{record.pedigree}]: one of the two is wrong; please report it with the run's --json"
            )


def bracket(bounds: Iterable[type[Bound]], task: Task, architecture: Architecture) -> tuple[float, float]:
    """Where theory expects the capacity: the range in which a search starts."""
    records = compare(bounds, task, architecture, None, {})
    facts = [r for r in records if r.quantity == FACTS and r.value]
    guaranteed = [r.value for r in facts if r.kind == "lower" and r.value]
    expected = [r.value for r in facts if r.kind == "law" and r.value]
    impossible = [r.value for r in facts if r.kind == "upper" and r.value]
    low = min([v / 2 for v in guaranteed] + [v / 8 for v in expected], default=1.0)
    high = max([v * 32 for v in guaranteed] + [v * 8 for v in expected], default=float(task.max_load))
    high = min([high, float(task.max_load), *impossible])
    return max(1.0, min(low, high)), max(1.0, high)
