"""Sweeps: one request at every point of a grid of settings."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from pydantic import Field, JsonValue

from capbench.declared import Declared, read_declared
from capbench.errors import BadSetting, UserError
from capbench.options import RunOptions, build_request
from capbench.registry import Registry
from capbench.request import Request, check_pair
from capbench.results import Result
from capbench.series import Job, SeriesProgress, carry_out
from capbench.settings import SECTIONS
from capbench.store import Store

MOST_POINTS = 10_000

Grid = Mapping[str, tuple[str, ...]]
"""Values by name, both as words of the command line."""


Values = Annotated[tuple[JsonValue, ...], Field(strict=False)]


class SweepFile(Declared):
    """A sweep as a TOML file declares it: words of `capbench run`, and the grid."""

    task: str
    arch: str
    grid: dict[str, Values] = Field(min_length=1, description="values by field: arch.n_heads")
    set: tuple[str, ...] = Field((), strict=False, description="fields as --set takes them")
    preset: str = "standard"
    params: str | None = None
    at: int | None = Field(None, ge=1)
    minimize: str | None = None
    overload: bool = False
    protocol: str = "capbench"
    seeds: int | None = Field(None, ge=1)
    budget: int | None = Field(None, ge=1)
    ci_width: float = Field(0.05, ge=0.001, le=10)
    rates: tuple[float, ...] = Field((), strict=False)
    steps: int | None = Field(None, ge=1)
    solver: str = "adam"


@dataclass(frozen=True)
class Point:
    """A place of the grid: its values as words, and what came of it."""

    values: tuple[tuple[str, str], ...]
    result: Result | None = None
    reason: str = ""


def read_sweep(path: Path) -> tuple[RunOptions, Grid]:
    """The options and the grid that a file declares."""
    declared = read_declared(str(path), path, SweepFile)
    grid = {name: tuple(_word(value) for value in values) for name, values in declared.grid.items()}
    values = declared.model_dump(exclude={"grid", "set"})
    return RunOptions(**values, sets=declared.set), check_grid(grid)


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
    for name, values in grid.items():
        section, _, field = name.partition(".")
        if name not in ("at", "params") and not (section in SECTIONS and field):
            raise BadSetting(f"--grid takes task.FIELD=…, arch.FIELD=…, solver.FIELD=…, at=… or params=…, got {name!r}")
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
    points = [Point(tuple(zip(grid, values, strict=True))) for values in itertools.product(*grid.values())]
    requests = [_request(options, point, registry) for point in points]
    jobs = {i: _job(points[i], request) for i, request in enumerate(requests) if isinstance(request, Request)}
    indices = list(jobs)
    ended = {indices[each.index]: each for each in carry_out(list(jobs.values()), registry, store, progress)}
    return [
        replace(point, result=ended[i].result, reason=ended[i].reason)
        if i in ended
        else replace(point, reason=str(why))
        for i, (point, why) in enumerate(zip(points, requests, strict=True))
    ]


def results_of(points: Sequence[Point]) -> list[Result]:
    """The results that there are, in the order of the grid."""
    return [point.result for point in points if point.result is not None]


def _request(options: RunOptions, point: Point, registry: Registry) -> Request | UserError:
    """The request of a point, or why there is none: a grid may hold values that do not go together."""
    try:
        request = build_request(_at(options, point), registry)
        request.check()
    except UserError as error:
        return error
    return request


def _at(options: RunOptions, point: Point) -> RunOptions:
    for name, word in point.values:
        if name == "at":
            options = replace(options, at=_whole(word))
        elif name == "params":
            options = replace(options, params=word)
        else:
            options = replace(options, sets=(*options.sets, f"{name}={word}"))
    return options


def _job(point: Point, request: Request) -> Job:
    label = " ".join(f"{name}={word}" for name, word in point.values)
    return Job(label, request, check_pair(request.task.plugin, request.architecture.plugin))


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
