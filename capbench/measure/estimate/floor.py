"""The margin floor: explicit weights count only where their right answers lead by a share of the logit scale."""

from __future__ import annotations

from collections.abc import Sequence

from capbench.documents.result import LEAD_FLOOR, LEAD_IN_BFLOAT16, Capacity, Protocol, Trial, TrialStatus
from capbench.measure.estimate.summary import summarise


def above_floor(trials: Sequence[Trial], protocol: Protocol) -> list[Trial]:
    """The trials where one holds only if its lead, with logits in bfloat16, is at the floor or above."""
    return [_judged(trial, protocol) for trial in trials]


def capacity_above_floor(trials: Sequence[Trial], protocol: Protocol) -> Capacity | None:
    """The capacity above the floor; None where no lead was measured."""
    if not any(LEAD_IN_BFLOAT16 in trial.data for trial in trials):
        return None
    return summarise(above_floor(trials, protocol), protocol).capacity


def _judged(trial: Trial, protocol: Protocol) -> Trial:
    """A trial that held below the floor as one that did not; how far its metric is off says nothing then."""
    lead = trial.data.get(LEAD_IN_BFLOAT16)
    if trial.status is not TrialStatus.HELD or lead is None or lead >= LEAD_FLOOR:
        return trial
    metrics = {name: value for name, value in trial.metrics.items() if name != protocol.criterion.metric}
    return trial.model_copy(update={"status": TrialStatus.NOT_HELD, "metrics": metrics})
