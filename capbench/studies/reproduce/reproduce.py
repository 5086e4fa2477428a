"""Running recipes: all their sweeps as one study, each recipe's data yielded as soon as it is complete."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from capbench.measure.options import RunOptions
from capbench.measure.presets import RecipePreset
from capbench.registry.registry import Registry
from capbench.store.store import Store
from capbench.studies.jobs import FinishedJob, Job, StudyListener, in_order, run_jobs
from capbench.studies.records import with_origin
from capbench.studies.reproduce.claims import ForecastClaim
from capbench.studies.reproduce.data import Reproduction, SweepRecord, point_record
from capbench.studies.reproduce.fitting import is_estimated
from capbench.studies.reproduce.forecast import (
    Forecast,
    FrozenForecasts,
    PowerLaw,
    Predicted,
    fit_power,
    freeze_forecasts,
)
from capbench.studies.reproduce.recipe import FOLDER, PaperRecipe
from capbench.studies.reproduce.staleness import code_of
from capbench.studies.reproduce.values import evaluate_at
from capbench.studies.sweep import PlannedPoint, Point, SweepFile, finish_point, plan_points

Freeze = Callable[[FrozenForecasts], FrozenForecasts]
"""Keeps forecasts before the runs that they predict start; returns those that count."""
Adjust = Callable[[RunOptions], RunOptions]
"""Replaces options of a recipe by those that the user gave."""


PlannedSweep = tuple[str, tuple[PlannedPoint, ...]]
"""The id of a sweep and its points."""


@dataclass(frozen=True)
class RecipePlan:
    """A recipe and the planned points of each of its sweeps."""

    recipe: PaperRecipe
    sweeps: tuple[PlannedSweep, ...]

    @property
    def held_out(self) -> tuple[PlannedSweep, ...]:
        """The sweeps that forecasts are about."""
        names = {sweep.id for sweep in self.recipe.sweeps if sweep.held_out}
        return tuple(sweep for sweep in self.sweeps if sweep[0] in names)

    @property
    def fitted(self) -> tuple[PlannedSweep, ...]:
        """All other sweeps."""
        names = {sweep.id for sweep in self.recipe.sweeps if sweep.held_out}
        return tuple(sweep for sweep in self.sweeps if sweep[0] not in names)


def reproduce(
    recipes: Sequence[PaperRecipe],
    size: RecipePreset,
    registry: Registry,
    store: Store,
    listener: StudyListener,
    adjust: Adjust = lambda options: options,
    freeze: Freeze = lambda frozen: frozen,
) -> Iterator[Reproduction]:
    """Runs all sweeps, and yields the data of each recipe when its last run has finished.

    Sweeps that are held out run after all others, and after the forecasts of their recipe have been given to `freeze`.
    """
    plans = [_plan(recipe, size, registry, adjust) for recipe in recipes]
    finished = in_order(run_jobs(_jobs(plans, False), registry, store, listener))
    parts = []
    for plan in plans:
        known = _reproduction(plan, size, _finish(plan.fitted, finished, store))
        if plan.held_out:
            parts.append((plan, known, freeze(freeze_forecasts(plan.recipe.name, size, _forecasts(plan, known)))))
        else:
            yield known
    finished = in_order(run_jobs(_jobs(plans, True), registry, store, listener))
    for plan, known, frozen in parts:
        rest = _reproduction(plan, size, _finish(plan.held_out, finished, store))
        by_id = {sweep.id: sweep for sweep in (*known.sweeps, *rest.sweeps)}
        sweeps = tuple(by_id[sweep.id] for sweep in plan.recipe.sweeps)
        environment = known.environment or rest.environment
        yield known.model_copy(update={"sweeps": sweeps, "environment": environment, "forecasts": frozen})


def _jobs(plans: Sequence[RecipePlan], is_held_out: bool) -> list[Job]:
    """The jobs of the sweeps that are held out, or of all others."""
    chosen = [sweep for plan in plans for sweep in (plan.held_out if is_held_out else plan.fitted)]
    return [point.job for _, points in chosen for point in points if point.job]


def _forecasts(plan: RecipePlan, known: Reproduction) -> list[Forecast]:
    """What the forecast claims of a recipe predict of its held-out points."""
    claims = [claim for claim in plan.recipe.claims if isinstance(claim, ForecastClaim)]
    return [found for claim in claims if (found := _forecast(claim, plan, known)) is not None]


def _forecast(claim: ForecastClaim, plan: RecipePlan, known: Reproduction) -> Forecast | None:
    """The law of one claim and its predictions; None where too few points have a value."""
    points = [point for sweep in claim.sweeps for point in known.points(sweep) if is_estimated(point, claim.y)]
    law = fit_power([(point.numbers["n_parameters"], evaluate_at(point, claim.y).value) for point in points])
    if law is None:
        return None
    planned = dict(plan.held_out)
    jobs = [(sweep, point.point.values, point.job) for sweep in claim.of for point in planned[sweep] if point.job]
    predictions = [_predicted(law, sweep, values, job.request.n_parameters) for sweep, values, job in jobs]
    return Forecast(claim=claim.id, y=claim.y, law=law, predictions=tuple(predictions))


def _predicted(law: PowerLaw, sweep: str, values: tuple[tuple[str, str], ...], n_parameters: int) -> Predicted:
    value, low, high = law.predict(n_parameters)
    return Predicted(sweep=sweep, values=dict(values), n_parameters=n_parameters, value=value, low=low, high=high)


def _plan(recipe: PaperRecipe, size: RecipePreset, registry: Registry, adjust: Adjust) -> RecipePlan:
    sweeps = [(sweep.id, sweep.at_size(size)) for sweep in recipe.sweeps]
    return RecipePlan(
        recipe,
        tuple(
            (name, tuple(plan_points(_options(sweep, adjust), sweep.checked_grid(), registry, f"{recipe.name}/{name}")))
            for name, sweep in sweeps
        ),
    )


def _options(sweep: SweepFile, adjust: Adjust) -> RunOptions:
    """The options of a sweep; settings that are read from a file find those beside the built-in recipes."""
    options = sweep.options()
    return adjust(options.replaced(set=tuple(map(_with_file, options.set))))


def _with_file(setting: str) -> str:
    path, at, name = setting.partition("=@")
    packaged = FOLDER / name
    return f"{path}=@{packaged}" if at and not Path(name).exists() and packaged.is_file() else setting


def _finish(
    planned: Sequence[PlannedSweep], finished: Iterator[FinishedJob], store: Store
) -> list[tuple[str, list[Point]]]:
    """The points of sweeps with their results."""
    return [(name, [_keep_origin(finish_point(each, finished), store) for each in points]) for name, points in planned]


def _reproduction(plan: RecipePlan, size: RecipePreset, sweeps: Sequence[tuple[str, list[Point]]]) -> Reproduction:
    results = [point.result for _, points in sweeps for point in points if point.result]
    return Reproduction(
        schema_version=1,
        size=size,
        recipe=plan.recipe,
        sweeps=tuple(SweepRecord(id=name, points=tuple(map(point_record, points))) for name, points in sweeps),
        environment=results[0].environment if results else None,
        code=code_of(plan.recipe, size, results),
    )


def _keep_origin(point: Point, store: Store) -> Point:
    """The point; a result that was read from the store keeps the time and the machine of its training."""
    if point.result is None:
        return point
    return replace(point, result=with_origin(point.result, store.run(point.result.run_id)))
