"""Fits of laws where the truth is known: the interval covers it, and the form that generated the data wins."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from capbench.documents.result import Result
from capbench.errors import BadSetting
from capbench.studies.fit import FORMS, FitReport, fit_forms, predict

X = (8.0, 12.0, 16.0, 24.0, 32.0, 48.0, 64.0, 96.0)
TRUTHS = {
    "proportional": lambda x: 2.5 * x,
    "linear": lambda x: 120 + 2.5 * x,
    "power": lambda x: 0.7 * x**1.6,
    "x log x": lambda x: 0.4 * x * np.log(x),
}


def noisy(truth: str, generator: np.random.Generator, spread: float = 0.02) -> list[tuple[float, float]]:
    return [(x, float(TRUTHS[truth](x) * np.exp(generator.normal(0, spread)))) for x in X]


def parameter(report: FitReport, form: str, name: str):
    fit = next(fit for fit in report.fits if fit.form == form)
    return next(p for p in fit.parameters if p.name == name)


@pytest.mark.parametrize("truth", TRUTHS)
def test_without_noise_every_form_is_recovered_exactly(truth: str) -> None:
    report = fit_forms([(x, float(TRUTHS[truth](x))) for x in X])
    fit = next(fit for fit in report.fits if fit.form == truth)
    assert fit.held_out_error < 1e-6
    assert fit.r_squared == pytest.approx(1)


@pytest.mark.parametrize("truth", TRUTHS)
def test_the_form_that_generated_the_data_predicts_best(truth: str) -> None:
    """A form with one more parameter contains the truth too, so it may win by chance, but not often."""
    generator = np.random.default_rng(7)
    winners = [fit_forms(noisy(truth, generator), n_resamples=2).fits[0].form for _ in range(20)]
    assert winners.count(truth) >= 14, winners


def test_the_interval_covers_the_truth_as_often_as_it_says() -> None:
    generator = np.random.default_rng(11)
    n, covered = 120, 0
    for _ in range(n):
        exponent = parameter(fit_forms(noisy("power", generator), forms=(POWER,), n_resamples=200), "power", "p")
        covered += exponent.ci_low <= 1.6 <= exponent.ci_high
    # Ninety-five in a hundred, less three standard errors of the count; and no interval so wide that it always covers.
    assert 0.89 * n <= covered < n


POWER = next(form for form in FORMS if form.name == "power")


def test_held_out_error_finds_the_truth_more_often_than_r_squared() -> None:
    generator, by_prediction, by_fit = np.random.default_rng(3), 0, 0
    for _ in range(20):
        report = fit_forms(noisy("proportional", generator, 0.1), n_resamples=2)
        by_prediction += report.fits[0].form == "proportional"
        by_fit += max(report.fits, key=lambda fit: fit.r_squared).form == "proportional"
    assert by_prediction > by_fit


def test_forms_that_are_not_defined_at_the_points_are_left_out() -> None:
    report = fit_forms([(x / 16, float(y)) for x, y in zip(X, X, strict=True)], n_resamples=2)
    assert "x log x" not in {fit.form for fit in report.fits}


@pytest.mark.parametrize(
    ("points", "message"),
    [
        ([(1, 1), (2, 2), (3, 3)], "at least 4 different values of x, got 3"),
        ([(1, 1), (1, 2), (1, 3), (1, 4)], "at least 4 different values of x, got 1"),
        ([(1, 1), (2, 2), (3, 3), (4, 0)], "positive x and y, got 0"),
        ([], "at least 4 different values of x, got 0"),
    ],
)
def test_too_little_to_fit_is_refused(points, message: str) -> None:
    with pytest.raises(BadSetting, match=message):
        fit_forms(points)


@pytest.mark.parametrize("form", ["proportional", "linear", "power", "x log x"])
def test_a_fitted_curve_passes_through_points_that_lie_on_it(form: str) -> None:
    at = np.array([2.0, 3.0, 5.0, 9.0])
    curves = {"proportional": 4 * at, "linear": 1 + 2 * at, "power": 3 * at**1.5, "x log x": 2 * at * np.log(at)}
    report = fit_forms(list(zip(at, curves[form], strict=True)))
    fit = next(each for each in report.fits if each.form == form)
    assert predict(fit, at) == pytest.approx(curves[form])


@pytest.fixture
def result(capbench) -> Result:
    words = ("--task", "rgr", "--arch", "mha", "--preset", "smoke", "--at", "12", "--seeds", "1", "--lr", "0.4")
    return Result.model_validate_json(capbench("run", *words, "--json").out)


def made(result: Result, heads: int, estimate: float, status: str = "estimated") -> dict:
    document = result.model_dump(mode="json")
    document["run_id"] = f"{heads:012x}"
    document["architecture"]["params"]["n_heads"] = heads
    document["capacity"].update(estimate=estimate, kind="largest_load", status=status)
    return document


def test_a_file_of_results_is_fitted_and_what_has_no_estimate_is_left_out(capbench, result, tmp_path: Path) -> None:
    path = tmp_path / "sweep.json"
    path.write_text(
        json.dumps([*(made(result, h, 3 * h**1.5) for h in (1, 2, 4, 8, 16)), made(result, 32, 276, "at_least")])
    )
    done = capbench("fit", str(path), "--x", "arch.n_heads")
    assert done.code == 0, done.err
    assert "power predicts best" in done.out
    assert "c = 3 (3 to 3), p = 1.5 (1.5 to 1.5)" in done.out
    assert "left out: run 000000000020: only known to be at least 276" in done.out
    report = json.loads(capbench("fit", str(path), "--x", "arch.n_heads", "--json").out)
    assert report["fits"][0]["form"] == "power"
    assert "residuals" in report["intervals"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "takes a file of results or --runs"),
        (("--runs", "0123456789ab"), "no run with the name '0123456789ab'"),
        (("nowhere.json",), "nowhere.json: must be a readable file of results"),
    ],
)
def test_mistakes_end_with_2(capbench, words: tuple[str, ...], message: str) -> None:
    done = capbench("fit", *words, "--x", "arch.n_heads")
    assert done.code == 2
    assert message in done.err
