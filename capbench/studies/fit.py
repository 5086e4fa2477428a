"""Scaling laws: simple forms fitted to measured points, with intervals, and compared by their held-out error.

Errors are assumed to be relative: a form is fitted by least squares on log y. Intervals come from a
studentised bootstrap of the residuals: each resample adds residuals, drawn with replacement and
scaled up for the degrees of freedom, to the fitted curve, and is fitted again. The variation within
a point between seeds and data sets enters only through the scatter of the points.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from capbench.documents.result import Record
from capbench.errors import BadSetting

Floats = npt.NDArray[np.float64]

FACTOR = "c"
MIN_POINTS = 4
N_RESAMPLES = 1000
MAX_ITERATIONS = 40
TOLERANCE = 1e-9
"""The fit has converged when the next step would change no log y by more than this."""
SMALLEST = 1e-12
"""Replaces predictions that are not positive, so that their logarithm is finite."""


class Estimate(Record):
    """A fitted parameter with its interval."""

    name: str
    value: float
    ci_low: float
    ci_high: float


class FormFit(Record):
    """A form fitted to the points."""

    form: str
    formula: str
    parameters: tuple[Estimate, ...]
    r_squared: float
    """Of log y, on which forms are fitted."""
    held_out_error: float
    """Root mean square of log(predicted / measured), each point predicted from all the others."""


class FitReport(Record):
    """Every form fitted to the same points, in order of held-out error."""

    x: str
    y: str
    points: tuple[tuple[float, float], ...]
    left_out: tuple[str, ...]
    """Points that could not be used, with the reason."""
    confidence: float
    intervals: str = "studentised bootstrap of the residuals of log y"
    fits: tuple[FormFit, ...]


@dataclass(frozen=True)
class Form:
    """A curve y(x; p), the derivative of log y by p, and a starting point for p; p may be stacked: (…, parameters).

    A factor c is fitted as log c, so that it and its interval stay positive.
    """

    name: str
    formula: str
    parameters: tuple[str, ...]
    curve: Callable[[Floats, Floats], Floats]
    """(…, points)."""
    slope: Callable[[Floats, Floats], Floats]
    """d log y / d p, (…, points, parameters)."""
    start: Callable[[Floats, Floats], Floats]
    min_x: float = 0.0
    """The form is defined only for larger x."""

    def formula_values(self, p: Floats) -> list[float]:
        """The parameters as the formula has them: c instead of log c."""
        return [
            float(np.exp(value) if name == FACTOR else value) for name, value in zip(self.parameters, p, strict=True)
        ]


def _scaled(base: Callable[[Floats], Floats], name: str, formula: str, min_x: float = 0.0) -> Form:
    """y = c·base(x): one factor, the geometric mean of y / base(x)."""
    return Form(
        name,
        formula,
        (FACTOR,),
        curve=lambda x, p: np.exp(p) * base(x),
        slope=lambda x, p: np.ones((*p.shape[:-1], len(x), 1)),
        start=lambda x, y: np.array([np.mean(np.log(y / base(x)))]),
        min_x=min_x,
    )


def _line(x: Floats, p: Floats) -> Floats:
    values: Floats = p[..., :1] + p[..., 1:] * x
    return values


def _line_slope(x: Floats, p: Floats) -> Floats:
    values = np.maximum(_line(x, p), SMALLEST)
    return np.stack([1 / values, x / values], axis=-1)


def _line_start(x: Floats, y: Floats) -> Floats:
    """Least squares of relative errors; a flat line where that one would not be positive."""
    found = np.polyfit(x, y, 1, w=1 / y)[::-1]
    return found if _line(x, found).min() > 0 else np.array([np.exp(np.mean(np.log(y))), 0.0])


def _power(x: Floats, p: Floats) -> Floats:
    values: Floats = np.exp(p[..., :1] + p[..., 1:] * np.log(x))
    return values


def _power_slope(x: Floats, p: Floats) -> Floats:
    design = np.stack([np.ones_like(x), np.log(x)], axis=-1)
    return np.broadcast_to(design, (*p.shape[:-1], *design.shape))


def _power_start(x: Floats, y: Floats) -> Floats:
    return np.polyfit(np.log(x), np.log(y), 1)[::-1]


FORMS = (
    _scaled(lambda x: x, "proportional", "y = c·x"),
    Form("linear", "y = a + b·x", ("a", "b"), _line, _line_slope, _line_start),
    Form("power", "y = c·x^p", (FACTOR, "p"), _power, _power_slope, _power_start),
    _scaled(lambda x: x * np.log(x), "x log x", "y = c·x·log x", min_x=1.0),
)


@dataclass(frozen=True)
class Resampling:
    """How intervals are computed."""

    confidence: float
    n_resamples: int
    generator: np.random.Generator


def fit_forms(
    points: Sequence[tuple[float, float]],
    x: str = "x",
    y: str = "y",
    left_out: Sequence[str] = (),
    confidence: float = 0.95,
    forms: Sequence[Form] = FORMS,
    n_resamples: int = N_RESAMPLES,
) -> FitReport:
    """Fits every form that is defined at the points, in order of held-out error."""
    at = np.array([point[0] for point in points], dtype=np.float64)
    measured = np.array([point[1] for point in points], dtype=np.float64)
    _check(at, measured, left_out)
    resampling = Resampling(confidence, n_resamples, np.random.default_rng(0))
    fits = [_fit_form(form, at, measured, resampling) for form in forms if at.min() > form.min_x]
    return FitReport(
        x=x,
        y=y,
        points=tuple(sorted((float(a), float(b)) for a, b in points)),
        left_out=tuple(left_out),
        confidence=confidence,
        fits=tuple(sorted(fits, key=lambda fit: fit.held_out_error)),
    )


def predict(fit: FormFit, x: Floats) -> Floats:
    """The fitted curve at the given x."""
    form = next(each for each in FORMS if each.name == fit.form)
    fitted = [np.log(p.value) if p.name == FACTOR else p.value for p in fit.parameters]
    return form.curve(x, np.array(fitted))


def _check(x: Floats, y: Floats, left_out: Sequence[str]) -> None:
    if len(set(x)) < MIN_POINTS:
        reasons = f" (left out: {'; '.join(left_out)})" if left_out else ""
        raise BadSetting(f"a fit takes at least {MIN_POINTS} different values of x, got {len(set(x))}{reasons}")
    if x.min() <= 0 or y.min() <= 0:
        raise BadSetting(f"a fit takes positive x and y, got {min(x.min(), y.min()):g}; choose other --x and --y")


def _fit_form(form: Form, x: Floats, y: Floats, resampling: Resampling) -> FormFit:
    found = _least_squares(form, x, np.log(y), form.start(x, y))
    low, high = _interval(form, x, y, found, resampling)
    log_y = np.log(y)
    residuals, deviations = log_y - _log(form.curve(x, found)), log_y - log_y.mean()
    return FormFit(
        form=form.name,
        formula=form.formula,
        parameters=tuple(
            Estimate(name=name, value=value, ci_low=start, ci_high=stop)
            for name, value, start, stop in zip(
                form.parameters, *map(form.formula_values, (found, low, high)), strict=True
            )
        ),
        r_squared=1 - float(residuals @ residuals) / max(float(deviations @ deviations), SMALLEST),
        held_out_error=_held_out_error(form, x, y),
    )


def _least_squares(form: Form, x: Floats, log_y: Floats, start: Floats) -> Floats:
    """The least-squares parameters of each row of log y, by Gauss-Newton steps, shortened where they do not help."""
    found = np.broadcast_to(start, (*log_y.shape[:-1], len(form.parameters))).astype(np.float64)
    length = np.ones((*log_y.shape[:-1], 1))
    for _ in range(MAX_ITERATIONS):
        residuals = log_y - _log(form.curve(x, found))
        slope = form.slope(x, found)
        step = (np.linalg.pinv(slope) @ residuals[..., None])[..., 0]
        if np.abs(slope @ step[..., None]).max() < TOLERANCE:
            break
        tried = found + length * step
        tried_residuals = log_y - _log(form.curve(x, tried))
        is_better = (tried_residuals**2).sum(-1, keepdims=True) <= (residuals**2).sum(-1, keepdims=True)
        found = np.where(is_better, tried, found)
        length = np.where(is_better, np.minimum(1.0, 2 * length), length / 4)
    return found


def _errors(form: Form, x: Floats, log_y: Floats, found: Floats) -> Floats:
    """Standard errors of the parameters of each row."""
    slope = form.slope(x, found)
    degrees_of_freedom = max(1, len(x) - len(form.parameters))
    variance = ((log_y - _log(form.curve(x, found))) ** 2).sum(-1) / degrees_of_freedom
    inverse = np.linalg.pinv(np.swapaxes(slope, -1, -2) @ slope)
    errors: Floats = np.sqrt(variance[..., None] * np.diagonal(inverse, axis1=-2, axis2=-1))
    return errors


def _interval(form: Form, x: Floats, y: Floats, found: Floats, resampling: Resampling) -> tuple[Floats, Floats]:
    """Ends of the studentised bootstrap interval of each parameter."""
    fitted, log_y = _log(form.curve(x, found)), np.log(y)
    residuals = (log_y - fitted) * np.sqrt(len(x) / max(1, len(x) - len(form.parameters)))
    if np.abs(residuals).max() < 1e-9:  # the points lie on the curve: nothing to resample
        return found, found
    drawn = fitted + resampling.generator.choice(residuals, (resampling.n_resamples, len(x)))
    refitted = _least_squares(form, x, drawn, found)
    ratios = (refitted - found) / np.maximum(_errors(form, x, drawn, refitted), SMALLEST)
    tail = (1 - resampling.confidence) / 2
    low, high = np.quantile(ratios, [tail, 1 - tail], axis=0)
    errors = _errors(form, x, log_y, found)
    return found - high * errors, found - low * errors


def _held_out_error(form: Form, x: Floats, y: Floats) -> float:
    """Root mean square of log(predicted / measured), each point predicted by a fit to the others."""
    errors = []
    for i in range(len(x)):
        others = np.arange(len(x)) != i
        found = _least_squares(form, x[others], np.log(y[others]), form.start(x[others], y[others]))
        errors.append(float(_log(form.curve(x[i : i + 1], found))[0] - np.log(y[i])))
    return float(np.sqrt(np.mean(np.square(errors))))


def _log(values: Floats) -> Floats:
    logs: Floats = np.log(np.maximum(values, SMALLEST))
    return logs
