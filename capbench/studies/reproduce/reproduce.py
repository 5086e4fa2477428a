"""Running recipes: all their sweeps as one study, each recipe's data yielded as soon as it is complete."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from capbench.measure.options import RunOptions
from capbench.measure.presets import RecipePreset
from capbench.registry.registry import Registry
from capbench.store.store import Store
from capbench.studies.jobs import FinishedJob, StudyListener, in_order, run_jobs
from capbench.studies.records import with_origin
from capbench.studies.reproduce.data import Reproduction, SweepRecord, point_record
from capbench.studies.reproduce.recipe import FOLDER, PaperRecipe
from capbench.studies.reproduce.staleness import code_of
from capbench.studies.sweep import PlannedPoint, Point, SweepFile, finish_point, plan_points

Adjust = Callable[[RunOptions], RunOptions]
"""Replaces options of a recipe by those that the user gave."""


@dataclass(frozen=True)
class RecipePlan:
    """A recipe and the planned points of each of its sweeps."""

    recipe: PaperRecipe
    sweeps: tuple[tuple[str, tuple[PlannedPoint, ...]], ...]


def reproduce(
    recipes: Sequence[PaperRecipe],
    size: RecipePreset,
    registry: Registry,
    store: Store,
    listener: StudyListener,
    adjust: Adjust = lambda options: options,
) -> Iterator[Reproduction]:
    """Runs all sweeps, and yields the data of each recipe when its last run has finished."""
    plans = [_plan(recipe, size, registry, adjust) for recipe in recipes]
    jobs = [point.job for plan in plans for _, points in plan.sweeps for point in points if point.job]
    finished = in_order(run_jobs(jobs, registry, store, listener))
    for plan in plans:
        yield _reproduction(plan, size, finished, store)


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


def _reproduction(plan: RecipePlan, size: RecipePreset, finished: Iterator[FinishedJob], store: Store) -> Reproduction:
    sweeps = [
        (name, [_keep_origin(finish_point(point, finished), store) for point in points]) for name, points in plan.sweeps
    ]
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
