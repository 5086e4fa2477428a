"""The calibration: known capacities within their intervals, laws apart, and what the command writes."""

from __future__ import annotations

import json
import re
import sys

import pytest

from capbench.measure.theory import bracket, compare
from capbench_plugins.perceptron import Perceptron
from capbench_tasks.dichotomies import Dichotomies
from capbench_tasks.dichotomies_bounds import Separable

SMALL = '''
"""An exact bound with a small cell, as a third party would write it."""
from typing import ClassVar
from capbench import CalibrationCell, hookimpl
from capbench_tasks.associations_bounds import TopOne
from capbench_tasks.dichotomies_bounds import Separable, TableRows

FAST = ("task.d_input=6", "task.n_points=64")

class Small(Separable):
    """Cover's theorem in six dimensions."""
    name: ClassVar[str] = "mine.small"
    calibration: ClassVar = (
        CalibrationCell("small, exact", "dichotomies", "perceptron", "exact", FAST),
        CalibrationCell("small, trained", "dichotomies", "perceptron", settings=FAST),
    )

class Table(TableRows):
    """A table of 200 rows."""
    name: ClassVar[str] = "mine.table"
    calibration: ClassVar = (
        CalibrationCell(
            "table, exact",
            "dichotomies",
            "perceptron",
            "exact",
            ("task.d_input=200", "task.points=one_hot", "task.n_points=800"),
        ),
    )

class Law(TopOne):
    """A law on the smallest memory."""
    name: ClassVar[str] = "mine.law"
    calibration: ClassVar = (
        CalibrationCell(
            "memory, trained", "associations", "bilinear", settings=("task.d_item=3", "task.n_pairs=12")
        ),
    )

class Broken(Separable):
    """Names a task that does not exist."""
    name: ClassVar[str] = "mine.broken"
    calibration: ClassVar = (CalibrationCell("broken", "dichotomy", "perceptron"),)

@hookimpl
def capbench_bounds():
    return [Small, Table, Law, Broken]
'''


@pytest.fixture
def plugin(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(SMALL)
    yield str(path)
    sys.modules.pop("mine", None)


def test_the_exact_cases_are_within_their_intervals(capbench, plugin) -> None:
    done = capbench("--plugin", plugin, "calibrate", "mine.small", "mine.table", "--budget", "120", "--json")
    assert done.code == 0, done.err
    rows = json.loads(done.out)
    assert all(list(row) == ["name", "exact", "measured", "ci_low", "ci_high"] for row in rows)
    by_name = {row["name"]: row for row in rows}
    assert by_name["small, exact"]["exact"] == 12
    assert by_name["table, exact"]["exact"] == 201
    for name in ("small, exact", "table, exact"):
        row = by_name[name]
        assert row["ci_low"] <= row["exact"] <= row["ci_high"], row
        assert row["ci_low"] <= row["measured"] <= row["ci_high"]
    assert 0.7 < by_name["small, trained"]["measured"] / 12 < 1.1


def test_a_law_stands_in_its_own_table_and_has_no_exact_value(capbench, plugin, tmp_path) -> None:
    words = ("--plugin", plugin, "calibrate", "mine.law", "mine.table", "--budget", "24", "--ci-width", "0.2")
    done = capbench(*words, "--write-page", str(tmp_path / "docs"), "--plot", str(tmp_path / "curve.html"))
    assert done.code == 0, done.err
    exact, law, verdict = done.out.strip().split("\n\n")
    assert re.search(r"^table, exact +201 .* (?:yes|no)$", exact, re.MULTILINE)
    assert "measured / law" in law
    assert "memory, trained" in law
    assert "systems that are solved exactly" in verdict
    page = (tmp_path / "docs" / "calibration.md").read_text()
    assert "| table, exact | 201 |" in page
    assert "`mine.law` [paper]" in page
    assert "(calibration.svg)" in page
    assert (tmp_path / "docs" / "calibration.svg").read_text().startswith("<svg")
    assert "vega" in (tmp_path / "curve.html").read_text()
    sys.modules.pop("mine")
    rows = json.loads(capbench(*words, "--json").out)
    assert [(row["name"], row["exact"]) for row in rows] == [("table, exact", 201), ("memory, trained", None)]


def test_a_bound_without_calibration_and_a_cell_that_does_not_exist_are_refused(capbench, plugin) -> None:
    done = capbench("calibrate", "bits.per_parameter")
    assert (done.code, done.out) == (2, "")
    assert "no bound to calibrate by named 'bits.per_parameter'" in done.err
    done = capbench("--plugin", plugin, "calibrate", "mine.broken")
    assert done.code == 2
    assert "no task named 'dichotomy'" in done.err


def test_the_search_is_not_told_the_exact_capacity() -> None:
    assert bracket([Separable], Dichotomies(n_points=500), Perceptron()) == (1.0, 500.0)


def test_a_measurement_beside_an_exact_bound_has_a_ratio_and_cannot_break_it() -> None:
    (record,) = compare([Separable], Dichotomies(d_input=8), Perceptron(), None, {"facts": 17.0})
    assert (record.kind, record.value, record.ratio, record.holds) == ("exact", 16.0, 17 / 16, None)


def test_exact_bounds_have_a_column_and_a_description_of_their_own(capbench) -> None:
    done = capbench("bounds", "--task", "dichotomies", "--arch", "perceptron")
    assert re.search(r"^bound +quantity +law +exact ", done.out, re.MULTILINE)
    assert re.search(r"^cover1965.separable +points +32 ", done.out, re.MULTILINE)
    assert "table.rows does not apply" in done.out
    assert "exact (half of the trials hold exactly this much)" in capbench("describe", "cover1965.separable").out
