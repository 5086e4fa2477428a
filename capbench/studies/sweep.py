"""Sweeps: one request at every point of a grid of settings."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from pydantic import Field, JsonValue

from capbench.documents.result import Result
from capbench.documents.toml_file import TomlModel, read_toml
from capbench.errors import BadSetting, BadValue, UnknownName, UserError
from capbench.measure.matching import parse_count
from capbench.measure.options import MeasureOptions, RunOptions
from capbench.measure.request import build_request
from capbench.registry.registry import Registry
from capbench.registry.settings import SECTIONS
from capbench.store.store import Store
from capbench.studies.jobs import FinishedJob, Job, StudyListener, in_order, run_jobs

MOST_POINTS = 10_000

ARCH = "arch"
"""The axis of a grid that has several architectures."""
JOINT = "+"
"""Between the names of fields that move together: arch.d_qk+arch.d_vo."""

Grid = Mapping[str, tuple[str, ...]]
"""Values by name, both as words of the command line."""


Values = Annotated[tuple[JsonValue, ...], Field(strict=False)]


class SweepFile(MeasureOptions, TomlModel):
    """A sweep as a TOML file declares it: options of `capbench run`, and the grid."""

    grid: dict[str, Values] = Field(
        min_length=1,
        description="values by field: arch.n_heads; fields that move together: arch.d_qk+arch.d_vo, by one value for "
        "all or a list with one for each",
    )

    def options(self) -> RunOptions:
        """The options that all its points share."""
        return RunOptions(**self.model_dump(include=set(MeasureOptions.model_fields)))

    def checked_grid(self) -> Grid:
        """Its grid with the values as the command line spells them."""
        return check_grid(spelled_grid(self.grid))


def spelled_grid(grid: Mapping[str, Sequence[JsonValue]]) -> Grid:
    """Values by field as the command line spells them."""
    return {name: tuple(spelled(value) for value in values) for name, values in grid.items()}


@dataclass(frozen=True)
class Point:
    """A point of the grid: its values as the command line spells them, and its result or why there is none."""

    values: tuple[tuple[str, str], ...]
    result: Result | None = None
    reason: str = ""


def read_sweep(path: Path) -> tuple[RunOptions, Grid]:
    """The options and the grid that a file declares."""
    declared = read_toml(str(path), path, SweepFile)
    return declared.options(), declared.checked_grid()


def parse_grid(words: Iterable[str]) -> Grid:
    """The values of --grid by name: arch.n_heads=1,2,4,8; values that contain commas are given as a JSON list."""
    grid: dict[str, tuple[str, ...]] = {}
    for word in words:
        name, _, text = word.partition("=")
        if name in grid:
            raise BadSetting(f"--grid takes each name once, got {name!r} twice")
        grid[name] = _listed(text)
    return check_grid(grid)


def with_architectures(options: RunOptions, grid: Grid) -> tuple[RunOptions, Grid]:
    """Several architectures, mha,mine, as the first axis of the grid; the others are compared with the first."""
    names = tuple(name.strip() for name in options.arch.split(",") if name.strip())
    if len(names) < 2:
        return options, grid
    return options.replaced(arch=names[0]), check_grid({ARCH: names, **grid})


def check_grid(grid: Grid) -> Grid:
    """Refuses names that are no settings, empty grids and grids beyond reason."""
    fields = [field for name in grid for field in name.split(JOINT)]
    for field in fields:
        if not _is_setting(field):
            raise BadSetting(
                f"--grid takes task.FIELD=…, arch.FIELD=…, solver.FIELD=…, at=… or params=…, or several joined with "
                f"{JOINT!r}, got {field!r}"
            )
        if fields.count(field) > 1:
            raise BadSetting(f"--grid takes each field once, got {field!r} {fields.count(field)} times")
    for name, values in grid.items():
        if not values or len(set(values)) < len(values):
            raise BadSetting(f"--grid {name} takes one or more different values, got {', '.join(values) or 'none'}")
        for field, value in (pair for word in values for pair in values_apart(name, word)):
            _check_value(field, value)
    size = n_points(grid) if grid else 0
    if not 1 <= size <= MOST_POINTS:
        raise BadSetting(f"a sweep has 1 to {MOST_POINTS:,} points, got {size:,}; use --grid")
    return grid


def n_points(grid: Mapping[str, Sequence[object]]) -> int:
    """Number of points of a grid."""
    return math.prod(map(len, grid.values()))


def run_sweep(
    options: RunOptions, grid: Grid, registry: Registry, store: Store, listener: StudyListener
) -> list[Point]:
    """Runs every point of the grid; one that cannot be set up or run has the reason instead of a result."""
    return run_points(plan_sweep(options, grid, registry), registry, store, listener)


def run_points(
    planned: Sequence[PlannedPoint], registry: Registry, store: Store, listener: StudyListener
) -> list[Point]:
    """Runs the points of a plan."""
    finished = in_order(run_jobs([each.job for each in planned if each.job], registry, store, listener))
    return [finish_point(each, finished) for each in planned]


def plan_sweep(options: RunOptions, grid: Grid, registry: Registry) -> list[PlannedPoint]:
    """The points of a grid; raises BadSetting where none of them can be set up."""
    planned = plan_points(options, grid, registry)
    if not any(each.job for each in planned):
        raise BadSetting(f"none of the {len(planned)} points can be set up; the first: {planned[0].point.reason}")
    return planned


@dataclass(frozen=True)
class PlannedPoint:
    """A point before it is run, and its job if one could be set up."""

    point: Point
    job: Job | None


def plan_points(options: RunOptions, grid: Grid, registry: Registry, name: str = "") -> list[PlannedPoint]:
    """The points of a grid in order, each with its job; `name` precedes the label of every job."""
    points = [Point(tuple(zip(grid, values, strict=True))) for values in itertools.product(*grid.values())]
    return [_plan_point(options, point, registry, name) for point in points]


def finish_point(planned: PlannedPoint, finished: Iterator[FinishedJob]) -> Point:
    """The point with its result, taken from the next finished job if it has one."""
    if planned.job is None:
        return planned.point
    job = next(finished)
    return replace(planned.point, result=job.result, reason=job.reason)


def results_of(points: Sequence[Point]) -> list[Result]:
    """The results that there are, in the order of the grid."""
    return [point.result for point in points if point.result is not None]


def _plan_point(options: RunOptions, point: Point, registry: Registry, name: str) -> PlannedPoint:
    """A point with its job, or with why there is none: some values of a grid may not go together.

    A name that does not exist and a value that its field never takes are mistakes in the grid, and raised.
    """
    try:
        request = build_request(_options_at(options, point), registry)
    except (UnknownName, BadValue):
        raise
    except UserError as error:
        return PlannedPoint(replace(point, reason=str(error)), None)
    label = " ".join([*([name] if name else []), *(f"{field}={value}" for field, value in point.values)])
    return PlannedPoint(point, Job(label, request))


def _is_setting(field: str) -> bool:
    section, _, name = field.partition(".")
    return field in (ARCH, "at", "params") or (section in SECTIONS and bool(name))


def _options_at(options: RunOptions, point: Point) -> RunOptions:
    for name, value in ((field, word) for names, joint in point.values for field, word in values_apart(names, joint)):
        if name == "at":
            options = options.replaced(at=_whole(value))
        elif name == "params":
            options = options.replaced(params=value)
        elif name == ARCH:
            options = options.replaced(arch=value)
        else:
            options = options.replaced(set=(*options.set, f"{name}={value}"))
    return options


def values_apart(names: str, word: str) -> list[tuple[str, str]]:
    """Each of the fields that move together with its word: all the same, or one of a list."""
    fields = names.split(JOINT)
    if len(fields) == 1 or not word.startswith("["):
        return [(field, word) for field in fields]
    values = _listed(word)
    if len(values) != len(fields):
        raise BadSetting(f"{names} takes one value or a list of {len(fields)}, got {word}")
    return list(zip(fields, values, strict=True))


def _listed(text: str) -> tuple[str, ...]:
    if text.startswith("["):
        try:
            return tuple(spelled(value) for value in json.loads(text))
        except ValueError as error:
            raise BadSetting(f"--grid takes values with commas between them, or a JSON list, got {text!r}") from error
    return tuple(word.strip() for word in text.split(",") if word.strip())


def spelled(value: JsonValue) -> str:
    """A value as the command line spells it."""
    return value if isinstance(value, str) else json.dumps(value)


def _check_value(field: str, value: str) -> None:
    """Raises BadSetting for loads and counts that are no numbers."""
    if field == "at":
        _whole(value)
    elif field == "params":
        parse_count(value)


def _whole(word: str) -> int:
    if not word.isdecimal() or int(word) < 1:
        raise BadSetting(f"at takes whole numbers from 1, got {word!r}")
    return int(word)
