"""Laws fitted to the points of a reproduction, for claims and for figures."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import linear_regression

from capbench.documents.expressions import names_in
from capbench.documents.text import number
from capbench.studies.fit import FORMS, FitReport, FormFit, fit_forms
from capbench.studies.reproduce.claims import FitClaim
from capbench.studies.reproduce.data import PointRecord, Reproduction
from capbench.studies.reproduce.figure import Figure
from capbench.studies.reproduce.values import SEARCHED, NotShown, evaluate_at, select_points


def fit_sweeps(data: Reproduction, declared: FitClaim | Figure) -> tuple[FitReport, FormFit]:
    """All forms fitted to the points of a claim or figure, and the form it names (by default the best)."""
    y = declared.y if isinstance(declared, FitClaim) else declared.y[0]
    chosen = [point for sweep in declared.sweeps for point in select_points(data.points(sweep), declared.only)]
    usable = [point for point in chosen if is_estimated(point, y)]
    if not usable:
        raise NotShown("no points")
    left_out = [f"run {point.run_id}: only one side is known" for point in chosen if point not in usable]
    report = fit_forms(fit_points(usable, declared.x, y, declared.per), declared.x, y, left_out)
    found = next((fit for fit in report.fits if fit.form == (declared.form or report.fits[0].form)), None)
    if found is None:
        raise NotShown(f"no form named {declared.form!r}; there are {', '.join(each.name for each in FORMS)}")
    return report, found


def fit_points(points: Sequence[PointRecord], x: str, y: str, per: str) -> list[tuple[float, float]]:
    """(x, y) of each point; with `per`, for each x the least-squares slope of y in that field."""
    if not per:
        return [(evaluate_at(point, x).value, evaluate_at(point, y).value) for point in points]
    lines: dict[float, list[tuple[float, float]]] = {}
    for point in points:
        pair = evaluate_at(point, per).value, evaluate_at(point, y).value
        lines.setdefault(evaluate_at(point, x).value, []).append(pair)
    short = next((x for x, line in lines.items() if len(line) < 2), None)
    if short is not None:
        raise NotShown(f"one value of {per} at {number(short)} gives no slope")
    return [(at, linear_regression(*zip(*line, strict=True)).slope) for at, line in lines.items()]


def is_estimated(point: PointRecord, y: str) -> bool:
    """Whether a quantity is estimated at a point, not only limited on one side."""
    names = names_in(y)
    is_open = point.capacity is not None and point.capacity.status != "estimated"
    has_open_end = any(None in point.intervals[name] for name in names & set(point.intervals))
    return not (is_open and names & set(SEARCHED)) and not has_open_end
