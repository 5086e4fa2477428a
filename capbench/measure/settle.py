"""Settled capacities: learning rate and number of steps are chosen on seeds of their own, before the measurement.

The protocol, version 2: search roughly with the task's learning rates, extended by factors of two until the best one is
not at an end of those tried. Double the steps, the schedule stretched with them, and search again near the capacity.
Where that does not clearly raise it, both searches go on until they are precise; the capacity is settled if the
doubling then raises it by less than the given share. It is measured with the best rate at the steps before that
doubling, or at the preset's limit of steps, on seeds that had no part in choosing them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from capbench.documents.result import Capacity, CapacityAtSteps, Protocol, Result, Selection, Trial
from capbench.measure.estimate.summary import find_threshold, leading_rate, rate_window
from capbench.measure.estimate.threshold import Threshold
from capbench.measure.request import Request
from capbench.measure.session import Session
from capbench.measure.shapes import ChosenShape

SETTLE_VERSION = 2
ROUGH_WIDTH = 0.15
"""Wanted half-width of an interval at first: most doublings that matter raise the capacity by more."""
SELECTION_WIDTH = 0.07
"""Wanted half-width before a doubling counts as one that did not pay: both sides of it share their seeds, so that much
of the spread between seeds cancels in their ratio."""
CLEAR = 1.3
"""A rise is clear if it exceeds the share by this many standard deviations, as nine of ten would."""
NEAR = 0.75, 1.75
"""Where a capacity is known roughly, the search starts between these multiples of it."""
RATE_STEP = 2.0

Search = Callable[[Session, tuple[float, float] | None, float], None]
"""Searches with a session to a width of the interval, in a bracket or from where theory expects the capacity, and
extends its learning rates; a second call goes on from the first."""


@dataclass(frozen=True)
class Settled:
    """The request with the rate and steps that were chosen, and what they were chosen by."""

    request: Request
    selection: Selection


def settle(
    request: Request, shape: ChosenShape | None, open_session: Callable[[Request], Session], search: Search
) -> Settled:
    """Chooses learning rate and steps for a request, on selection seeds; a chosen shape says where to start."""
    share = request.options.settle
    assert share is not None
    most_steps = request.preset.most_steps(request.protocol.steps)
    sessions = [open_session(_around(request, shape.rate, request.protocol.steps) if shape else request)]
    _search(search, sessions[0], shape.estimate if shape else None, ROUGH_WIDTH)
    while 2 * sessions[-1].protocol.steps <= most_steps:
        sessions.append(_double(sessions[-1], open_session, search))
        before, after = (_threshold(session) for session in sessions[-2:])
        if _is_clear_rise(before, after, share):
            continue
        for session in sessions[-2:]:
            _search(search, session, None, SELECTION_WIDTH)
        before, after = (_threshold(session) for session in sessions[-2:])
        if _rise(before.estimate, after.estimate) < share:
            break
    selection = _selection(sessions, share)
    rate, steps = chosen_training(selection, sessions[-1].protocol)
    return Settled(_with(request, (rate,), steps), selection)


def _double(session: Session, open_session: Callable[[Request], Session], search: Search) -> Session:
    """A rough search with twice the steps of another one, near its capacity and around its best learning rate."""
    best, found = leading_rate(session.trials, session.protocol), _threshold(session)
    assert best is not None
    doubled = open_session(_around(session.request, best, 2 * session.protocol.steps))
    _search(search, doubled, found.estimate, ROUGH_WIDTH)
    return doubled


def _search(search: Search, session: Session, near: float | None, width: float) -> None:
    """Searches near a capacity; raises RunFailed where no trial could be run."""
    search(session, None if near is None else (NEAR[0] * near, NEAR[1] * near), width)
    failure = session.failure()
    if failure is not None:
        raise failure


def _threshold(session: Session) -> Threshold:
    return find_threshold(session.trials, session.protocol)


def _selection(sessions: Sequence[Session], share: float) -> Selection:
    """What the document keeps of the choice."""
    trials = [
        trial.model_copy(update={"limit": session.protocol.steps}) for session in sessions for trial in session.trials
    ]
    protocol = sessions[-1].protocol
    selection = Selection(
        version=SETTLE_VERSION, share=share, first_seed=sessions[0].first_seed, trials=tuple(trials), rates=None
    )
    rate, steps = chosen_training(selection, protocol)
    return selection.model_copy(update={"rates": rate_window(_limited(trials, steps), rate, protocol)})


def chosen_training(selection: Selection, protocol: Protocol) -> tuple[float, int]:
    """The learning rate and the steps that follow from a selection: the fewest steps whose doubling did not pay."""
    by_steps = capacity_by_steps(selection, protocol)
    steps = (by_steps[-2] if is_settled(by_steps, selection.share) else by_steps[-1]).steps
    rate = leading_rate(_limited(selection.trials, steps), protocol)
    assert rate is not None
    return rate, steps


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
        found = find_threshold(_limited(selection.trials, steps), protocol)
        rows.append(CapacityAtSteps(steps=steps, estimate=found.estimate, ci_low=found.ci_low, ci_high=found.ci_high))
    return tuple(rows)


def is_settled(by_steps: Sequence[CapacityAtSteps], share: float) -> bool:
    """Whether the last doubling of the steps raised the capacity by less than a share."""
    return len(by_steps) > 1 and _rise(by_steps[-2].estimate, by_steps[-1].estimate) < share


def _rise(before: float, after: float) -> float:
    return after / before - 1


def _is_clear_rise(before: Threshold, after: Threshold, share: float) -> bool:
    """Whether a capacity is higher than another by more than a share, beyond what few trials leave open."""
    if before.ci_high is None or after.ci_low is None:
        return False
    halves = math.log(before.ci_high / before.estimate), math.log(after.estimate / after.ci_low)
    deviation = math.hypot(*halves) / 1.96
    return math.log(after.estimate / before.estimate) - math.log1p(share) > CLEAR * deviation


def _limited(trials: Sequence[Trial], steps: int) -> list[Trial]:
    """The trials of a selection that were allowed so many steps."""
    return [trial for trial in trials if trial.limit == steps]


def _around(request: Request, rate: float, steps: int) -> Request:
    """The request with a learning rate, half of it and twice it, and with so many steps."""
    return _with(request, (rate / RATE_STEP, rate, rate * RATE_STEP), steps)


def _with(request: Request, rates: tuple[float, ...], steps: int) -> Request:
    """The request with other learning rates and steps."""
    return replace(request, options=request.options.replaced(rates=rates, steps=steps))
