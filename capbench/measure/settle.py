"""Settled capacities: learning rate and number of steps are chosen on seeds of their own, before the measurement.

The protocol, version 1: search with the task's learning rates, extended by factors of two until the best one is not at
an end of those tried. Double the steps, the schedule stretched with them, and search again near the capacity, until
that raises the capacity by less than the given share, or the preset's limit is reached. The capacity is then measured
with the best rate and the last number of steps at which doubling paid, on seeds that had no part in choosing them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from capbench.documents.result import Capacity, CapacityAtSteps, Protocol, RateWindow, Result, Selection, Trial
from capbench.measure.estimate.summary import find_threshold, leading_rate, rate_window
from capbench.measure.estimate.threshold import Threshold
from capbench.measure.request import Request
from capbench.measure.session import SELECTION_SEED, Session

SETTLE_VERSION = 1
SELECTION_WIDTH = 0.07
"""Wanted half-width of an interval while choosing: both sides of a doubling share their seeds, so that much of the
spread between seeds cancels in their ratio."""
NEAR = 0.75, 1.75
"""After a doubling, the search starts between these multiples of the capacity before it."""
RATE_STEP = 2.0

Search = Callable[[Session, tuple[float, float] | None], None]
"""Searches with a session, in a bracket or from where theory expects the capacity, and extends its learning rates."""


@dataclass(frozen=True)
class Settled:
    """The request with the rate and steps that were chosen, and what they were chosen by."""

    request: Request
    selection: Selection


def settle(request: Request, open_session: Callable[[Request], Session], search: Search) -> Settled:
    """Chooses learning rate and steps for a request, on selection seeds."""
    share = request.options.settle
    assert share is not None
    steps, most_steps = request.protocol.steps, request.preset.most_steps(request.protocol.steps)
    rates: tuple[float, ...] = request.protocol.learning_rates
    trials: list[Trial] = []
    before: Threshold | None = None
    while True:
        session = open_session(_with(request, rates, steps))
        search(session, _bracket(before))
        trials += [trial.model_copy(update={"limit": steps}) for trial in session.trials]
        found = find_threshold(session.trials, session.protocol)
        if (before and _rise(before.estimate, found.estimate) < share) or 2 * steps > most_steps:
            break
        best = leading_rate(session.trials, session.protocol)
        assert best is not None
        before, steps, rates = found, 2 * steps, (best / RATE_STEP, best, best * RATE_STEP)
    selection = Selection(
        version=SETTLE_VERSION,
        share=share,
        first_seed=SELECTION_SEED,
        trials=tuple(trials),
        rates=_window(trials, session),
    )
    chosen = capacity_by_steps(selection, session.protocol)
    at = chosen[-2] if is_settled(chosen, share) else chosen[-1]
    best = leading_rate([trial for trial in trials if trial.limit == at.steps], session.protocol)
    assert best is not None
    return Settled(_with(request, (best,), at.steps), selection)


def settled_capacity(capacity: Capacity, selection: Selection, protocol: Protocol) -> Capacity:
    """A capacity with what the selection says about it: settled or not, the drift, and the capacity by steps."""
    by_steps = capacity_by_steps(selection, protocol)
    drift = _rise(by_steps[-2].estimate, by_steps[-1].estimate) if len(by_steps) > 1 else None
    return capacity.model_copy(
        update={"settled": is_settled(by_steps, selection.share), "drift": drift, "by_steps": by_steps}
    )


def with_selection(result: Result, selection: Selection | None) -> Result:
    """A result document with the selection that its rate and steps come from."""
    if selection is None:
        return result
    capacity = settled_capacity(result.capacity, selection, result.protocol)
    return result.model_copy(update={"selection": selection, "capacity": capacity})


def capacity_by_steps(selection: Selection, protocol: Protocol) -> tuple[CapacityAtSteps, ...]:
    """The capacity at each number of steps that was tried, from the selection's trials."""
    rows = []
    for steps in sorted({trial.limit for trial in selection.trials if trial.limit}):
        found = find_threshold([trial for trial in selection.trials if trial.limit == steps], protocol)
        rows.append(CapacityAtSteps(steps=steps, estimate=found.estimate, ci_low=found.ci_low, ci_high=found.ci_high))
    return tuple(rows)


def is_settled(by_steps: Sequence[CapacityAtSteps], share: float) -> bool:
    """Whether the last doubling of the steps raised the capacity by less than a share."""
    return len(by_steps) > 1 and _rise(by_steps[-2].estimate, by_steps[-1].estimate) < share


def _rise(before: float, after: float) -> float:
    return after / before - 1


def _window(trials: Sequence[Trial], session: Session) -> RateWindow | None:
    """The learning rates that work at the last number of steps."""
    last = [trial for trial in trials if trial.limit == session.protocol.steps]
    return rate_window(last, leading_rate(last, session.protocol), session.protocol)


def _with(request: Request, rates: tuple[float, ...], steps: int) -> Request:
    """The request with other learning rates and steps."""
    return replace(request, options=request.options.replaced(rates=tuple(sorted(rates)), steps=steps))


def _bracket(before: Threshold | None) -> tuple[float, float] | None:
    """Where to search after a doubling: around the capacity before it; None at first."""
    return (NEAR[0] * before.estimate, NEAR[1] * before.estimate) if before else None
