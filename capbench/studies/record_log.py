"""The log of a suite's records: which versions made them, which are not settled, and which cells are missing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from statistics import median

from tabulate import tabulate

from capbench.documents.result import Capacity, MissingRecord, Result
from capbench.documents.text import number, plain, sign_text
from capbench.studies.suite import Suite


def log_text(suite: Suite, records: Iterable[Result], missing: Iterable[MissingRecord]) -> str:
    """The page LOG.md, derived from the records of a suite's version and its missing cells."""
    own = sorted((r for r in records if _is_of(r, suite)), key=_order)
    settled = [record for record in own if record.capacity.settled]
    rest = [record for record in own if not record.capacity.settled] if suite.settle_share else []
    parts = [
        f"# Records of the suite {suite.name} {suite.version}",
        "Written by `capbench suite` from the records in this folder; `SUITE.toml` is the suite's file.",
        f"Records: {len(own)}; settled: {len(settled)}. {_widths_text(settled or own)}".strip(),
        "## Versions",
        _pipe(_versions(own), ("records", "capbench", "engine", "torch", "python", "machine")),
        _pipe(_plugins(own), ("records", "plugins")),
        "## Not settled" if suite.settle_share else "",
        _pipe([_row(record) for record in rest], COLUMNS) if rest else "None." if suite.settle_share else "",
        "## Missing",
        _pipe([(m.task, m.architecture, number(m.tier), m.reason) for m in missing], (*COLUMNS[:3], "reason")),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


COLUMNS = ("task", "architecture", "size", "capacity", "drift", "capacity by steps")


def _is_of(record: Result, suite: Suite) -> bool:
    return record.suite is not None and (record.suite.name, record.suite.version) == (suite.name, suite.version)


def _order(record: Result) -> tuple[str, int, str]:
    return record.task.name, record.suite.tier if record.suite else 0, record.architecture.name


def _widths_text(records: Sequence[Result]) -> str:
    """The median half-width of the intervals that have two ends."""
    widths = [_half_width(r.capacity) for r in records if r.capacity.ci_low and r.capacity.ci_high]
    return f"The median interval is ± {median(widths):.1%} wide." if widths else ""


def _half_width(capacity: Capacity) -> float:
    assert capacity.ci_low is not None
    assert capacity.ci_high is not None
    return (capacity.ci_high - capacity.ci_low) / 2 / capacity.estimate


def _versions(records: Sequence[Result]) -> list[tuple[object, ...]]:
    """How many records each combination of versions and hardware made."""
    made = Counter(
        (e.capbench, e.engine, e.torch, e.python, f"{e.device_name or e.device}, {e.platform}, threads: {e.threads}")
        for e in (record.environment for record in records)
    )
    return [(count, *versions) for versions, count in made.most_common()]


def _plugins(records: Sequence[Result]) -> list[tuple[object, ...]]:
    """How many records were made with each set of plugin distributions."""
    made = Counter(
        ", ".join(sorted({f"{plugin.distribution} {plugin.version}" for plugin in record.environment.plugins}))
        for record in records
    )
    return [(count, names) for names, count in made.most_common()]


def _row(record: Result) -> tuple[str, ...]:
    """A record that is not settled, with the capacity at each number of steps."""
    capacity = record.capacity
    drift = "not asked" if capacity.drift is None else f"{capacity.drift:+.1%}"
    by_steps = ", ".join(f"{number(each.estimate)} at {each.steps:,}" for each in capacity.by_steps)
    tier = number(record.suite.tier) if record.suite else ""
    estimate = f"{sign_text(capacity)}{number(capacity.estimate)}"
    return record.task.name, record.architecture.name, tier, estimate, drift, by_steps


def _pipe(rows: Sequence[Sequence[object]], headers: Sequence[str]) -> str:
    """A Markdown table; "None." without rows."""
    cells = [[plain(str(cell)).replace("|", "\\|") for cell in row] for row in rows]
    return tabulate(cells, headers=headers, tablefmt="pipe", disable_numparse=True) if cells else "None."
