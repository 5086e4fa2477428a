"""Sweeps: one request at every point of a grid of settings."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from pydantic import Field, JsonValue

from capbench.declared import Declared, read_declared
from capbench.errors import BadSetting, UserError
from capbench.options import RunOptions, build_request
from capbench.registry import Registry
from capbench.request import check_pair
from capbench.results import Result
from capbench.series import Ended, Job, SeriesProgress, carry_out, in_order
from capbench.settings import SECTIONS
from capbench.store import Store

MOST_POINTS = 10_000

JOINT = "+"
"""Between the names of fields that move together: arch.d_qk+arch.d_vo."""

Grid = Mapping[str, tuple[str, ...]]
"""Values by name, both as words of the command line."""


Values = Annotated[tuple[JsonValue, ...], Field(strict=False)]


class SweepFile(Declared):
    """A sweep as a TOML file declares it: words of `capbench run`, and the grid."""

    task: str
    arch: str
    grid: dict[str, Values] = Field(
        min_length=1,
        description="values by field: arch.n_heads; fields that move together: arch.d_qk+arch.d_vo, by one value for "
        "all or a list with one for each",
    )
    set: tuple[str, ...] = Field((), strict=False, description="fields as --set takes them")
    preset: str = "standard"
    params: str | None = None
    match: str | None = None
    at: int | None = Field(None, ge=1)
    minimize: str | None = None
    overload: bool = False
    analyse: bool = False
    protocol: str = "capbench"
    seeds: int | None = Field(None, ge=1)
    budget: int | None = Field(None, ge=1)
    ci_width: float = Field(0.05, ge=0.001, le=10)
    rates: tuple[float, ...] = Field((), strict=False)
    steps: int | None = Field(None, ge=1)
    solver: str = "adam"

    def options(self) -> RunOptions:
        """The words of a run that all its points share."""
        shared = set(SweepFile.model_fields) - {"grid", "set"}
        return RunOptions(**self.model_dump(include=shared), sets=self.set)

    def words(self) -> Grid:
        """Its grid as words of the command line, checked."""
        return check_grid({name: tuple(_word(value) for value in values) for name, values in self.grid.items()})


@dataclass(frozen=True)
class Point:
    """A place of the grid: its values as words, and what came of it."""

    values: tuple[tuple[str, str], ...]
    result: Result | None = None
    reason: str = ""


def read_sweep(path: Path) -> tuple[RunOptions, Grid]:
    """The options and the grid that a file declares."""
    declared = read_declared(str(path), path, SweepFile)
    return declared.options(), declared.words()


def parse_grid(words: Iterable[str]) -> Grid:
    """`arch.n_heads=1,2,4,8` words as values by name; a value with commas of its own is given as a JSON list."""
    grid: dict[str, tuple[str, ...]] = {}
    for word in words:
        name, _, text = word.partition("=")
        if name in grid:
            raise BadSetting(f"--grid takes each name once, got {name!r} twice")
        grid[name] = _listed(text)
    return check_grid(grid)


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
    n_points = 1
    for values in grid.values():
        n_points *= len(values)
    if not grid or n_points > MOST_POINTS:
        raise BadSetting(f"a sweep has 1 to {MOST_POINTS:,} points, got {n_points if grid else 0:,}; use --grid")
    return grid


def run_sweep(
    options: RunOptions, grid: Grid, registry: Registry, store: Store, progress: SeriesProgress
) -> list[Point]:
    """Every point of the grid in order; one that cannot be set up or run stays, with the reason."""
    places = lay_out(options, grid, registry)
    ended = in_order(carry_out([place.job for place in places if place.job], registry, store, progress))
    return [arrived(place, ended) for place in places]


@dataclass(frozen=True)
class Place:
    """A point before it is run, and its job if one could be set up."""

    point: Point
    job: Job | None


def lay_out(options: RunOptions, grid: Grid, registry: Registry, name: str = "") -> list[Place]:
    """The places of a grid in order; `name` stands before the label of every job."""
    points = [Point(tuple(zip(grid, values, strict=True))) for values in itertools.product(*grid.values())]
    return [_place(options, point, registry, name) for point in points]


def arrived(place: Place, ended: Iterator[Ended]) -> Point:
    """The point of a place with what came of it: the next of the ended jobs, if it has one."""
    if place.job is None:
        return place.point
    last = next(ended)
    return replace(place.point, result=last.result, reason=last.reason)


def results_of(points: Sequence[Point]) -> list[Result]:
    """The results that there are, in the order of the grid."""
    return [point.result for point in points if point.result is not None]


def _place(options: RunOptions, point: Point, registry: Registry, name: str) -> Place:
    """A point with its job, or with why there is none: a grid may hold values that do not go together."""
    try:
        request = build_request(_at(options, point), registry)
        request.check()
    except UserError as error:
        return Place(replace(point, reason=str(error)), None)
    label = " ".join([*([name] if name else []), *(f"{field}={word}" for field, word in point.values)])
    return Place(point, Job(label, request, check_pair(request.task.plugin, request.architecture.plugin)))


def _is_setting(field: str) -> bool:
    section, _, name = field.partition(".")
    return field in ("at", "params") or (section in SECTIONS and bool(name))


def _at(options: RunOptions, point: Point) -> RunOptions:
    for name, word in ((field, word) for names, joint in point.values for field, word in _apart(names, joint)):
        if name == "at":
            options = replace(options, at=_whole(word))
        elif name == "params":
            options = replace(options, params=word)
        else:
            options = replace(options, sets=(*options.sets, f"{name}={word}"))
    return options


def _apart(names: str, word: str) -> list[tuple[str, str]]:
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
            return tuple(_word(value) for value in json.loads(text))
        except ValueError as error:
            raise BadSetting(f"--grid takes values with commas between them, or a JSON list, got {text!r}") from error
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _word(value: JsonValue) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _whole(word: str) -> int:
    if not word.isdecimal() or int(word) < 1:
        raise BadSetting(f"at takes whole numbers from 1, got {word!r}")
    return int(word)
