"""The data of a reproduction: a recipe and the results of its runs; pages and verdicts are derived from them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Literal

from pydantic import Field, JsonValue

from capbench.documents.expressions import named_readings, numbers_of
from capbench.documents.result import Capacity, Count, Environment, Record, Result, Seconds
from capbench.documents.strict_json import read_document
from capbench.measure.presets import RecipePreset
from capbench.studies.reproduce.forecast import FrozenForecasts
from capbench.studies.reproduce.recipe import PaperRecipe
from capbench.studies.sweep import JOINT, Point

PER_SEED_MODES = ("at", "overload")


class SeedRecord(Record):
    """The numbers of one seed at the best learning rate."""

    seed: Count
    numbers: dict[str, float]


class PointRecord(Record):
    """A point of a sweep: its settings, its measurements, and its cost."""

    values: dict[str, str]
    """Grid values by name, as the command line spells them."""
    reason: str = ""
    """Why there is no result."""
    run_id: str = ""
    command: str = ""
    settings: dict[str, JsonValue] = Field({}, description="fields of the task and the architecture")
    numbers: dict[str, float] = Field({}, description="all other numbers that an expression may name")
    capacity: Capacity | None = None
    learning_rate: float | None = None
    steps: Count = 0
    seeds: tuple[SeedRecord, ...] = ()
    """Empty for a search: its seeds are spread over loads, and the interval is the capacity's."""
    wall_seconds: Seconds = 0.0
    intervals: dict[str, tuple[float | None, float | None]] = Field(
        {}, description="of numbers with an interval of their own, such as readings; an open end is null"
    )
    alike: dict[str, tuple[float, float]] = Field(
        {}, description="of a field chosen for the least capacity, the range of values whose intervals overlap the best"
    )


class SweepRecord(Record):
    """The points of a sweep in the order of its grid."""

    id: str
    points: tuple[PointRecord, ...]


class Reproduction(Record):
    """All data of a recipe's section of a page."""

    schema_version: Literal[1] = 1
    size: RecipePreset
    recipe: PaperRecipe
    sweeps: tuple[SweepRecord, ...]
    environment: Environment | None
    """Of the first run; None if every run failed."""
    code: dict[str, str] = Field(
        {}, description="hashes of the code of its plugins and of its protocols, by kind and name: task rgr"
    )
    forecasts: FrozenForecasts | None = None
    """Frozen before the held-out sweeps ran; None for a recipe without forecasts."""

    def points(self, sweep: str) -> tuple[PointRecord, ...]:
        """The points of a sweep that have a result; with `least_over`, only the best value of that field."""
        found = tuple(point for each in self.sweeps if each.id == sweep for point in each.points if not point.reason)
        over = next((each.least_over for each in self.recipe.sweeps if each.id == sweep), "")
        return _minimise_over(found, over) if over else found

    def failures(self) -> list[PointRecord]:
        """The points without a result."""
        return [point for sweep in self.sweeps for point in sweep.points if point.reason]

    @property
    def is_empty(self) -> bool:
        """Whether none of its runs has a result."""
        return not any(self.points(sweep.id) for sweep in self.sweeps)

    @property
    def wall_seconds(self) -> float:
        """The total time of its runs; one that is in several sweeps counts once."""
        return sum({p.run_id: p.wall_seconds for sweep in self.sweeps for p in sweep.points if not p.reason}.values())


def _minimise_over(points: tuple[PointRecord, ...], field: str) -> tuple[PointRecord, ...]:
    """Of points that differ in one field only, the one with the least capacity."""
    groups: dict[tuple[str, ...], list[PointRecord]] = {}
    for point in points:
        others = tuple(value for name, value in point.values.items() if field not in name.split(JOINT))
        groups.setdefault(others, []).append(point)
    return tuple(_least(group, field) for group in groups.values())


def _least(points: list[PointRecord], field: str) -> PointRecord:
    """The point with the least capacity, and the range of the field over which intervals overlap with it."""
    best = min(points, key=lambda point: _ends(point)[1])
    alike = [_number(point.settings[field]) for point in points if _ends(point)[0] <= _ends(best)[2]]
    return best.model_copy(update={"alike": {field: (min(alike), max(alike))}})


def _ends(point: PointRecord) -> tuple[float, float, float]:
    """Lower end, estimate and upper end of a capacity; open ends are infinite."""
    found = point.capacity
    if found is None:
        return math.inf, math.inf, math.inf
    return (
        -math.inf if found.ci_low is None else found.ci_low,
        found.estimate,
        math.inf if found.ci_high is None else found.ci_high,
    )


def _number(value: JsonValue) -> float:
    assert isinstance(value, int | float)
    return float(value)


def read_reproduction(path: Path) -> Reproduction:
    """Reads a data file."""
    return read_document(path, Reproduction, "write it with `capbench reproduce`")


def data_text(reproduction: Reproduction) -> str:
    """The text of a data file; fields that the recipe leaves out are left out."""
    return reproduction.model_dump_json(indent=1, exclude_unset=True) + "\n"


def point_record(point: Point) -> PointRecord:
    """The record of a point."""
    result = point.result
    if result is None:
        return PointRecord(values=dict(point.values), reason=point.reason)
    settings = _settings(result)
    return PointRecord(
        values=dict(point.values),
        run_id=result.run_id,
        command=result.command,
        settings=settings,
        numbers={name: number for name, number in numbers_of(result).items() if name not in settings},
        capacity=result.capacity,
        learning_rate=result.rates.best if result.rates else None,
        steps=result.protocol.steps,
        seeds=_seeds(result),
        wall_seconds=result.timing.wall_seconds,
        intervals={
            f"{section}.{name}": (found.ci_low, found.ci_high)
            for section, named in named_readings(result).items()
            for name, found in named.items()
        },
    )


def _settings(result: Result) -> dict[str, JsonValue]:
    """Fields of the task and the architecture, except for lists and objects."""
    sections = {"task": result.task.params, "arch": result.architecture.params}
    return {
        f"{section}.{name}": value
        for section, params in sections.items()
        for name, value in params.items()
        if not isinstance(value, list | dict)
    }


def _seeds(result: Result) -> tuple[SeedRecord, ...]:
    """The measurements per seed at the given load."""
    if result.protocol.mode not in PER_SEED_MODES:
        return ()
    rate = result.rates.best if result.rates else None
    return tuple(
        SeedRecord(
            seed=trial.seed,
            numbers={
                **{f"metrics.{name}": value for name, value in trial.metrics.items()},
                **{f"data.{name}": value for name, value in trial.data.items()},
            },
        )
        for trial in result.trials
        if trial.learning_rate == rate and trial.metrics
    )
