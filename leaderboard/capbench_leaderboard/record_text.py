"""Text of the values of a record: capacity, interval, bounds, status. Every name is made safe to show."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence

from capbench.contract.bound import FACTS
from capbench.documents.result import BoundRecord, Capacity, RateWindow, Result, TierUnit, shape_fields
from capbench.documents.text import number, plain, pluralize, sign_text
from capbench_leaderboard.ranking.entry import BoardEntry
from capbench_leaderboard.ranking.measures import bits_per_element, bits_per_parameter, has_capacity, holds_in_weights
from capbench_leaderboard.ranking.posterior import RANK_CONFIDENCE, Standing
from capbench_leaderboard.ranking.ranked_tables import RankedRow, RankedTable, RankingGroup

MAX_LINE_LENGTH = 160
MAX_NAMES = 4
"""Names of equal models that a cell lists."""


def plain_line(text: str, max_length: int = MAX_LINE_LENGTH) -> str:
    """Untrusted text on one line, of limited length, with control and direction characters made visible."""
    line = plain(" ".join(text.split()))
    return line if len(line) <= max_length else f"{line[: max_length - 1]}…"


def capacity_text(capacity: Capacity) -> str:
    """The estimate; "at least" or "below" if only one side is known."""
    value = f"{capacity.estimate:.0%} hold" if capacity.kind == "success_rate" else number(capacity.estimate)
    parameter = f"{plain_line(capacity.parameter)} " if capacity.parameter else ""
    return f"{parameter}{sign_text(capacity)}{value}"


def interval_text(capacity: Capacity) -> str:
    """Both ends of the interval; an unknown end is "open"."""
    format_end = "{:.0%}".format if capacity.kind == "success_rate" else number
    low, high = (format_end(end) if end is not None else "open" for end in (capacity.ci_low, capacity.ci_high))
    return f"{low} to {high}"


def capacity_and_interval_text(capacity: Capacity) -> str:
    """The estimate with its interval in brackets; an open end is left empty."""
    format_end = "{:.0%}".format if capacity.kind == "success_rate" else number
    low, high = (format_end(end) if end is not None else "" for end in (capacity.ci_low, capacity.ci_high))
    return f"{capacity_text(capacity)} ({low}–{high})"


def bits_text(entry: BoardEntry) -> str:
    """Bits per parameter, with half the width of the interval where both ends are known; a dash where none count."""
    if not holds_in_weights(entry):
        return "–"
    if not has_capacity(entry):
        return number(entry.result.bits_per_parameter)
    bits = bits_per_parameter(entry)
    error = "" if bits.low is None or bits.high is None else f" ± {(bits.high - bits.low) / 2:.2f}"
    return f"{bits.value:.2f}{error}"


def state_bits_text(result: Result) -> str:
    """Bits of the context per element of the state, and how many elements there are."""
    bits = bits_per_element(result)
    return "–" if bits is None else f"{bits:.3g} ({number(result.architecture.state_size)} elements)"


def tier_size_text(tier: int, unit: TierUnit) -> str:
    """What a tier is a number of: about 1k parameters, a state of 64 elements."""
    return f"a state of {tier:,} elements" if unit == "state" else f"about {tier_text(tier)} parameters"


def shape_text(result: Result) -> str:
    """The fields in which the shapes tried differ, and how many were; a dash where none was compared."""
    tried = result.architecture.shapes_tried
    fields = shape_fields([shape.params for shape in tried])
    if not fields:
        return "–"
    chosen = ", ".join(f"{name}={json.dumps(tried[0].params.get(name))}" for name in fields)
    return plain_line(f"{chosen} (best of {len(tried)})")


def rates_text(rates: RateWindow | None) -> str:
    """The learning rate at which the capacity was measured, and those that work."""
    if rates is None:
        return "–"
    working = sorted(rates.working)
    return f"{rates.best:g}" + (f" ({working[0]:g} to {working[-1]:g} work)" if len(working) > 1 else "")


def cost_text(updates: float | None) -> str:
    """A number of parameter updates in two digits, with k, M, G or T; a dash if it is not known."""
    if updates is None:
        return "–"
    for unit, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if updates >= unit:
            value = updates / unit
            return f"{value:,.0f}{letter}" if value >= 10 else f"{value:.1f}{letter}"
    return f"{updates:,.0f}"


def drift_text(capacity: Capacity) -> str:
    """By how much the last doubling of the steps raised the capacity; a dash if that was not asked."""
    return "–" if capacity.drift is None else f"{100 * capacity.drift:+.1f} %"


def settled_text(result: Result) -> str:
    """Whether the capacity is settled, at how many steps, and what the last doubling of the steps did."""
    capacity = result.capacity
    if capacity.settled is None:
        return "not asked"
    drift = "" if capacity.drift is None else f"; the last doubling changed it by {drift_text(capacity)}"
    by_steps = ", ".join(f"{number(each.estimate)} at {each.steps:,} steps" for each in capacity.by_steps)
    return f"{'yes' if capacity.settled else 'no'}, measured at {result.protocol.steps:,} steps{drift} ({by_steps})"


def lower_bounds(result: Result) -> list[BoundRecord]:
    """The lower bounds that apply to this record, by id."""
    return sorted((b for b in result.bounds if b.kind == "lower" and b.value is not None), key=lambda b: b.id)


def best_guarantee(result: Result) -> float | None:
    """The highest lower bound on the number of facts."""
    return max((b.value for b in lower_bounds(result) if b.quantity == FACTS and b.value is not None), default=None)


def kind_text(bound: BoundRecord) -> str:
    """What a bound states; where less is better, as for D_K, the impossible side is below."""
    if bound.kind == "upper":
        return "impossible below" if bound.is_floor else "impossible beyond"
    return {"lower": "guaranteed", "law": "law", "exact": "exact"}[bound.kind]


def ratios_text(result: Result) -> str:
    """Measured over bound, for each lower bound that has a ratio."""
    found = [f"{number(b.ratio)} × {plain_line(b.id)}" for b in lower_bounds(result) if b.ratio is not None]
    return ", ".join(found) or "–"


def constructed_text(result: Result) -> str:
    """The capacity that explicit weights reach on the same task and architecture."""
    constructed = result.counted_construction
    if constructed is None:
        return "–"
    has_lead = result.rates is None or (result.constructed and result.constructed.above_floor is not None)
    return capacity_text(constructed) + ("" if has_lead else " (margin not measured)")


def probability_text(standing: Standing) -> str:
    """The probability of being best; a range where it depends on an open end."""
    least, greatest = standing.least_probability, standing.greatest_probability
    if round(100 * least) != round(100 * greatest):
        return f"{math.floor(100 * least)}–{math.ceil(100 * greatest)} %"
    if least < 0.01:
        return "<1 %"
    return ">99 %" if least > 0.99 else f"{100 * least:.0f} %"


def same_model_text(names: Sequence[str]) -> str:
    """The architectures that are the same model at this size and on this task."""
    first, n_others = ", ".join(map(plain_line, names[:MAX_NAMES])), len(names) - MAX_NAMES
    return f"same model as {first}{f' and {n_others} more' if n_others > 0 else ''} here"


def comparison_text(row: RankedRow, labels: Mapping[str, str]) -> str:
    """Which records are the same model, or ahead or behind on shared trials, and how many only one of the two held."""
    parts = [same_model_text(row.same_model_as)] if row.same_model_as else []
    for relation in ("ahead of", "undecided with", "behind"):
        others = [f"{labels[e.other]} ({e.only_this}:{e.only_other})" for e in row.compared if e.relation == relation]
        parts += [f"{relation} {', '.join(others)}"] if others else []
    return "; ".join(parts) or "–"


def missing_texts(missing: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Missing names and the reason, with names of the same reason joined."""
    by_reason: dict[str, list[str]] = {}
    for name, reason in missing:
        by_reason.setdefault(reason, []).append(plain_line(name))
    return [(", ".join(names), plain_line(reason)) for reason, names in by_reason.items()]


