"""Reproducing: the sweeps of recipes carried out as one series, each recipe's data told as soon as it is whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from capbench.options import RunOptions
from capbench.recipe import Recipe, Size
from capbench.registry import Registry
from capbench.reproduction import Reproduction, SweepRecord, point_record
from capbench.results import Result
from capbench.series import Ended, SeriesProgress, carry_out, in_order
from capbench.store import Store
from capbench.sweep import Place, Point, arrived, lay_out

Adjust = Callable[[RunOptions], RunOptions]
"""Puts what the user typed on top of what a recipe declares."""


@dataclass(frozen=True)
class Plan:
    """A recipe and the places of each of its sweeps."""

    recipe: Recipe
    sweeps: tuple[tuple[str, tuple[Place, ...]], ...]


def reproduce(
    recipes: Sequence[Recipe],
    size: Size,
    registry: Registry,
    store: Store,
    progress: SeriesProgress,
    adjust: Adjust = lambda options: options,
) -> Iterator[Reproduction]:
    """Carries out all sweeps, and yields the data of each recipe when its last run has ended."""
    plans = [_plan(recipe, size, registry, adjust) for recipe in recipes]
    jobs = [place.job for plan in plans for _, places in plan.sweeps for place in places if place.job]
    ended = in_order(carry_out(jobs, registry, store, progress))
    for plan in plans:
        yield _reproduction(plan, size, ended, store)


def _plan(recipe: Recipe, size: Size, registry: Registry, adjust: Adjust) -> Plan:
    sweeps = [(sweep.id, sweep.at_size(size)) for sweep in recipe.sweeps]
    return Plan(
        recipe,
        tuple(
            (name, tuple(lay_out(adjust(sweep.options()), sweep.words(), registry, f"{recipe.name}/{name}")))
            for name, sweep in sweeps
        ),
    )


def _reproduction(plan: Plan, size: Size, ended: Iterator[Ended], store: Store) -> Reproduction:
    sweeps = [(name, [_with_origin(arrived(place, ended), store) for place in places]) for name, places in plan.sweeps]
    first = next((point.result for _, points in sweeps for point in points if point.result), None)
    return Reproduction(
        schema_version=1,
        size=size,
        recipe=plan.recipe,
        sweeps=tuple(SweepRecord(id=name, points=tuple(map(point_record, points))) for name, points in sweeps),
        environment=first and first.environment,
    )


def _with_origin(point: Point, store: Store) -> Point:
    """A result that was read from the store keeps the time and the machine of its training."""
    result = point.result
    if result is None or result.timing.trials_trained:
        return point
    first: Result = store.run(result.run_id) or result
    return replace(point, result=result.model_copy(update={"timing": first.timing, "environment": first.environment}))
