"""A suite as a person reads it: its plan before, its capacities after, and what is missing."""

from __future__ import annotations

from collections.abc import Sequence

from capbench.plan import Plan
from capbench.report.result_text import brief_capacity
from capbench.report.text import number, plain, table
from capbench.results import MissingRecord, Result
from capbench.suite import Suite


def suites_text(suites: Sequence[Suite]) -> str:
    """The suites that can be named."""
    rows = [(s.name, s.version, ", ".join(number(tier) for tier in s.tiers), s.about) for s in suites]
    return table(rows, ("suite", "version", "parameters", ""))


def plan_text(plan: Plan) -> str:
    """The runs of a plan in order, with the count that each model comes to, and the command that makes one."""
    from capbench.document import command

    rows = [
        (e.task, e.architecture, number(e.place.tier), number(e.n_parameters), command(e.request)) for e in plan.entries
    ]
    parts = [
        table(rows, ("task", "architecture", "aimed at", "parameters", "the same alone")) if rows else "",
        f"{len(plan.entries)} runs",
        missing_text(plan.missing),
    ]
    return "\n\n".join(part for part in parts if part)


def outcome_text(results: Sequence[Result], missing: Sequence[MissingRecord], tiers: Sequence[int]) -> str:
    """Capacities, a row a pair and a column a tier, then what is missing."""
    found = {(r.task.name, r.architecture.name, r.suite.tier): brief_capacity(r) for r in results if r.suite}
    gaps = {(m.task, m.architecture, m.tier): "missing" for m in missing}
    cells = {**found, **gaps}
    pairs = sorted({(task, architecture) for task, architecture, _ in cells})
    rows = [(*pair, *(cells.get((*pair, tier), "") for tier in sorted(tiers))) for pair in pairs]
    headers = ("task", "architecture", *(f"{number(tier)} parameters" for tier in sorted(tiers)))
    return "\n\n".join(part for part in (table(rows, headers), missing_text(missing)) if part)


def missing_text(missing: Sequence[MissingRecord]) -> str:
    """What a suite asks for and does not have, with the reasons."""
    lines = [plain(f"missing: {m.task} × {m.architecture} at {number(m.tier)}: {m.reason}") for m in missing]
    return "\n".join(lines)