def seconds_text(seconds: float) -> str:
    """Wall time in seconds or minutes."""
    if seconds < 100:
        return f"{number(seconds)} s"
    return f"{number(seconds / 60)} min"


def tier_text(tier: int) -> str:
    """Short name of a tier: 1k, 4k, 16k."""
    if not tier:
        return "any size"
    for unit, letter in ((1_000_000, "M"), (1000, "k")):
        if tier >= unit:
            # 1,024 is called 1k and 16,384 is called 16k; 1,500 stays 1.5k.
            value = tier / unit
            return f"{round(value)}{letter}" if abs(value / round(value) - 1) < 0.03 else f"{value:.3g}{letter}"
    return str(tier)


def group_text(group: RankingGroup) -> str:
    """The heading of a table."""
    suite = f"suite {plain_line(group.suite)}" + (f" {group.suite_version}" if group.suite_version else "")
    size = tier_size_text(group.tier, group.unit)
    where = f"{suite}, {size}" if group.is_ranked else "outside a suite, not ranked"
    solver = "" if group.solver.startswith("adam ") else f", solver {plain_line(group.solver)}"
    return f"{where}, {status_text(group.is_self_reported)}{solver}" if group.task_version else where


def conditions_text(group: RankingGroup) -> str:
    """What all records of a table have in common; empty if it has none."""
    if not group.scorer:
        return ""
    fields = ", ".join(f"{name}={json.dumps(value)}" for name, value in json.loads(group.task_params).items())
    facts = (f"Held: {group.scorer}", f"Training: {group.training}", f"Task version {group.task_version}: {fields}")
    return " ".join(f"{plain_line(fact)}." for fact in facts)


def ranking_text(table: RankedTable) -> str:
    """How the ranks and tests of a table are to be read; empty with fewer than two ranked records."""
    if not table.n_pairs:
        return ""
    pairs = pluralize(table.n_pairs, "pair")
    ranks = f"Rank: all ranges of this table hold at once with {100 * RANK_CONFIDENCE:.0f} % probability."
    return (
        f"{ranks} Best: probability of being first. Shared seeds: tests with Holm's correction for {pairs} of records."
    )


def status_text(is_self_reported: bool) -> str:
    """Whether a record was verified."""
    return "self-reported" if is_self_reported else "verified"
