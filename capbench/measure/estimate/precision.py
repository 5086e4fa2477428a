"""Capacity against precision: the same trials, read with the metrics that rounded weights have."""

from __future__ import annotations

from collections.abc import Sequence

from capbench.documents.result import BITS, PrecisionPoint, Protocol, Trial, TrialStatus, rounded_name
from capbench.measure.estimate.readings import read_trials
from capbench.measure.estimate.summary import Summary, summarise


def at_precision(trials: Sequence[Trial], protocol: Protocol, bits: int) -> list[Trial]:
    """The trials with the metrics of their rounded weights; one holds if it did, and still does after rounding."""
    return [_rounded(trial, protocol, bits) for trial in trials]


def _rounded(trial: Trial, protocol: Protocol, bits: int) -> Trial:
    """A trial as its rounded model would be recorded; one that was not rounded stays as it is."""
    criterion = protocol.criterion
    names = {name: rounded_name(name, bits) for name in (criterion.metric, BITS)}
    metrics = {name: trial.data[rounded] for name, rounded in names.items() if rounded in trial.data}
    if criterion.metric not in metrics:
        return trial
    is_lost = trial.status is TrialStatus.HELD and not criterion.is_met(metrics[criterion.metric])
    status = TrialStatus.NOT_HELD if is_lost else trial.status
    return trial.model_copy(update={"metrics": {**trial.metrics, **metrics}, "status": status})


def precision_points(
    trials: Sequence[Trial], protocol: Protocol, unrounded: Summary, n_parameters: int
) -> tuple[PrecisionPoint, ...]:
    """The capacity of the rounded models at each precision that the protocol asks for, most bits first."""
    points = []
    for bits in sorted(protocol.precisions, reverse=True):
        rounded = at_precision(trials, protocol, bits)
        capacity = summarise(rounded, protocol).capacity
        per_fact = _bits_per_fact(unrounded)
        stored = None if per_fact is None else per_fact * capacity.estimate / n_parameters
        points.append(
            PrecisionPoint(
                weight_bits=bits,
                capacity=capacity,
                bits_per_parameter=stored if capacity.kind == "largest_load" else None,
                readings=read_trials(rounded, protocol),
            )
        )
    return tuple(points)


def _bits_per_fact(summary: Summary) -> float | None:
    """Bits per fact of the unrounded models at the load nearest to their capacity."""
    if BITS not in summary.metrics:
        return None
    return summary.metrics[BITS] / summary.reported_at
