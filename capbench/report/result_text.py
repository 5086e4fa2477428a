"""One result as text for a terminal, and the profile of its run."""

from __future__ import annotations

import re
import textwrap
from collections import defaultdict
from collections.abc import Sequence
from statistics import fmean
from typing import Literal

from capbench.contract.bound import D_K, FACTS
from capbench.documents.result import (
    BITS,
    CONTEXT_BITS,
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
NARROWEST = 24
"""Columns below which text is not wrapped."""
BOUND_WORDS = {"lower": "guaranteed", "upper": "impossible beyond", "exact": "exact"}

Detail = Literal["line", "short", "full"]
"""How much of a result is shown: one line, the answer with the theory beside it, or every table."""


def result_text(result: Result, fact: str, detail: Detail = "short", width: int | None = None) -> str:
    """The answer first, then what theory says and commands to try next; in full, also every table.

    Text is wrapped at a width, if one is given.
    """
    if detail == "line":
        return plain(_line(result, fact))
    is_full = detail == "full"
    parts = [
        _heading(result),
        _fields(result, width) if is_full else "",
        _answer(result, fact, width),
        _three_numbers(result, fact),
        precision_text(result, fact),
        _bounds(result, fact, width) if is_full else _theory(result, fact),
        _data(result) if is_full else "",
        _by_point(result, fact) if is_full else "",
        _failures(result),
        _cost(result, is_full),
        _next(result, is_full),
    ]
    return plain("\n\n".join(part for part in parts if part))


def _line(result: Result, fact: str) -> str:
    """The pair, the answer and its interval in one line."""
    rows = answer_rows(result, fact)
    return f"{_heading(result)}: {rows[0][1]}, {rows[1][1]}"


def _heading(result: Result) -> str:
    return f"{result.task.name} × {result.architecture.name}"


def _fields(result: Result, width: int | None) -> str:
    """All fields of the task and of the architecture."""
    rows = [
        (name, ", ".join(f"{k}={v}" for k, v in ref.params.items() if isinstance(v, int | float | str)))
        for name, ref in (("task", result.task), ("architecture", result.architecture), ("solver", result.solver))
    ]
    return _labelled([row for row in rows if row[1]], width)


def _answer(result: Result, fact: str, width: int | None) -> str:
    return _labelled(answer_rows(result, fact), width)


def _state(result: Result) -> str:
    """The bits that a model carries from token to token, and those per element of its state."""
    bits, size = result.metrics[CONTEXT_BITS], result.architecture.state_size
    carried = f"{number(bits)} bits of the context reach its end"
    return f"{carried}, in {number(size)} elements: {bits / size:.3g} each" if size else carried


def _labelled(rows: Sequence[tuple[str, str]], width: int | None) -> str:
    """Texts after their labels, wrapped beside them."""
    indent = max(len(label) for label, _ in rows) + 2
    lines = []
    for label, text in rows:
        fits = width is None or width - indent < NARROWEST
        wrapped = [plain(text)] if fits or width is None else textwrap.wrap(plain(text), width - indent)
        lines.append(f"{label:<{indent}}" + f"\n{'':<{indent}}".join(wrapped))
    return "\n".join(lines)


def _next(result: Result, is_full: bool) -> str:
    steps = next_steps(result) if is_full else next_steps(result)[:2]
    more = [] if is_full else ["-v prints every table behind this answer"]
    return "next:\n" + "\n".join(f"  {step}" for step in [*steps, *more])


def _theory(result: Result, fact: str) -> str:
    """One row per bound: what it says, and the measured value."""
    rows = []
    for bound in (bound for bound in result.bounds if bound.value is not None):
        rows.append((bound.id, _statement(bound), _quantity(bound, fact), number(bound.measured)))
    return table(rows, ("theory", "says", "quantity", "measured")) if rows else ""


def _statement(bound: BoundRecord) -> str:
    """What a bound says; of a law, which is an order of growth, also the constant that was measured."""
    value = number(bound.value)
    if bound.kind == "law":
        return f"law: a constant times {value}; the constant is {number(bound.constant)}"
    return f"impossible below {value}" if bound.is_floor else f"{BOUND_WORDS[bound.kind]}: {value}"


def _quantity(bound: BoundRecord, fact: str) -> str:
    """What a bound limits, in the task's word for a fact."""
    return f"{fact}s" if bound.quantity == FACTS else bound.quantity


def answer_rows(result: Result, fact: str) -> list[tuple[str, str]]:
    """Labels and texts of the answer and of how it was measured; the answer itself first, then its interval."""
    capacity, rates = result.capacity, result.rates
    rows = [
        (_capacity_label(result), _capacity_value(result, fact)),
        ("interval", f"{_interval(result)}, over {result.protocol.varies}"),
        ("criterion", f"{result.protocol.criterion}, met by half of the trials"),
        ("parameters", number(result.n_parameters)),
    ]
    if BITS in result.metrics:
        rows.append(("bits", f"{number(result.bits)} ({result.bits_per_parameter:.3g} per parameter)"))
    if CONTEXT_BITS in result.metrics:
        rows.append(("state", _state(result)))
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
    rows.append(("trials", _trials(result)))
    rows.append(("method", _method(result)))
    return rows


def _trials(result: Result) -> str:
    """How many trials the answer rests on, and what the others were for."""
    total, rates = len(result.trials), result.rates
    if rates is None or len(rates.tried) == 1:
        return f"{total:,}"
    leading = sum(trial.learning_rate == rates.best for trial in result.trials)
    return f"{total:,}: {leading:,} at learning rate {rates.best:g}, the others at the rates it was compared with"


def _method(result: Result) -> str:
    """The solver, the protocol and the preset."""
    protocol = result.protocol
    return f"solver {result.solver.name}, protocol {protocol.name}, preset {protocol.preset}, {protocol.steps:,} steps"


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
        return f"{capacity.parameter} {_with_sign(capacity)} to hold {protocol.at} {fact}s"
    return f"{_with_sign(capacity)} {fact}s{_limit_text(capacity, fact)}"


def _limit_text(capacity: Capacity, fact: str) -> str:
    """Why only one side of a capacity is known."""
    if capacity.limited_by is None:
        return ""
    if capacity.limited_by == "search":
        return "; the search stopped there"
    if capacity.status != "at_least":
        return ": the task has no smaller load"
    remedy = f"; raise task.{capacity.raised_by} for more" if capacity.raised_by else ""
    return f": all {fact}s that the task has{remedy}"


def _interval(result: Result) -> str:
    capacity = result.capacity
    interval = f"{capacity.confidence:.0%}: {_ends(capacity)}"
    relative = "" if capacity.kind == "success_rate" else _relative(capacity)
    return f"{interval} ({relative})" if relative else interval


def _ends(capacity: Capacity) -> str:
    """Both ends of an interval."""
    shown = "{:.0%}".format if capacity.kind == "success_rate" else number
    low, high = (shown(end) if end is not None else "open" for end in (capacity.ci_low, capacity.ci_high))
    return f"{low} to {high}"


def _relative(capacity: Capacity) -> str:
    """Half the width of the interval as a share of the estimate; empty where an end is open or not positive."""
    low, high = capacity.ci_low, capacity.ci_high
    return f"±{(high / low) ** 0.5 - 1:.0%}" if low and high and 0 < low <= high else ""


def _learning_rates(rates: RateWindow) -> str:
    """The best rate, the rates that work and those tried."""
    tried = ", ".join(f"{rate:g}" for rate in rates.tried)
    if not rates.working:
        return f"none held (of {tried}); {rates.best:g} came closest"
    if len(rates.tried) == 1:
        return f"{tried}, the only one tried"
    working = ", ".join(f"{r:g}" for r in rates.working)
    pruned = ", ".join(f"{rate:g}" for rate in rates.pruned)
    dropped = f"; dropped early, because others held more: {pruned}" if rates.pruned else ""
    return f"{rates.best:g} held most; working (at least half as often): {working}; tried: {tried}{dropped}"


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
    constructed = _counted(result)
    row = (
        number(max(guarantees, default=None)),
        _with_sign(constructed) if constructed else "–",
        "–" if is_constructed else _with_sign(capacity),
    )
    return table([row], (f"{fact}s guaranteed", "constructed", "trained"))


def _counted(result: Result) -> Capacity | None:
    """The capacity of explicit weights above the margin floor; where no lead was measured, as it is."""
    if result.rates is None:
        return result.above_floor or result.capacity
    constructed = result.constructed
    return None if constructed is None else constructed.above_floor or constructed.capacity


def precision_text(result: Result, fact: str) -> str:
    """One row per precision to which weights were rounded; empty where they were not."""
    rows = [
        (
            str(point.weight_bits),
            f"{point.capacity.estimate:.0%}" if result.protocol.mode == "at" else _with_sign(point.capacity),
            _ends(point.capacity),
            "–" if point.bits_per_parameter is None else f"{point.bits_per_parameter:.3g}",
        )
        for point in result.precision
    ]
    what = "of the trials" if result.protocol.mode == "at" else f"{fact}s"
    return table(rows, ("bits per weight", what, "interval", "bits per parameter")) if rows else ""


def _with_sign(capacity: Capacity) -> str:
    """The estimate: "below" if even the smallest load failed, "at most" if the smallest parameter value sufficed."""
    return f"{sign_text(capacity)}{number(capacity.estimate)}"


def brief_capacity(result: Result) -> str:
    """The answer in short: 212 ±8%, at least 400, 75% of trials, 212 ±8% (not settled)."""
    capacity = result.capacity
    if capacity.kind == "success_rate":
        return f"{capacity.estimate:.0%} of trials"
    is_estimated = capacity.status == "estimated"
    answer = f"{_with_sign(capacity)} {_relative(capacity) if is_estimated else ''}".rstrip()
    return f"{answer} (not settled)" if capacity.settled is False else answer


def _data(result: Result) -> str:
    """Quantities measured on the data and the trained models."""
    return plain("\n".join(f"{name.replace('_', ' ')}: {number(value)}" for name, value in result.data.items()))


def _bounds(result: Result, fact: str, width: int | None) -> str:
    return bounds_table([bound for bound in result.bounds if bound.value is not None], fact, width)


def bounds_table(bounds: list[BoundRecord], fact: str, width: int | None = None) -> str:
    """Bounds next to the measured values, with one column per kind of bound; the last column is wrapped at a width."""
    if not bounds:
        return ""
    headers, *rows = bound_rows(bounds, fact)
    return table(rows, headers, width)


def bound_rows(bounds: list[BoundRecord], fact: str) -> list[tuple[str, ...]]:
    """Headers, then one row per bound; empty columns are left out."""
    rows = [
        (
            b.id,
            _quantity(b, fact),
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


def _cost(result: Result, is_full: bool) -> str:
    timing = result.timing
    if timing.trials_trained == 0:
        trained = f"nothing trained: all {timing.trials_reused} trials were in the store"
    else:
        trained = f"{timing.trials_trained} trials trained, {timing.trials_reused} from the store"
    spent = f"{trained}; {timing.wall_seconds:.1f} s; run {result.run_id}"
    if not is_full:
        return spent
    spent = f"{spent}; {timing.lane_steps:,} lane-steps"
    if timing.grid_trials <= len(result.trials):
        return spent
    return f"{spent}\n{len(result.trials)} trials in total; a fixed grid takes {timing.grid_trials:,}"


def next_steps(result: Result) -> list[str]:
    """Commands to try after this result."""
    base, params, steps = result.command, result.architecture.params, []
    heads, width = params.get("n_heads"), params.get("d_qk")
    if result.capacity.kind == "largest_load" and isinstance(heads, int) and isinstance(width, int):
        if width % 2 == 0:
            halves = with_fields(base, n_heads=heads * 2, d_qk=width // 2)
            steps.append(f"{halves}   # the same D_K in twice as many heads")
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
        words = base.partition(" run ")[0]  # with the plugin files, one of which may have the bound
        steps.append(f"{words} describe {named}   # what the bound says, and its source")
    return steps


def with_fields(command: str, **fields: int) -> str:
    """The command with other values of fields of the architecture."""
    for name, value in fields.items():
        command = re.sub(rf" --set arch\.{name}=\S+", "", command) + f" --set arch.{name}={value}"
    return command


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
