"""A fit as a person reads it."""

from __future__ import annotations

from capbench.fit import FitReport, FormFit
from capbench.report.text import plain, table


def fit_text(report: FitReport) -> str:
    """The forms, the best predictor first, and how the numbers were found."""
    rows = [(f.form, f.formula, _parameters(f), f"{f.held_out_error:.1%}", f"{f.r_squared:.4f}") for f in report.fits]
    best = report.fits[0]
    parts = [
        plain(f"{report.y} against {report.x}, {len(report.points)} points"),
        table(rows, ("form", "", f"parameters ({report.confidence:.0%} interval)", "held-out error", "R²")),
        f"{best.form} predicts best: it misses a point left out by {best.held_out_error:.1%} (rms of log y)",
        f"intervals: {report.intervals}",
        *(plain(f"left out: {words}") for words in report.left_out),
    ]
    return "\n\n".join(parts)


def _parameters(fit: FormFit) -> str:
    return ", ".join(f"{p.name} = {p.value:.4g} ({p.ci_low:.4g} to {p.ci_high:.4g})" for p in fit.parameters)
