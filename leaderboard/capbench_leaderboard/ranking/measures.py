"""What charts and tables derive from an entry: bits per parameter with their interval, training cost, the front."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from capbench.contract.bound import FACTS
from capbench.documents.result import CONTEXT_BITS, BoundRecord, Result
from capbench_leaderboard.ranking.entry import BoardEntry

BITS_PER_PARAMETER = "bits_per_parameter"
"""The quantity of bounds that need no conversion."""


@dataclass(frozen=True)
class BitsEstimate:
    """Bits per parameter with the interval of the capacity; an open end is None."""

    value: float
    low: float | None
    high: float | None


def has_capacity(entry: BoardEntry) -> bool:
    """Whether the record says how many facts are held, in numbers that can be drawn."""
    result = entry.result
    return (
        result.capacity.kind == "largest_load"
        and result.capacity.estimate > 0
        and 0 <= _rescale(entry, result.capacity.estimate) < math.inf
    )


def holds_in_weights(entry: BoardEntry) -> bool:
    """Whether the facts are in the parameters, and not in a context that the state carries on."""
    return CONTEXT_BITS not in entry.result.metrics


def bits_per_element(result: Result) -> float | None:
    """Bits of the context that reach its end per element of the state; None where the facts are in the weights."""
    bits, size = result.metrics.get(CONTEXT_BITS), result.architecture.state_size
    return None if bits is None or size is None else bits / size


def bits_per_parameter(entry: BoardEntry) -> BitsEstimate:
    """The record's value, and the interval of its capacity at the bits per fact of its estimate."""
    low, high = entry.result.capacity.ci_low, entry.result.capacity.ci_high
    return BitsEstimate(
        entry.result.bits_per_parameter,
        None if low is None else _rescale(entry, max(0.0, low)),
        None if high is None else _rescale(entry, high),
    )


def bound_in_bits(entry: BoardEntry, bound: BoundRecord) -> float | None:
    """A bound on facts, or on bits per parameter, in bits per parameter; None for other quantities."""
    if bound.value is None or bound.is_floor:
        return None
    if bound.quantity == BITS_PER_PARAMETER:
        return bound.value
    return _rescale(entry, bound.value) if bound.quantity == FACTS and bound.kind != "law" else None


def constructed_in_bits(entry: BoardEntry) -> float | None:
    """What explicit weights reach, in bits per parameter; None where no theorem gives them."""
    constructed = entry.result.constructed
    if constructed is None or constructed.capacity.kind != "largest_load":
        return None
    return _rescale(entry, constructed.counted.estimate)


def _rescale(entry: BoardEntry, facts: float) -> float:
    """A number of facts in bits per parameter, at the bits per fact that the record has at its capacity."""
    return entry.result.bits_per_parameter * (facts / entry.result.capacity.estimate)


def training_cost(entry: BoardEntry) -> int | None:
    """Parameter updates (steps times parameters) until half of the models hold the most facts that they do."""
    is_known = entry.steps_to_hold and entry.result.capacity.kind == "largest_load"
    return (entry.steps_to_hold or 0) * entry.result.n_parameters if is_known else None


def one_per_cell(entries: Iterable[BoardEntry], verified: Collection[str] = ()) -> list[BoardEntry]:
    """One record per architecture and tier: a settled and verified one if there is, and the most precise of those.

    Records outside a suite are all kept.
    """
    best: dict[tuple[str, int | str], BoardEntry] = {}
    for entry in entries:
        key = cell_of(entry)
        if key not in best or _preference(entry, verified) < _preference(best[key], verified):
            best[key] = entry
    return list(best.values())


def cell_of(entry: BoardEntry) -> tuple[str, int | str]:
    """Architecture and tier; outside a suite each record is a cell of its own."""
    suite = entry.result.suite
    return entry.result.architecture.name, suite.tier if suite else entry.path


def _preference(entry: BoardEntry, verified: Collection[str]) -> tuple[bool, bool, float, str]:
    low, high = entry.interval
    return entry.is_unsettled, entry.path not in verified, high - low, entry.path


def pareto_front(entries: Sequence[BoardEntry]) -> list[BoardEntry]:
    """The settled records such that none holds as much with as few parameters and as little training, and is better.

    Records of one tier count as equally large. The cheapest training comes first.
    """
    known = [(entry, merit) for entry in entries if (merit := _merit(entry)) is not None]
    front = [(entry, merit) for entry, merit in known if not any(_dominates(other, merit) for _, other in known)]
    return [entry for entry, _ in sorted(front, key=lambda each: (-each[1][1], each[0].path))]


def _merit(entry: BoardEntry) -> tuple[float, float, float] | None:
    """Capacity, cost and size, each so that more is better; None for records that are not compared."""
    cost = training_cost(entry)
    if entry.is_unsettled or not has_capacity(entry) or cost is None:
        return None
    suite = entry.result.suite
    return entry.result.capacity.estimate, -cost, -(suite.tier if suite else entry.result.n_parameters)


def _dominates(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return one != other and all(a >= b for a, b in zip(one, other, strict=True))
