"""The data of a reproduction: which points of a sweep count, and their total time."""

from __future__ import annotations

from capbench.documents.result import Capacity
from capbench.studies.reproduce.data import PointRecord, Reproduction, SweepRecord
from capbench.studies.reproduce.recipe import PaperRecipe
from capbench.studies.reproduce.values import evaluate_at


def searched(items: int, heads: int, estimate: float, low: float | None, high: float | None) -> PointRecord:
    status = "at_least" if high is None else "estimated"
    return PointRecord(
        values={"task.n_items": str(items), "arch.n_heads+arch.d_qk_total": str(heads)},
        run_id=f"run{items}-{heads}",
        settings={"task.n_items": items, "arch.n_heads": heads, "arch.d_qk_total": heads},
        numbers={"capacity": estimate},
        capacity=Capacity(
            kind="least_budget", estimate=estimate, ci_low=low, ci_high=high, confidence=0.95, status=status
        ),
        wall_seconds=2.0,
    )


POINTS = (
    searched(32, 1, 64.0, 50.0, None),
    searched(32, 2, 10.0, 9.0, 11.0),
    searched(32, 4, 10.5, 9.5, 12.0),
    searched(32, 8, 16.0, 14.0, 18.0),
    searched(64, 1, 64.0, 50.0, None),
    searched(64, 2, 40.0, 36.0, 44.0),
    searched(64, 4, 24.0, 22.0, 26.0),
    searched(64, 8, 32.0, 28.0, 36.0),
)


def reproduction() -> Reproduction:
    sweep = {
        "label": "a sweep",
        "task": "t",
        "arch": "a",
        "grid": {"task.n_items": [32, 64], "arch.n_heads+arch.d_qk_total": [1, 2, 4, 8]},
    }
    recipe = {"name": "r", "paper": "p", "title": "t", "about": ""}
    sweeps = [{"id": "every", **sweep}, {"id": "best", "least_over": "arch.n_heads", **sweep}]
    return Reproduction(
        size="standard",
        recipe=PaperRecipe.model_validate({**recipe, "sweeps": sweeps}),
        sweeps=(SweepRecord(id="every", points=POINTS), SweepRecord(id="best", points=POINTS)),
        environment=None,
    )


def test_the_least_over_a_field_is_one_point_per_value_of_the_others() -> None:
    data = reproduction()
    assert len(data.points("every")) == 8
    assert [(p.settings["task.n_items"], evaluate_at(p, "capacity").value) for p in data.points("best")] == [
        (32, 10.0),
        (64, 24.0),
    ]


def test_the_best_value_has_the_range_of_values_that_are_as_good() -> None:
    small, large = (evaluate_at(point, "arch.n_heads") for point in reproduction().points("best"))
    assert (small.value, small.low, small.high) == (2, 2, 4)
    assert (large.value, large.low, large.high) == (4, 4, 4)


def test_a_run_in_two_sweeps_is_counted_once() -> None:
    assert reproduction().wall_seconds == 16.0
