"""The page of a record: capacity, curve, bounds, trials, provenance and the command that repeats it."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

from markupsafe import Markup

from capbench.documents.result import BoundRecord, PluginRef, Reading, Result
from capbench.documents.text import number, plain
from capbench_leaderboard.charts import curve_data
from capbench_leaderboard.ranking.entry import BoardEntry
from capbench_leaderboard.ranking.measures import training_cost
from capbench_leaderboard.ranking.ranked_tables import RankedRow
from capbench_leaderboard.ranking.record_status import RecordCheck
from capbench_leaderboard.record_text import (
    best_guarantee,
    bits_text,
    capacity_text,
    constructed_text,
    cost_text,
    interval_text,
    kind_text,
    plain_line,
    probability_text,
    ratios_text,
    same_model_text,
    seconds_text,
    settled_text,
    shape_text,
    status_text,
    tier_size_text,
)
from capbench_leaderboard.site.curve_svg import curve_svg
from capbench_leaderboard.site.html_table import HtmlTable, escape_json
from capbench_leaderboard.site.pages import Chart
from capbench_leaderboard.table_rows import Column, TableCell

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
SIGNS = {"estimated": "", "at_least": "at least ", "below": "below "}
READINGS = (Column("read as", "w"), Column("value", "n"), Column("95 % interval", "n"))
MAX_FIELDS_LENGTH = 1000


@dataclass(frozen=True)
class RecordPage:
    """The values in the template of a record."""

    task: str
    architecture: str
    capacity: str
    unit: str
    interval: str
    status: str
    summary: Facts
    warnings: list[str]
    chart: Chart
    command: str
    bounds: HtmlTable
    points: HtmlTable
    readings: HtmlTable
    trials: Markup
    trials_id: str
    n_trials: int
    parts: HtmlTable
    origin: Facts
    plugins: list[str]


def record_page(row: RankedRow, check: RecordCheck | None) -> RecordPage:
    """The page of a record on the board, with its status, its rank and its path."""
    page = run_page(row.entry, "record")
    return replace(
        page,
        status=status_text(is_self_reported=not (check and check.has_passed)),
        summary=[*_standing_facts(row), *page.summary],
        warnings=[line for line in (_failed_check(check), *page.warnings) if line],
        origin=[*page.origin, ("record", plain_line(row.entry.path)), *_check_facts(check)],
    )


def _standing_facts(row: RankedRow) -> Facts:
    if row.standing is None:
        return [("rank", "not ranked: " + ("not settled" if row.entry.is_unsettled else "outside a suite"))]
    same = [("model", same_model_text(row.same_model_as))] if row.same_model_as else []
    return [("rank", f"{row.rank} in its group"), ("probability of being best", probability_text(row.standing)), *same]


def run_page(entry: BoardEntry, name: str) -> RecordPage:
    """The page of a run, on the board or in a report; `name` makes its element ids unique in the document."""
    result = entry.result
    capacity, metric = result.capacity, plain_line(result.protocol.criterion.metric)
    columns = ["parameter value" if result.protocol.parameter else "facts", "seed", "rate", "status", "steps", metric]
    return RecordPage(
        task=plain_line(result.task.name),
        architecture=plain_line(result.architecture.name),
        capacity=capacity_text(capacity),
        unit=_unit(entry),
        interval=f"{capacity.confidence:.0%} interval {interval_text(capacity)}",
        status="",
        summary=_summary(entry),
        warnings=[entry.failures] if entry.failures else [],
        chart=Chart(
            f"{name}-curve", "curve", _curve_title(entry, metric), curve_data(entry), inline_svg=curve_svg(entry)
        ),
        command=plain(result.command),
        bounds=HtmlTable(f"{name}-bounds", "Bounds", BOUNDS, [_bound(bound) for bound in result.bounds]),
        points=_points(entry, name, columns[0], metric),
        readings=HtmlTable(f"{name}-readings", "Other readings", READINGS, [_reading(r) for r in result.readings]),
        trials=escape_json(f'{{"columns":{json.dumps(columns)},"rows":{entry.trials}}}'),
        trials_id=f"{name}-trials",
        n_trials=entry.trials.count("[") - 1,
        parts=_parts(result, name),
        origin=_origin(result),
        plugins=[
            plain_line(f"{p.entry_point}: {p.distribution} {p.version} ({p.module})")
            for p in result.environment.plugins
        ],
    )


def _curve_title(entry: BoardEntry, metric: str) -> str:
    axis = plain_line(entry.result.protocol.parameter or "number of facts")
    return f"{metric[:1].upper()}{metric[1:]} against {axis}"


def _unit(entry: BoardEntry) -> str:
    protocol = entry.result.protocol
    return {
        "largest_load": "facts",
        "least_budget": f"to hold {protocol.at} facts",
        "success_rate": f"of the trials at {protocol.at} facts",
        "overload": f"of {protocol.at} facts under overload",
    }[entry.result.capacity.kind]


def _summary(entry: BoardEntry) -> Facts:
    result = entry.result
    suite, rates = result.suite, result.rates
    return [
        (
            "suite",
            f"{plain_line(suite.name)} {suite.version}, {tier_size_text(suite.tier, suite.unit)}" if suite else "none",
        ),
        ("parameters", number(result.n_parameters)),
        ("bits per parameter", bits_text(entry)),
        ("guaranteed", number(best_guarantee(result))),
        ("constructed", constructed_text(result)),
        ("measured / lower bound", ratios_text(result)),
        ("criterion", plain_line(str(result.protocol.criterion))),
        ("settled", settled_text(result)),
        (
            "learning rate",
            f"{rates.best:g} of {', '.join(f'{r:g}' for r in rates.tried)}" if rates else "nothing trained",
        ),
        ("shape", shape_text(result)),
        ("training cost", f"{cost_text(training_cost(entry))} parameter updates"),
        ("varies between trials", plain_line(result.protocol.varies)),
    ]


def _points(entry: BoardEntry, name: str, axis: str, metric: str) -> HtmlTable:
    columns = (Column(axis, "n"), Column("held", "n"), Column("trials", "n"), Column(f"mean {metric}", "n"))
    rows = [
        (
            TableCell(number(point.at), point.at),
            TableCell(str(point.held), point.held),
            TableCell(str(point.trials), point.trials),
            TableCell("–" if point.metric is None else f"{point.metric:.3f}", point.metric),
        )
        for point in entry.points
    ]
    return HtmlTable(f"{name}-points", "Trials at each load", columns, rows)


def _reading(reading: Reading) -> tuple[TableCell, ...]:
    low, high = (number(end) if end is not None else "open" for end in (reading.ci_low, reading.ci_high))
    return (
        TableCell(plain_line(reading.note or reading.name)),
        TableCell(f"{SIGNS[reading.status]}{number(reading.estimate)} {reading.unit}", reading.estimate),
        TableCell(f"{low} to {high}", reading.ci_low),
    )


def _bound(bound: BoundRecord) -> tuple[TableCell, ...]:
    ratio = f"constant {number(bound.constant)}" if bound.kind == "law" else number(bound.ratio)
    return (
        TableCell(plain_line(bound.id)),
        TableCell(plain_line(bound.quantity)),
        TableCell(kind_text(bound)),
        TableCell(number(bound.value), bound.value),
        TableCell(number(bound.measured), bound.measured),
        TableCell(ratio, bound.ratio),
        TableCell(bound.pedigree),
        TableCell(plain_line("; ".join(part for part in (bound.citation, bound.note) if part), MAX_FIELDS_LENGTH)),
    )


def _origin(result: Result) -> Facts:
    """Where the numbers come from, as stated in the record."""
    environment = result.environment
    return [
        ("capbench", plain_line(environment.capbench)),
        ("python and torch", plain_line(f"{environment.python}, {environment.torch}")),
        ("device", plain_line(f"{environment.device} ({environment.device_name}), {environment.threads} threads")),
        ("platform", plain_line(environment.platform)),
        ("time, not checked", f"{seconds_text(result.timing.wall_seconds)}, {result.timing.lane_steps:,} lane-steps"),
        ("run", plain_line(result.run_id)),
    ]


def _check_facts(check: RecordCheck | None) -> Facts:
    if check is None:
        return []
    sampled = f"{check.n_sampled} of {check.n_trials} trials run again"
    facts = [("checked", f"{_when(check)}: {plain_line(check.verdict)}; {sampled}")]
    return [*facts, ("tolerance", plain_line(check.tolerance))] if check.tolerance else facts


def _failed_check(check: RecordCheck | None) -> str:
    return "" if check is None or check.has_passed else f"Checked {_when(check)}; verdict: {check.verdict}"


def _when(check: RecordCheck) -> str:
    return plain_line(f"{check.date} by {check.by}" if check.by else check.date)


def _parts(result: Result, name: str) -> HtmlTable:
    """The plugins that the run used, with their versions and code hashes."""
    parts = (("task", result.task), ("architecture", result.architecture), ("solver", result.solver))
    return HtmlTable(f"{name}-parts", "Plugins that were used", PARTS, [_part(kind, ref) for kind, ref in parts])


def _part(kind: str, ref: PluginRef) -> tuple[TableCell, ...]:
    params = ", ".join(f"{field}={json.dumps(value)}" for field, value in ref.params.items())
    return (
        TableCell(kind),
        TableCell(plain_line(ref.name)),
        TableCell(str(ref.version), ref.version),
        TableCell(plain_line(params, MAX_FIELDS_LENGTH)),
        TableCell(plain_line(ref.plugin)),
        TableCell(plain_line(ref.code_hash)),
    )
