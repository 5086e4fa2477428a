"""Forecasts: fitted by formulas checked by hand, frozen before what they predict is run, judged as frozen."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from capbench.errors import BadDocument, BadSetting
from capbench.measure.options import RunOptions
from capbench.registry.registry import load_registry
from capbench.store.store import Store
from capbench.studies.jobs import FinishedJob, NullStudyListener
from capbench.studies.reproduce import reproduce as reproducing
from capbench.studies.reproduce.data import PointRecord, Reproduction, SweepRecord
from capbench.studies.reproduce.forecast import (
    Forecast,
    FrozenForecasts,
    Predicted,
    fit_power,
    freeze_forecasts,
    keep_frozen,
    read_forecasts,
)
from capbench.studies.reproduce.judging import judge_claims
from capbench.studies.reproduce.recipe import PaperRecipe, load_recipe
from capbench.studies.reproduce.verdict import Verdict


def test_an_exact_power_law_is_found_and_predicts_exactly() -> None:
    law = fit_power([(x, 3 * x**1.5) for x in (2.0, 4.0, 8.0)])
    assert law is not None
    assert (law.c, law.p) == pytest.approx((3.0, 1.5))
    assert law.predict(16.0) == pytest.approx((192.0, 192.0, 192.0))


def test_the_prediction_interval_agrees_with_a_calculation_by_hand() -> None:
    """log x = -1, 0, 1, 0 and log y = -1, .5, 1, -.5: slope 1, residuals ±.5 at the centre, s² = .5 / 2."""
    points = [(math.exp(x), math.exp(y)) for x, y in ((-1, -1), (0, 0.5), (1, 1), (0, -0.5))]
    law = fit_power(points)
    assert law is not None
    assert law.p == pytest.approx(1.0)
    t = 4.302652729911275  # Student's t with 2 degrees of freedom, 97.5 %
    assert law.p_high - law.p == pytest.approx(t * 0.5 / math.sqrt(2))
    _, _, high = law.predict(math.exp(2))
    assert math.log(high) == pytest.approx(2 + t * 0.5 * math.sqrt(1 + 1 / 4 + 4 / 2))


def test_too_few_points_give_no_law() -> None:
    assert fit_power([(1.0, 2.0), (2.0, 3.0)]) is None
    assert fit_power([(2.0, 1.0), (2.0, 2.0), (2.0, 3.0)]) is None


def frozen(value: float = 10.0) -> FrozenForecasts:
    law = fit_power([(x, x) for x in (1.0, 2.0, 4.0)])
    assert law is not None
    point = Predicted(sweep="large", values={"arch.d_mlp": "8"}, n_parameters=10, value=value, low=8, high=12)
    return freeze_forecasts("recipe", "smoke", [Forecast(claim="c", y="capacity", law=law, predictions=(point,))])


def test_the_first_forecasts_count_and_are_never_replaced(tmp_path: Path) -> None:
    first = frozen(10.0)
    assert keep_frozen(tmp_path / "f.json", first) == first
    assert keep_frozen(tmp_path / "f.json", frozen(11.0)) == first


def test_a_file_that_was_changed_after_it_was_frozen_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "f.json"
    keep_frozen(path, frozen())
    path.write_text(path.read_text().replace('"value": 10.0', '"value": 11.0'))
    with pytest.raises(BadDocument, match="changed after it was frozen"):
        read_forecasts(path)


def test_forecasts_of_other_points_are_not_mixed_up(tmp_path: Path) -> None:
    keep_frozen(tmp_path / "f.json", frozen())
    other = frozen()
    other = other.model_copy(update={"size": "standard"})
    with pytest.raises(BadSetting, match="forecasts of other points"):
        keep_frozen(tmp_path / "f.json", other)


def test_a_forecast_may_only_be_of_sweeps_that_are_held_out() -> None:
    recipe = load_recipe("bits-per-parameter").model_dump(exclude_unset=True)
    sweeps = [{**sweep, "held_out": False} for sweep in recipe["sweeps"]]
    with pytest.raises(ValueError, match="held_out = true"):
        PaperRecipe.model_validate({**recipe, "sweeps": sweeps})


RECIPE = {
    "name": "own",
    "paper": "own",
    "title": "t",
    "about": "a",
    "sweeps": [
        {"id": name, "label": name, "task": "triples", "arch": "folded_mlp", "held_out": held_out, "preset": "smoke",
         "set": ["task.n_keys=16", "task.n_queries=16", "task.n_values=8"], "grid": {"arch.d_mlp": widths}}
        for name, widths, held_out in (("small", [4, 5, 6], False), ("large", [12], True))
    ],
    "claims": [
        {"id": "c", "claim": "c", "pedigree": "protocol", "where": "w", "kind": "forecast",
         "sweeps": ["small"], "of": ["large"], "y": "capacity"}
    ],
}  # fmt: skip


@pytest.mark.slow
def test_forecasts_are_frozen_before_the_held_out_runs_start_and_judge_them(tmp_path, monkeypatch) -> None:
    events: list[str] = []
    run_jobs = reproducing.run_jobs

    def watched(jobs, *others):
        finished: list[FinishedJob] = []
        for each in run_jobs(jobs, *others):
            events.append(each.job.label)
            finished.append(each)
        return iter(finished)

    def freeze(found: FrozenForecasts) -> FrozenForecasts:
        events.append("frozen")
        return keep_frozen(tmp_path / "f.json", found)

    monkeypatch.setattr(reproducing, "run_jobs", watched)
    recipe = PaperRecipe.model_validate(RECIPE)

    def adjust(options: RunOptions) -> RunOptions:
        return options.replaced(rates=(0.05,), steps=200)

    arguments = [recipe], "smoke", load_registry(), Store(tmp_path), NullStudyListener()
    (data,) = reproducing.reproduce(*arguments, adjust, freeze)
    assert [event.startswith("own/large") for event in events] == [False, False, False, False, True]
    assert events[3] == "frozen"
    assert data.forecasts == read_forecasts(tmp_path / "f.json")
    (predicted,) = data.forecasts.forecasts[0].predictions
    assert predicted.n_parameters == 12 * 40
    (judged,) = judge_claims(data)
    measured = data.points("large")[0].numbers["capacity"]
    assert f"measured / predicted {measured / predicted.value:.3g}"[:24] in judged.ours
    assert json.loads(data.model_dump_json())["forecasts"]["hash"] == data.forecasts.hash


@pytest.mark.parametrize(
    ("low", "high", "value", "verdict"),
    [
        (8.0, 12.0, 11.0, Verdict.AGREES),
        (8.0, 12.0, 13.0, Verdict.DOES_NOT),
        (1.0, 100.0, 11.0, Verdict.NOT_SHOWN),  # an interval that excludes little confirms nothing
        (1.0, 100.0, 101.0, Verdict.DOES_NOT),
    ],
)
def test_a_forecast_is_judged_by_its_frozen_interval(low: float, high: float, value: float, verdict: Verdict) -> None:
    found = frozen()
    predicted = found.forecasts[0].predictions[0].model_copy(update={"low": low, "high": high})
    forecast = found.forecasts[0].model_copy(update={"predictions": (predicted,)})
    point = PointRecord(values={"arch.d_mlp": "8"}, run_id="r", numbers={"capacity": value})
    data = Reproduction(
        size="smoke",
        recipe=PaperRecipe.model_validate(RECIPE),
        sweeps=(SweepRecord(id="large", points=(point,)),),
        environment=None,
        forecasts=found.model_copy(update={"forecasts": (forecast,)}),
    )
    (judged,) = judge_claims(data)
    assert judged.verdict is verdict
