"""How the board words a record: capacity, interval, bounds, standing. Nothing here trusts a name."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from capbench.bound import FACTS
from capbench.report.text import number, plain
from capbench.results import BoundRecord, Capacity, Result
from capbench.theory import BUDGETS
from capbench_leaderboard.pairing import Comparison
from capbench_leaderboard.ranking import Group

LONGEST = 160


def shown(text: str, longest: int = LONGEST) -> str:
    """A stranger's text on one line, of bearable length, with control and direction characters made visible."""
    line = plain(" ".join(text.split()))
    return line if len(line) <= longest else f"{line[: longest - 1]}…"


def capacity_text(capacity: Capacity) -> str:
    """The estimate; "at least" and "below" where only one side is known."""
    below = "at most " if capacity.kind == "least_budget" else "below "
    sign = {"estimated": "", "at_least": "at least ", "below": below}[capacity.status]
    value = f"{capacity.estimate:.0%} hold" if capacity.kind == "success_rate" else number(capacity.estimate)
    budget = f"{shown(capacity.parameter)} " if capacity.parameter else ""
    return f"{budget}{sign}{value}"


def interval_text(capacity: Capacity) -> str:
    """Both ends; an open one is called so."""
    write = "{:.0%}".format if capacity.kind == "success_rate" else number
    low, high = (write(end) if end is not None else "open" for end in (capacity.ci_low, capacity.ci_high))
    return f"{low} to {high}"


def lower_bounds(result: Result) -> list[BoundRecord]:
    """The guarantees that speak of this record, by name."""
    return sorted((b for b in result.bounds if b.kind == "lower" and b.value is not None), key=lambda b: b.id)


def guaranteed(result: Result) -> float | None:
    """The best guarantee on the number of facts."""
    return max((b.value for b in lower_bounds(result) if b.quantity == FACTS and b.value is not None), default=None)


def kind_text(bound: BoundRecord) -> str:
    """What a bound promises; a budget, such as D_K, has its impossible side below."""
    if bound.kind == "upper":
        return "impossible below" if bound.quantity in BUDGETS else "impossible beyond"
    return {"lower": "guaranteed", "law": "law"}[bound.kind]


def ratios_text(result: Result) -> str:
    """Measured over bound, for each lower bound that has a ratio."""
    found = [f"{number(b.ratio)} × {shown(b.id)}" for b in lower_bounds(result) if b.ratio is not None]
    return ", ".join(found) or "–"


def constructed_text(result: Result) -> str:
    """What explicit weights reach on the same pair."""
    if result.rates is None:
        return capacity_text(result.capacity)
    return capacity_text(result.constructed.capacity) if result.constructed else "–"


def paired_text(compared: tuple[Comparison, ...], labels: Mapping[str, str]) -> str:
    """Who a record is ahead of or behind on the trials they share, and how many of them only the one or other held."""
    words = []
    for word in ("ahead of", "undecided with", "behind"):
        others = [f"{labels[e.other]} ({e.only_this}:{e.only_other})" for e in compared if e.word == word]
        words += [f"{word} {', '.join(others)}"] if others else []
    return "; ".join(words) or "–"


def missing_texts(missing: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """What is missing, and why: what has the same reason together."""
    by_reason: dict[str, list[str]] = {}
    for name, reason in missing:
        by_reason.setdefault(reason, []).append(shown(name))
    return [(", ".join(names), shown(reason)) for reason, names in by_reason.items()]


def seconds_text(seconds: float) -> str:
    """Wall time as people say it."""
    if seconds < 100:
        return f"{number(seconds)} s"
    return f"{number(seconds / 60)} min"


def tier_text(tier: int) -> str:
    """A tier as it is called: 1k, 4k, 16k."""
    if not tier:
        return "any size"
    for unit, letter in ((1_000_000, "M"), (1000, "k")):
        if tier >= unit:
            # 1,024 is called 1k and 16,384 is called 16k; 1,500 stays 1.5k.
            value = tier / unit
            return f"{round(value)}{letter}" if abs(value / round(value) - 1) < 0.03 else f"{value:.3g}{letter}"
    return str(tier)


def group_text(group: Group) -> str:
    """The heading of a table."""
    suite = f"suite {shown(group.suite)}" + (f" {group.suite_version}" if group.suite_version else "")
    where = f"{suite}, about {tier_text(group.tier)} parameters" if group.is_ranked else "outside a suite, not ranked"
    solver = "" if group.solver.startswith("adam ") else f", solver {shown(group.solver)}"
    return f"{where}, {standing_text(group.is_self_reported)}{solver}" if group.task_version else where


def conditions_text(group: Group) -> str:
    """What all records of a table have in common; nothing where there are none."""
    if not group.scorer:
        return ""
    fields = ", ".join(f"{name}={json.dumps(value)}" for name, value in json.loads(group.task_params).items())
    facts = (f"Held: {group.scorer}", f"Training: {group.training}", f"Task version {group.task_version}: {fields}")
    return " ".join(f"{shown(fact)}." for fact in facts)


def counted(count: int, noun: str) -> str:
    """A number of things: 1 record, 2,000 records."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def standing_text(is_self_reported: bool) -> str:
    """Whether somebody else has run it again."""
    return "self-reported" if is_self_reported else "verified"
