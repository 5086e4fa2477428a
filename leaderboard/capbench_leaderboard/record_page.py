"""A record as a page: the answer, its curve, the bounds, the trials, where it comes from and how to repeat it."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

from markupsafe import Markup

from capbench.report.text import number, plain
from capbench.results import BoundRecord, PluginRef, Result
from capbench_leaderboard.charts import curve_data
from capbench_leaderboard.entry import Entry
from capbench_leaderboard.grid import Cell, Column, Grid, escaped_json
from capbench_leaderboard.pages import Chart
from capbench_leaderboard.ranking import Row
from capbench_leaderboard.sketch import sketch
from capbench_leaderboard.standing import Check
from capbench_leaderboard.wording import (
    capacity_text,
    constructed_text,
    guaranteed,
    interval_text,
    kind_text,
    ratios_text,
    seconds_text,
    shown,
    standing_text,
    tier_text,
)

Facts = list[tuple[str, str]]
BOUNDS = (
    Column("bound"),
    Column("of"),
    Column("kind"),
    Column("value", "n"),
    Column("measured", "n"),
    Column("ratio", "n"),
    Column("pedigree"),
    Column("citation", "w"),
)
PARTS = (
    Column("part"),
    Column("name"),
    Column("version", "n"),
    Column("fields", "w"),
    Column("from"),
    Column("code", "s"),
)
LONGEST_FIELDS = 1000


@dataclass(frozen=True)
class RecordPage:
    """What the template of a record shows."""

    task: str
    architecture: str
    capacity: str
    unit: str
    interval: str
    standing: str
    summary: Facts
    warnings: list[str]
    chart: Chart
    command: str
    bounds: Grid
    points: Grid
    trials: Markup
    trials_id: str
    n_trials: int
    parts: Grid
    origin: Facts
    plugins: list[str]


def record_page(row: Row, check: Check | None) -> RecordPage:
    """The page of a record on the board: with its standing, its rank and where it lies."""
    page = run_page(row.entry, "record")
    rank = f"{row.rank} in its group" if row.best else "not ranked: outside a suite"
    return replace(
        page,
        standing=standing_text(is_self_reported=not (check and check.is_good)),
        summary=[("rank", rank), *page.summary],
        warnings=[line for line in (_bad_check(check), *page.warnings) if line],
        origin=[*page.origin, ("record", shown(row.entry.path)), *_checked(check)],
    )


def run_page(entry: Entry, name: str) -> RecordPage:
    """The page of a run, as a record or in a report; `name` keeps several of them apart in one document."""
    result = entry.result
    capacity, metric = result.capacity, shown(result.protocol.criterion.metric)
    columns = ["budget" if result.protocol.parameter else "facts", "seed", "rate", "ending", "steps", metric]
    return RecordPage(
        task=shown(result.task.name),
        architecture=shown(result.architecture.name),
        capacity=capacity_text(capacity),
        unit=_unit(entry),
        interval=f"{capacity.confidence:.0%} interval {interval_text(capacity)}",
        standing="",
        summary=_summary(result),
        warnings=[entry.failures] if entry.failures else [],
        chart=Chart(
            f"{name}-curve", "curve", f"Accuracy against {_axis(entry)}", curve_data(entry), sketch=sketch(entry)
        ),
        command=plain(result.command),
        bounds=Grid(f"{name}-bounds", "Bounds", BOUNDS, [_bound(bound) for bound in result.bounds]),
        points=_points(entry, name, columns[0], metric),
        trials=escaped_json(f'{{"columns":{json.dumps(columns)},"rows":{entry.trials}}}'),
        trials_id=f"{name}-trials",
        n_trials=entry.trials.count("[") - 1,
        parts=_parts(result, name),
        origin=_origin(result),
        plugins=[
            shown(f"{p.entry_point}: {p.distribution} {p.version} ({p.module})") for p in result.environment.plugins
        ],
    )


def _axis(entry: Entry) -> str:
    return shown(entry.result.protocol.parameter or "number of facts")


def _unit(entry: Entry) -> str:
    protocol = entry.result.protocol
    return {
        "largest_load": "facts",
        "least_budget": f"to hold {protocol.at} facts",
        "success_rate": f"of the trials at {protocol.at} facts",
        "overload": f"of {protocol.at} facts under overload",
    }[entry.result.capacity.kind]


def _summary(result: Result) -> Facts:
    suite, rates = result.suite, result.rates
    return [
        (
            "suite",
            f"{shown(suite.name)} {suite.version}, about {tier_text(suite.tier)} parameters" if suite else "none",
        ),
        ("parameters", number(result.n_parameters)),
        ("bits a parameter", number(result.bits_per_parameter)),
        ("guaranteed", number(guaranteed(result))),
        ("constructed", constructed_text(result)),
        ("measured / lower bound", ratios_text(result)),
        ("criterion", shown(str(result.protocol.criterion))),
        (
            "learning rate",
            f"{rates.best:g} of {', '.join(f'{r:g}' for r in rates.tried)}" if rates else "nothing trained",
        ),
        ("varies between trials", shown(result.protocol.varies)),
    ]


def _points(entry: Entry, name: str, place: str, metric: str) -> Grid:
    columns = (Column(place, "n"), Column("held", "n"), Column("trials", "n"), Column(f"mean {metric}", "n"))
    rows = [
        (
            Cell(number(point.at), point.at),
            Cell(str(point.held), point.held),
            Cell(str(point.trials), point.trials),
            Cell("–" if point.metric is None else f"{point.metric:.3f}", point.metric),
        )
        for point in entry.points
    ]
    return Grid(f"{name}-points", "Trials at each load", columns, rows)


def _bound(bound: BoundRecord) -> tuple[Cell, ...]:
    ratio = f"constant {number(bound.constant)}" if bound.kind == "law" else number(bound.ratio)
    return (
        Cell(shown(bound.id)),
        Cell(shown(bound.quantity)),
        Cell(kind_text(bound)),
        Cell(number(bound.value), bound.value),
        Cell(number(bound.measured), bound.measured),
        Cell(ratio, bound.ratio),
        Cell(bound.pedigree),
        Cell(shown("; ".join(part for part in (bound.citation, bound.note) if part), LONGEST_FIELDS)),
    )


def _origin(result: Result) -> Facts:
    """Where the numbers come from, as the document states it."""
    there = result.environment
    return [
        ("capbench", shown(there.capbench)),
        ("python and torch", shown(f"{there.python}, {there.torch}")),
        ("device", shown(f"{there.device} ({there.device_name}), {there.threads} threads")),
        ("platform", shown(there.platform)),
        ("time", f"{seconds_text(result.timing.wall_seconds)}, {result.timing.lane_steps:,} lane-steps"),
        ("run", shown(result.run_id)),
    ]


def _checked(check: Check | None) -> Facts:
    if check is None:
        return []
    sampled = f"{check.n_sampled} of {check.n_trials} trials run again"
    facts = [("checked", f"{_when(check)}: {shown(check.verdict)}; {sampled}")]
    return [*facts, ("tolerance", shown(check.tolerance))] if check.tolerance else facts


def _bad_check(check: Check | None) -> str:
    return "" if check is None or check.is_good else f"Checked {_when(check)}, and found: {check.verdict}"


def _when(check: Check) -> str:
    return shown(f"{check.date} by {check.by}" if check.by else check.date)


def _parts(result: Result, name: str) -> Grid:
    """What was put together, and from where."""
    parts = (("task", result.task), ("architecture", result.architecture), ("solver", result.solver))
    return Grid(f"{name}-parts", "Plugins that were used", PARTS, [_part(kind, ref) for kind, ref in parts])


def _part(kind: str, ref: PluginRef) -> tuple[Cell, ...]:
    params = ", ".join(f"{field}={json.dumps(value)}" for field, value in ref.params.items())
    return (
        Cell(kind),
        Cell(shown(ref.name)),
        Cell(str(ref.version), ref.version),
        Cell(shown(params, LONGEST_FIELDS)),
        Cell(shown(ref.plugin)),
        Cell(shown(ref.code_hash)),
    )
