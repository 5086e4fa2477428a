"""A record as a page: the answer, its curve, the bounds, the trials, where it comes from and how to repeat it."""

from __future__ import annotations

import json
from dataclasses import dataclass

from markupsafe import Markup

from capbench.report.text import number, plain
from capbench.results import BoundRecord, PluginRef
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
    path: str
    origin: Facts
    plugins: list[str]


def record_page(row: Row, check: Check | None, name: str = "record") -> RecordPage:
    """The page of a record; `name` keeps several of them apart in one document."""
    entry, result = row.entry, row.entry.result
    capacity, metric = result.capacity, shown(result.protocol.criterion.metric)
    columns = ["budget" if result.protocol.parameter else "facts", "seed", "rate", "ending", "steps", metric]
    return RecordPage(
        task=shown(result.task.name),
        architecture=shown(result.architecture.name),
        capacity=capacity_text(capacity),
        unit=_unit(entry),
        interval=f"{capacity.confidence:.0%} interval {interval_text(capacity)}",
        standing=standing_text(is_self_reported=not (check and check.is_good)),
        summary=_summary(row),
        warnings=[line for line in (_bad_check(check), entry.failures) if line],
        chart=Chart(
            f"{name}-curve", "curve", f"Accuracy against {_axis(entry)}", curve_data(entry), sketch=sketch(entry)
        ),
        command=plain(result.command),
        bounds=Grid(f"{name}-bounds", "Bounds", BOUNDS, [_bound(bound) for bound in result.bounds]),
        points=_points(entry, name, columns[0], metric),
        trials=escaped_json(f'{{"columns":{json.dumps(columns)},"rows":{entry.trials}}}'),
        trials_id=f"{name}-trials",
        n_trials=entry.trials.count("[") - 1,
        path=shown(entry.path),
        origin=_origin(entry, check),
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


def _summary(row: Row) -> Facts:
    result, suite = row.entry.result, row.entry.result.suite
    rates = result.rates
    return [
        ("rank", f"{row.rank} in its group" if row.best else "not ranked: outside a suite"),
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
        Cell(shown(" ".join(part for part in (bound.citation, bound.note) if part))),
    )


def _origin(entry: Entry, check: Check | None) -> Facts:
    result, there = entry.result, entry.result.environment
    facts = [
        ("task", _plugin(result.task)),
        ("architecture", _plugin(result.architecture)),
        ("solver", _plugin(result.solver)),
        ("capbench", shown(there.capbench)),
        ("python and torch", shown(f"{there.python}, {there.torch}")),
        ("device", shown(f"{there.device} ({there.device_name}), {there.threads} threads")),
        ("platform", shown(there.platform)),
        ("time", f"{seconds_text(result.timing.wall_seconds)}, {result.timing.lane_steps:,} lane-steps"),
        ("run", shown(result.run_id)),
        ("record", shown(entry.path)),
    ]
    if check:
        sampled = f"{check.n_sampled} of {check.n_trials} trials run again"
        facts.append(("checked", f"{_when(check)}: {shown(check.verdict)}; {sampled}"))
        facts.append(("tolerance", shown(check.tolerance or "none was needed")))
    return facts


def _bad_check(check: Check | None) -> str:
    return "" if check is None or check.is_good else f"Checked {_when(check)}, and found: {check.verdict}"


def _when(check: Check) -> str:
    return shown(f"{check.date} by {check.by}" if check.by else check.date)


def _plugin(ref: PluginRef) -> str:
    params = ", ".join(f"{name}={value}" for name, value in ref.params.items())
    return shown(f"{ref.name} {ref.version} of {ref.plugin}, code {ref.code_hash}; {params}")
