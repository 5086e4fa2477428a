"""Suites, sweeps and fits as text for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from capbench.documents.result import MissingRecord, Result
from capbench.documents.text import number, plain, pluralize, ratio_text, table
from capbench.measure.document import command
from capbench.measure.options import flag_of
from capbench.measure.request import Request
from capbench.report.progress import duration
from capbench.report.result_text import brief_capacity
from capbench.studies.differences import Difference, differences
from capbench.studies.estimate import RunEstimate, total_seconds
from capbench.studies.fit import FitReport, FormFit
from capbench.studies.suite import Suite
from capbench.studies.suite_run import SuitePlan
from capbench.studies.sweep import ARCH, JOINT, Grid, Point, results_of

ENOUGH_TO_FIT = 4
"""Points that a sweep needs before a fit is suggested."""


def suites_text(suites: Sequence[Suite], width: int | None = None) -> str:
    """One row per suite that can be named."""
    rows = [(s.name, s.version, ", ".join(number(tier) for tier in s.tiers), s.about) for s in suites]
    return table(rows, ("suite", "version", "parameters", ""), width)


def plan_text(plan: SuitePlan, largest: Sequence[RunEstimate], width: int | None = None) -> str:
    """The runs of a plan in order, each with its command, and what the largest run of each pair would take."""
    rows = [
        (e.task, e.architecture, number(e.cell.tier), number(e.request.n_parameters), _command(e.request))
        for e in plan.cells
    ]
    parts = [
        table(rows, ("task", "architecture", "target", "parameters", "command for this run")) if rows else "",
        pluralize(len(plan.cells), "run"),
        missing_text(plan.missing),
        f"the largest run of each pair:\n\n{estimates_text(largest, width)}" if rows else "",
    ]
    return "\n\n".join(part for part in parts if part)


def _command(request: Request) -> str:
    """The command of a run that is still to be made: that of its document, and whether it settles."""
    share = request.options.settle
    return f"{command(request)} {flag_of('settle')} {share:g}" if share else command(request)


def suite_text(
    results: Sequence[Result], missing: Sequence[MissingRecord], tiers: Sequence[int], width: int | None = None
) -> str:
    """Capacities of a suite, one row per pair and one column per tier, then what is missing."""
    found = {(r.task.name, r.architecture.name, r.suite.tier): brief_capacity(r) for r in results if r.suite}
    gaps = {(m.task, m.architecture, m.tier): "missing" for m in missing}
    cells = {**found, **gaps}
    pairs = sorted({(task, architecture) for task, architecture, _ in cells})
    rows = [(*pair, *(cells.get((*pair, tier), "") for tier in sorted(tiers))) for pair in pairs]
    headers = ("task", "architecture", *(f"{number(tier)} parameters" for tier in sorted(tiers)))
    return "\n\n".join(part for part in (table(rows, headers, width), missing_text(missing)) if part)


def missing_text(missing: Sequence[MissingRecord]) -> str:
    """One line per missing cell of a suite, with the reason."""
    lines = [plain(f"missing: {m.task} × {m.architecture} at {number(m.tier)}: {m.reason}") for m in missing]
    return "\n".join(lines)


def sweep_rows(points: Sequence[Point], grid: Grid, fact: str) -> list[tuple[str, ...]]:
    """Headers, then one row per point of a sweep."""
    headers = (*grid, _capacity_header(points, fact), "parameters", "bits per parameter", "run")
    return [headers, *((*(value for _, value in point.values), *_cells(point)) for point in points)]


def difference_rows(points: Sequence[Point], grid: Grid) -> list[tuple[str, ...]]:
    """Headers, then every architecture of a sweep beside the first one; empty for a sweep of one architecture."""
    if ARCH not in grid:
        return []
    found = differences(points)
    headers = (*(name for name in grid if name != ARCH), "compared", _compared(found), "95 % interval", "")
    return [headers, *(_difference_row(each) for each in found)]


def estimates_text(estimates: Sequence[RunEstimate], width: int | None = None) -> str:
    """What runs would take: one row each, then the time of all."""
    rows = [
        (
            each.run,
            number(each.n_parameters),
            number(each.n_first),
            number(each.n_groups),
            number(each.most_trials),
            number(each.steps),
            "yes" if each.is_compiled else "no",
            _memory_text(each.bytes_per_lane),
            duration(each.seconds) if each.seconds is not None else "unknown",
        )
        for each in estimates
    ]
    headers = ("run", "parameters", "first trials", "groups", "most trials", "steps", "compiled", "per model", "time")
    seconds = total_seconds(estimates)
    total = (
        "time: unknown; this store has no run of the same task and preset to judge by"
        if seconds is None
        else f"time: about {duration(seconds)}, by the runs of the same task and preset in this store"
    )
    note = "nothing was trained; most trials are those at the leading learning rate"
    return f"{table(rows, headers, width)}\n\n{note}\n{total}"


def _memory_text(n_bytes: int | None) -> str:
    """Megabytes or gigabytes; a dash where nothing is trained."""
    if n_bytes is None:
        return "unknown"
    if not n_bytes:
        return "–"
    return f"{n_bytes / 1e6:.2g} MB" if n_bytes < 1e8 else f"{n_bytes / 1e9:.2g} GB"


def _compared(found: Sequence[Difference]) -> str:
    return "difference" if any(each.is_share for each in found) else "ratio"


def _difference_row(each: Difference) -> tuple[str, ...]:
    shown = "{:+.0%}".format if each.is_share else "{:.2f}".format
    low, high = ("open" if end is None else shown(end) for end in (each.ci_low, each.ci_high))
    sign = " − " if each.is_share else " / "
    verdict = "" if each.is_clear else "no clear difference"
    fields = (value for _, value in each.values)
    value = ratio_text(each.status, shown(each.value))
    return (*fields, f"{each.architecture}{sign}{each.baseline}", value, f"{low} to {high}", verdict)


def sweep_text(points: Sequence[Point], grid: Grid, fact: str, width: int | None = None) -> str:
    """One row per point of a sweep, differences of architectures, the reasons of failed points, a suggested fit."""
    (headers, *rows), compared = sweep_rows(points, grid, fact), difference_rows(points, grid)
    parts = [
        table(rows, headers, width),
        table(compared[1:], compared[0], width) if compared[1:] else "",
        "\n".join(plain(f"failed: {_label(point)}: {point.reason}") for point in points if point.result is None),
        _suggested_fit(points, grid),
    ]
    return "\n\n".join(part for part in parts if part)


def fit_text(report: FitReport, width: int | None = None) -> str:
    """The fitted forms, the best predictor first, and how the intervals were found."""
    rows = [(f.form, f.formula, _parameters(f), f"{f.held_out_error:.1%}", f"{f.r_squared:.4f}") for f in report.fits]
    best = report.fits[0]
    parts = [
        plain(f"{report.y} against {report.x}, {len(report.points)} points"),
        table(rows, ("form", "", f"parameters ({report.confidence:.0%} interval)", "held-out error", "R²"), width),
        f"{best.form} predicts best: its error at held-out points is {best.held_out_error:.1%} (rms of log y)",
        f"intervals: {report.intervals}",
        *(plain(f"left out: {reason}") for reason in report.left_out),
    ]
    return "\n\n".join(parts)


def _capacity_header(points: Sequence[Point], fact: str) -> str:
    """The quantity that the runs measured."""
    kinds = {result.capacity.kind: result for result in results_of(points)}
    if not kinds:
        return "capacity"
    kind, result = next(iter(kinds.items()))
    names = {"least_budget": f"least {result.capacity.parameter}", "success_rate": "held", "overload": f"{fact}s held"}
    return names.get(kind, f"capacity ({fact}s)")


def _cells(point: Point) -> tuple[str, str, str, str]:
    result = point.result
    if result is None:
        return "failed", "–", "–", "–"
    return brief_capacity(result), number(result.n_parameters), f"{result.bits_per_parameter:.3g}", result.run_id


def _label(point: Point) -> str:
    return " ".join(f"{name}={value}" for name, value in point.values)


def _suggested_fit(points: Sequence[Point], grid: Grid) -> str:
    """The command that fits this sweep; empty unless it has one numeric field with enough points."""
    runs = ",".join(dict.fromkeys(result.run_id for result in results_of(points)))
    numeric = [name for name, values in grid.items() if len(values) >= ENOUGH_TO_FIT and _are_numbers(values)]
    if not runs or len(numeric) != 1 or len(grid) > 1:
        return ""
    first, *_ = numeric[0].split(JOINT)
    x = {"params": "n_parameters"}.get(first, first)
    return f"next:\n  capbench fit --runs {runs} --x {x} --y capacity   # which law it follows"


def _are_numbers(values: Sequence[str]) -> bool:
    return all(value.rstrip("kKmM").replace(".", "", 1).isdigit() for value in values)


def _parameters(fit: FormFit) -> str:
    return ", ".join(f"{p.name} = {p.value:.4g} ({p.ci_low:.4g} to {p.ci_high:.4g})" for p in fit.parameters)
