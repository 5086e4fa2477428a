"""A sweep as a person reads it: a row a point."""

from __future__ import annotations

from collections.abc import Sequence

from capbench.report.result_text import brief_capacity
from capbench.report.text import number, plain, table
from capbench.sweep import JOINT, Grid, Point, results_of

ENOUGH_TO_FIT = 4


def sweep_text(points: Sequence[Point], grid: Grid) -> str:
    """Capacity at every point, the reasons of those without, and how to go on."""
    rows = [(*(word for _, word in point.values), *_cells(point)) for point in points]
    parts = [
        table(rows, (*grid, _heading(points), "parameters", "bits a parameter", "run")),
        "\n".join(plain(f"failed: {_label(point)}: {point.reason}") for point in points if point.result is None),
        _next(points, grid),
    ]
    return "\n\n".join(part for part in parts if part)


def _heading(points: Sequence[Point]) -> str:
    """What the runs measured."""
    kinds = {result.capacity.kind: result for result in results_of(points)}
    if not kinds:
        return "capacity"
    kind, result = next(iter(kinds.items()))
    names = {"least_budget": f"least {result.capacity.parameter}", "success_rate": "held", "overload": "facts held"}
    return names.get(kind, "capacity")


def _cells(point: Point) -> tuple[str, str, str, str]:
    result = point.result
    if result is None:
        return "failed", "–", "–", "–"
    return brief_capacity(result), number(result.n_parameters), f"{result.bits_per_parameter:.3g}", result.run_id


def _label(point: Point) -> str:
    return " ".join(f"{name}={word}" for name, word in point.values)


def _next(points: Sequence[Point], grid: Grid) -> str:
    """The fit of this sweep, where it has points enough."""
    runs = ",".join(dict.fromkeys(result.run_id for result in results_of(points)))
    numeric = [name for name, words in grid.items() if len(words) >= ENOUGH_TO_FIT and _are_numbers(words)]
    if not runs or len(numeric) != 1 or len(grid) > 1:
        return ""
    first, *_ = numeric[0].split(JOINT)
    x = {"params": "n_parameters"}.get(first, first)
    return f"next:\n  capbench fit --runs {runs} --x {x} --y capacity   # which law it follows"


def _are_numbers(words: Sequence[str]) -> bool:
    return all(word.rstrip("kKmM").replace(".", "", 1).isdigit() for word in words)
