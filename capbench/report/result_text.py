"""One result as text for a terminal, and the profile of its run."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from statistics import fmean

from capbench.contract.bound import D_K, FACTS
from capbench.documents.result import (
    BoundRecord,
    Capacity,
    RateWindow,
    Result,
    ShapeTried,
    Timing,
    Trial,
    TrialStatus,
    shape_fields,
)
from capbench.documents.text import number, plain, sign_text, table

PHASES = {
    "build": "drawing facts and initial weights, sizing groups",
    "compile": "compiling the training step",
    "steps": "training steps: forward, backward, update",
    "metrics": "computing the metrics at every evaluation",
    "verdicts": "deciding which trials end",
    "store": "writing finished trials to disk",
    "construct": "computing weights from a theorem",
    "planning": "search, fits, bounds, reading the store",
}
PROFILE_BAR_WIDTH = 24


def result_text(result: Result, fact: str) -> str:
    """The answer first, then bounds, the trials behind the answer, and commands to try next."""
    parts = [
        _heading(result),
        _answer(result, fact),
        _three_numbers(result, fact),
        _bounds(result),
        _data(result),
        _by_point(result, fact),
        _failures(result),
        _cost(result),
        "next:\n" + "\n".join(f"  {step}" for step in next_steps(result)),
    ]
    return plain("\n\n".join(part for part in parts if part))


def _heading(result: Result) -> str:
    fields = {**result.task.params, **result.architecture.params}
    shown = ", ".join(f"{name}={value}" for name, value in fields.items() if isinstance(value, int | float | str))
    return plain(f"{result.task.name} × {result.architecture.name}   {shown}")


def _answer(result: Result, fact: str) -> str:
    rows = answer_rows(result, fact)
    width = max(len(label) for label, _ in rows)
    return "\n".join(f"{label:<{width}}  {plain(text)}" for label, text in rows)


def answer_rows(result: Result, fact: str) -> list[tuple[str, str]]:
    """Labels and texts of the answer and of how it was measured; the answer itself first, then its interval."""
    capacity, rates = result.capacity, result.rates
    rows = [
        (_capacity_label(result), _capacity_value(result, fact)),
        ("interval", f"{_interval(result)}, over {result.protocol.varies}"),
        ("criterion", f"{result.protocol.criterion}, met by half of the trials"),
        ("parameters", number(result.n_parameters)),
        ("bits", f"{number(result.bits)} ({result.bits_per_parameter:.3g} per parameter)"),
    ]
    if capacity.kind in ("success_rate", "overload"):
        rows[2] = ("criterion", str(result.protocol.criterion))
    if capacity.kind == "least_budget" and capacity.d_qk_total is not None:
        ends = f"{number(capacity.d_qk_total_low)} to {number(capacity.d_qk_total_high)}"
        rows.insert(2, ("D_K*", f"{number(capacity.d_qk_total)} ({ends})"))
    if capacity.settled is not None:
        rows.insert(2, ("settled", _settled(result)))
    if result.architecture.shapes_tried:
        rows.append(("shape", _shapes(result.architecture.shapes_tried)))
    if rates is not None:
        rows.append(("learning rate", _learning_rates((result.selection and result.selection.rates) or rates)))
    return rows


def _settled(result: Result) -> str:
    """Whether more steps would raise the capacity, and at how many it was measured."""
    capacity, steps = result.capacity, result.protocol.steps
    shares = " → ".join(f"{number(each.estimate)} at {each.steps:,}" for each in capacity.by_steps)
    drift = "" if capacity.drift is None else f": the last doubling of the steps changed it by {capacity.drift:+.1%}"
    return f"{'yes' if capacity.settled else 'no'}{drift}; measured at {steps:,} steps (on other seeds: {shares})"


def _capacity_label(result: Result) -> str:
    return {
        "largest_load": "capacity",
        "least_budget": "least budget",
        "success_rate": "success rate",
        "overload": "facts held",
    }[result.capacity.kind]


def _capacity_value(result: Result, fact: str) -> str:
    capacity, protocol = result.capacity, result.protocol
    if capacity.kind == "success_rate":
        return f"{capacity.estimate:.0%} of the trials hold {protocol.at} {fact}s"
    if capacity.kind == "overload":
        return f"{_with_sign(capacity)} of {protocol.at} {fact}s under overload"
    if capacity.kind == "least_budget":
        least = math.ceil(capacity.estimate / protocol.unit) * protocol.unit
        return f"{capacity.parameter} {_with_sign(capacity)}, so {least}, to hold {protocol.at} {fact}s"
    return f"{_with_sign(capacity)} {fact}s{_limit_text(capacity, fact)}"


def _limit_text(capacity: Capacity, fact: str) -> str:
    """Why only one side of a capacity is known."""
    if capacity.limited_by is None:
        return ""
    if capacity.limited_by == "search":
        return "; the search stopped there"
    return f": the task has no more {fact}s" if capacity.status == "at_least" else ": the task has no smaller load"


def _interval(result: Result) -> str:
    capacity = result.capacity
    shown = "{:.0%}".format if capacity.kind == "success_rate" else number
    low, high = (shown(end) if end is not None else "open" for end in (capacity.ci_low, capacity.ci_high))
    interval = f"{capacity.confidence:.0%}: {low} to {high}"
    relative = "" if capacity.kind == "success_rate" else _relative(capacity)
    return f"{interval} ({relative})" if relative else interval


def _relative(capacity: Capacity) -> str:
    """Half the width of the interval as a share of the estimate; empty where an end is open or not positive."""
    low, high = capacity.ci_low, capacity.ci_high
    return f"±{(high / low) ** 0.5 - 1:.0%}" if low and high and low > 0 else ""


def _learning_rates(rates: RateWindow) -> str:
    """The best rate, the rates that work and those tried."""
    tried = ", ".join(f"{rate:g}" for rate in rates.tried)
    if not rates.working:
        return f"none held (of {tried}); {rates.best:g} came closest"
    dropped = f"; {', '.join(f'{rate:g}' for rate in rates.pruned)} dropped early" if rates.pruned else ""
    return f"{rates.best:g} held most; working: {', '.join(f'{r:g}' for r in rates.working)} (of {tried}){dropped}"


def _shapes(tried: Sequence[ShapeTried]) -> str:
    """The chosen shape and the one that came next, with the capacities by which they were chosen."""
    names = shape_fields([shape.params for shape in tried])
    texts = [
        f"{' '.join(f'{name}={shape.params[name]}' for name in names)} ({number(shape.estimate)})" for shape in tried
    ]
    return f"{texts[0]}, the best of {len(tried)} on seeds of their own; next: {texts[1]}"


def _three_numbers(result: Result, fact: str) -> str:
    """The guaranteed, the constructed and the trained capacity, side by side."""
    capacity = result.capacity
    guarantees = [b.value for b in result.bounds if b.kind == "lower" and b.quantity == FACTS and b.value is not None]
    if capacity.kind != "largest_load" or not (guarantees or result.constructed):
        return ""
    is_constructed = not result.rates
    constructed = capacity if is_constructed else result.constructed and result.constructed.capacity
    row = (
        number(max(guarantees, default=None)),
        _with_sign(constructed) if constructed else "–",
        "–" if is_constructed else _with_sign(capacity),
    )
    return table([row], (f"{fact}s guaranteed", "constructed", "trained"))


def _with_sign(capacity: Capacity) -> str:
    """The estimate: "below" if even the smallest load failed, "at most" if the smallest parameter value sufficed."""
    return f"{sign_text(capacity)}{number(capacity.estimate)}"


def brief_capacity(result: Result) -> str:
    """The answer in short: 212 ±8%, at least 400, 75% of trials."""
    capacity = result.capacity
    if capacity.kind == "success_rate":
        return f"{capacity.estimate:.0%} of trials"
    is_estimated = capacity.status == "estimated"
    return f"{_with_sign(capacity)} {_relative(capacity) if is_estimated else ''}".rstrip()


def _data(result: Result) -> str:
    """Quantities measured on the data and the trained models."""
    return plain("\n".join(f"{name.replace('_', ' ')}: {number(value)}" for name, value in result.data.items()))


def _bounds(result: Result) -> str:
    return bounds_table([bound for bound in result.bounds if bound.value is not None])


def bounds_table(bounds: list[BoundRecord]) -> str:
    """Bounds next to the measured values, with one column per kind of bound."""
    if not bounds:
        return ""
    headers, *rows = bound_rows(bounds)
    return table(rows, headers)


def bound_rows(bounds: list[BoundRecord]) -> list[tuple[str, ...]]:
    """Headers, then one row per bound; empty columns are left out."""
    rows = [
        (
            b.id,
            b.quantity,
            number(b.value) if b.kind == "lower" else "",
            f"{'≥ ' if b.is_floor else ''}{number(b.value)}" if b.kind == "upper" else "",
            number(b.value) if b.kind == "law" else "",
            number(b.value) if b.kind == "exact" else "",
            number(b.measured),
            f"constant {number(b.constant)}" if b.kind == "law" else number(b.ratio),
            f"[{b.pedigree}]",
            b.note,
        )
        for b in bounds
    ]
    headers = (
        "bound",
        "quantity",
        "guaranteed",
        "impossible beyond",
        "law",
        "exact",
        "measured",
        "ratio",
        "pedigree",
        "note",
    )
    used = [i for i, _ in enumerate(headers) if i < 2 or any(row[i] not in ("", "–") for row in rows)]
    return [tuple(row[i] for i in used) for row in (headers, *rows)]


def _by_point(result: Result, fact: str) -> str:
    """How the trials at the best rate ended, one row per load or parameter value."""
    rate = result.rates.best if result.rates else None
    points: dict[int, list[Trial]] = defaultdict(list)
    for trial in result.trials:
        if trial.learning_rate == rate:
            points[trial.at].append(trial)
    metric = result.protocol.criterion.metric
    rows = []
    for at, trials in sorted(points.items()):
        held = sum(t.status is TrialStatus.HELD for t in trials)
        values = [t.metrics[metric] for t in trials if metric in t.metrics]
        rows.append((number(at), f"{held}/{len(trials)}", f"{fmean(values):.3f}" if values else "–", _endings(trials)))
    return table(rows, (result.protocol.parameter or f"{fact}s", "held", f"mean {metric}", "other outcomes"))


def _endings(trials: list[Trial]) -> str:
    """How the trials that did not hold ended."""
    others = [t.status.value.replace("_", " ") for t in trials if t.status is not TrialStatus.HELD]
    return ", ".join(f"{others.count(name)} {name}" for name in sorted(set(others)))


def _failures(result: Result) -> str:
    failed = [t for t in result.trials if t.status is TrialStatus.FAILED]
    if not failed:
        return ""
    reasons = [t.reason for t in failed]
    shown = "; ".join(f"{reasons.count(reason)} × {reason}" for reason in sorted(set(reasons))[:3])
    return plain(f"{len(failed)} of {len(result.trials)} trials failed to run and are left out: {shown}")


def _cost(result: Result) -> str:
    timing = result.timing
    if timing.trials_trained == 0:
        trained = f"nothing trained: all {timing.trials_reused} trials were in the store"
    else:
        trained = f"{timing.trials_trained} trials trained, {timing.trials_reused} from the store"
    spent = f"{trained}; {timing.lane_steps:,} lane-steps, {timing.wall_seconds:.1f} s; run {result.run_id}"
    if timing.grid_trials <= len(result.trials):
        return spent
    return f"{spent}\n{len(result.trials)} trials in total; a fixed grid takes {timing.grid_trials:,}"


def next_steps(result: Result) -> list[str]:
    """Commands to try after this result."""
    base, params, steps = result.command, result.architecture.params, []
    heads, width = params.get("n_heads"), params.get("d_qk")
    if result.capacity.kind == "largest_load" and isinstance(heads, int) and isinstance(width, int):
        if width % 2 == 0:
            halves = f"--set arch.n_heads={heads * 2} --set arch.d_qk={width // 2}"
            steps.append(f"{base} {halves}   # the same D_K in twice as many heads")
        steps.append(
            f"{base} --minimize d_qk --at {max(1, round(result.capacity.estimate))}   # the least D_K that holds them"
        )
    rates = result.rates
    if rates and len(rates.tried) > 1 and rates.best in (max(rates.tried), min(rates.tried)):
        further = rates.best * (2 if rates.best == max(rates.tried) else 0.5)
        steps.append(f"{base} --lr {rates.best:g} --lr {further:g}   # the best rate is at the edge of those tried")
    steps.append(f"{base} --plot curve.html   # the success curve with its interval")
    applicable = [b for b in result.bounds if b.value is not None]
    named = next((b.id for b in sorted(applicable, key=lambda b: b.quantity not in (FACTS, D_K))), None)
    if named:
        steps.append(f"capbench describe {named}   # what the bound says, and its source")
    return steps


def readings_text(result: Result, fact: str) -> str:
    """Other readings of the same trials, side by side."""
    if not result.readings:
        return "readings: none; they are read from the trials of a search for the largest load"
    sign = {"estimated": "", "at_least": "at least ", "below": "below "}
    units = {"facts": f"{fact}s", "bits": "bits"}
    rows = [
        (
            reading.name.replace("_", " "),
            f"{sign[reading.status]}{number(reading.estimate)} {units[reading.unit]}",
            " to ".join("open" if end is None else number(end) for end in (reading.ci_low, reading.ci_high)),
            reading.note,
        )
        for reading in result.readings
    ]
    return plain(table(rows, ("reading", "value", f"{result.capacity.confidence:.0%} interval", "what is read")))


def profile_text(timing: Timing) -> str:
    """Seconds per phase with a bar for the share of each, and the cost of one lane-step."""
    total = sum(timing.phases.values()) or 1.0
    rows = [
        (
            phase,
            f"{seconds:.2f}",
            f"{seconds / total:.0%}",
            "█" * round(PROFILE_BAR_WIDTH * seconds / total),
            PHASES.get(phase, ""),
        )
        for phase, seconds in sorted(timing.phases.items(), key=lambda item: -item[1])
    ]
    parts = [table(rows, ("phase", "seconds", "share", "", "what it is"))]
    if timing.lane_steps:
        each = 1e6 * timing.phases.get("steps", 0.0) / timing.lane_steps
        compiled = timing.compiled_lane_steps / timing.lane_steps
        parts.append(
            f"{timing.lane_steps:,} lane-steps, {each:.1f} µs each in the step itself; {compiled:.0%} compiled"
        )
    return "\n\n".join(parts)
