"""Laws fitted to the points of a reproduction, for claims and for figures."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import linear_regression

from capbench.figure import Figure
from capbench.fit import FORMS, FitReport, FormFit, fit_forms
from capbench.measured import SEARCHED, NothingToTell, measured, selected
from capbench.paper_claim import FitClaim
from capbench.quantity import names_in
from capbench.report.text import number
from capbench.reproduction import PointRecord, Reproduction


def fitted(data: Reproduction, what: FitClaim | Figure) -> tuple[FitReport, FormFit]:
    """All forms fitted to the points of some sweeps, and the one asked for (by default the best)."""
    y = what.y if isinstance(what, FitClaim) else what.y[0]
    chosen = [point for sweep in what.sweeps for point in selected(data.points(sweep), what.only)]
    usable = [point for point in chosen if _is_known(point, y)]
    if not usable:
        raise NothingToTell("no points")
    left_out = [f"run {point.run_id}: only one side is known" for point in chosen if point not in usable]
    report = fit_forms(fit_points(usable, what.x, y, what.per), what.x, y, left_out)
    found = next((fit for fit in report.fits if fit.form == (what.form or report.fits[0].form)), None)
    if found is None:
        raise NothingToTell(f"no form named {what.form!r}; there are {', '.join(each.name for each in FORMS)}")
    return report, found


def fit_points(points: Sequence[PointRecord], x: str, y: str, per: str) -> list[tuple[float, float]]:
    """(x, y) of each point; or with each x the slope of y in a field, by least squares over the points that share x."""
    if not per:
        return [(measured(point, x).value, measured(point, y).value) for point in points]
    lines: dict[float, list[tuple[float, float]]] = {}
    for point in points:
        at = measured(point, per).value, measured(point, y).value
        lines.setdefault(measured(point, x).value, []).append(at)
    short = next((x for x, line in lines.items() if len(line) < 2), None)
    if short is not None:
        raise NothingToTell(f"one value of {per} at {number(short)} gives no slope")
    return [(at, linear_regression(*zip(*line, strict=True)).slope) for at, line in lines.items()]


def _is_known(point: PointRecord, y: str) -> bool:
    """Whether a point has y itself, and not only one side of it."""
    is_open = point.capacity is not None and point.capacity.status != "estimated"
    return not (is_open and names_in(y) & set(SEARCHED))
