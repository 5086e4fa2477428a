"""Shapes: the ways in which an architecture can spend a number of parameters on heads, widths and layers."""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Generic, TypeVar

from pydantic import ValidationError

from capbench.contract.architecture import Architecture
from capbench.contract.signatures import Signature
from capbench.errors import UnsupportedSignature

A = TypeVar("A", bound=Architecture)
Values = Mapping[str, Any]

TOLERANCE = 0.05
"""A shape may have this share more or fewer parameters than asked for."""
MOST_SHAPES = 12
"""Shapes that are compared at most: each costs trials."""
JOINT = "+"
"""Between the names of fields that have one value: d_qk+d_vo."""


def find_shapes(
    architecture: A,
    signature: Signature,
    n_parameters: int,
    grid: Mapping[str, Sequence[Any]],
    *,
    fields: Callable[[Values], Values] = dict,
    is_useful: Callable[[A], bool] | None = None,
) -> list[A]:
    """Up to twelve well-spread shapes within 5 % of a parameter count, the nearest to the architecture's own first.

    `grid` has the values of each field; "d_qk+d_vo" is two fields with one value. The first range in it is solved for
    the count, and every other range gives about two values per octave. Fields that were set when the architecture was
    made keep their values. `fields` computes fields from a point of the grid where they differ from it; `is_useful`
    refuses shapes that waste parameters, such as d_qk above the width of what a head reads.
    """
    import torch

    kept = {name: getattr(architecture, name) for name in architecture.model_fields_set}
    family = _Family(architecture, signature, n_parameters, kept, fields, is_useful)
    with torch.random.fork_rng(devices=[]):  # building draws initial weights
        found = list(family.solve(_without(grid, kept)))
    return _well_spread(architecture, found)


def parameter_count(architecture: Architecture, signature: Signature) -> int:
    """Number of trained parameters, counted once: the sizes of a suite ask for many of the same shapes."""
    try:
        hash((architecture, signature))
    except TypeError:  # a field is a list, say
        return _count_built(architecture, signature)
    return _known_count(architecture, signature)


def _count_built(architecture: Architecture, signature: Signature) -> int:
    return sum(p.numel() for p in architecture.build(signature).parameters() if p.requires_grad)


_known_count = lru_cache(maxsize=1 << 16)(_count_built)


def is_near(count: int, n_parameters: int) -> bool:
    """Whether a parameter count is within 5 % of the one asked for."""
    return abs(count - n_parameters) <= TOLERANCE * n_parameters


@dataclass(frozen=True)
class _Family(Generic[A]):
    """The architectures that a grid describes, for one signature and one parameter count."""

    architecture: A
    signature: Signature
    n_parameters: int
    kept: Values
    fields: Callable[[Values], Values]
    is_useful: Callable[[A], bool] | None
    counts: dict[object, int | None] = field(default_factory=dict)

    def solve(self, grid: Mapping[str, Sequence[Any]]) -> Iterator[A]:
        """At each point of the coarse fields, the value of the free one with the nearest count, if that is near."""
        free = next((name for name, values in grid.items() if isinstance(values, range)), "")
        coarse = {name: _ladder(values) for name, values in grid.items() if name != free}
        for values in itertools.product(*coarse.values()):
            point = dict(zip(coarse, values, strict=True))
            ends = [{**point, free: value} for value in (grid[free][0], grid[free][-1])] if free else [point]
            if not any(map(self._is_useful, ends)):
                continue
            if free:
                point[free] = self._solve_for(free, point, grid[free])
            if is_near(self._count(point) or 0, self.n_parameters) and self._is_useful(point):
                yield self._shape(point)

    def _is_useful(self, point: Values) -> bool:
        """Whether the architecture allows a point of the grid and does not waste parameters at it."""
        try:
            return self.is_useful is None or self.is_useful(self._shape(point))
        except (ValidationError, UnsupportedSignature):
            return False

    def _solve_for(self, free: str, point: Values, values: Sequence[int]) -> int:
        """The value whose count is nearest, if counts are quadratic in it: widths and heads have such counts."""
        first = self._count({**point, free: values[0]})
        if first is None or first >= self.n_parameters or len(values) < 3:
            return values[0]
        second, third = (self._count({**point, free: value}) or first for value in values[1:3])
        bend = (third - 2 * second + first) / 2

        def distance(index: int) -> float:
            return first + index * (second - first) + index * (index - 1) * bend - self.n_parameters

        above = bisect_left(range(len(values)), True, key=lambda index: distance(index) >= 0)
        around = [index for index in (above - 1, above) if index < len(values)]
        return values[min(around, key=lambda index: abs(distance(index)))]

    def _count(self, point: Values) -> int | None:
        """Parameters at a point of the grid, built once for all values that are no sizes; None where not allowed."""
        sizes = tuple((name, value) for name, value in sorted(point.items()) if not isinstance(value, float))
        if sizes not in self.counts:
            try:
                self.counts[sizes] = parameter_count(self._shape(point), self.signature)
            except (ValidationError, UnsupportedSignature):
                self.counts[sizes] = None
        return self.counts[sizes]

    def _shape(self, point: Values) -> A:
        """The architecture at a point of the grid."""
        single = {name: value for names, value in point.items() for name in names.split(JOINT)}
        return type(self.architecture)(**{**dict(self.architecture), **self.fields(single), **self.kept})


def _without(grid: Mapping[str, Sequence[Any]], kept: Values) -> dict[str, Sequence[Any]]:
    """The grid with a single value for each entry whose fields all keep theirs."""
    are_kept = {names: all(name in kept for name in names.split(JOINT)) for names in grid}
    return {names: (kept[names.split(JOINT)[0]],) if are_kept[names] else values for names, values in grid.items()}


def _ladder(values: Sequence[Any]) -> Sequence[Any]:
    """About two values per octave of a range, and its last one: 1, 2, 3, 4, 6, 8, 12, …; other values as they are."""
    if not isinstance(values, range):
        return values
    rungs = (step << octave for octave in range(values.stop.bit_length()) for step in (1, 3))
    return sorted({value for value in rungs if value in values} | {values[-1]})


def _well_spread(architecture: A, shapes: Iterable[A]) -> list[A]:
    """The shape nearest to the architecture's own, then again and again the one farthest from all before it."""
    different = list({repr(shape): shape for shape in shapes}.values())
    own, points = _octaves(architecture), [_octaves(shape) for shape in different]
    # The nearest is so by its sizes; among equals, the first in the order of the grid.
    sizes = [name for name in own if not isinstance(getattr(architecture, name), float)]
    distances = [sum(abs(point[name] - own[name]) for name in sizes) for point in points]
    chosen: list[int] = []
    while len(chosen) < min(MOST_SHAPES, len(different)):
        chosen.append(distances.index(max(distances) if chosen else min(distances)))
        apart = [sum(abs(point[name] - points[chosen[-1]][name]) for name in own) for point in points]
        distances = [min(pair) for pair in zip(distances, apart, strict=True)] if len(chosen) > 1 else apart
    return [different[index] for index in chosen]


def _octaves(architecture: Architecture) -> dict[str, float]:
    """The logarithms of the fields that are positive numbers."""
    return {name: math.log2(value) for name, value in architecture if isinstance(value, int | float) and value > 0}
