"""The second run of a suite: a random share of its recorded cells, on other seeds throughout."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from capbench.errors import BadSetting
from capbench.registry.registry import load_registry
from capbench.studies.recheck import FIRST_SEED, parse_share, recheck_plan, recorded_cells
from capbench.studies.suite import Suite, load_suite
from capbench.studies.suite_run import SuitePlan, make_plan
from tests.leaderboard.synthetic import SyntheticRecord, write_record


@pytest.fixture(scope="module")
def plan() -> SuitePlan:
    suite = load_suite("smoke").model_copy(update={"architectures": ("gqa", "headsplit", "mha", "mlp"), "rules": ()})
    return make_plan(suite, load_registry())


def names(plan: SuitePlan) -> set[tuple[str, str, int]]:
    return {cell.name for cell in plan.cells}


def test_a_share_of_the_recorded_cells_is_drawn_and_always_the_same(plan: SuitePlan) -> None:
    recorded = names(plan)
    drawn = recheck_plan(plan, 0.4, recorded)
    assert len(drawn.cells) == math.ceil(0.4 * len(recorded)) < len(recorded)
    assert names(drawn) == names(recheck_plan(plan, 0.4, recorded))
    assert names(recheck_plan(plan, 1.0, recorded)) == recorded
    assert drawn.missing == ()


def test_cells_without_a_record_are_not_drawn_and_others_keep_their_order_of_drawing(plan: SuitePlan) -> None:
    every = names(plan)
    drawn = names(recheck_plan(plan, 0.3, every))
    assert names(recheck_plan(plan, 1.0, drawn)) == drawn
    with pytest.raises(BadSetting, match="got none; run the suite without it first"):
        recheck_plan(plan, 0.1, [])


def test_a_cell_that_is_drawn_differs_in_its_seeds_only(plan: SuitePlan) -> None:
    before = {cell.name: cell for cell in plan.cells}
    for cell in recheck_plan(plan, 1.0, before).cells:
        assert cell.request.options == before[cell.name].request.options.replaced(first_seed=FIRST_SEED)
        assert (cell.cell, cell.request.shapes) == (before[cell.name].cell, before[cell.name].request.shapes)


def test_only_records_of_the_suites_version_count_as_recorded(tmp_path: Path) -> None:
    suite = Suite(name="standard", version=4, tiers=(1024,), preset="quick")
    write_record(tmp_path, SyntheticRecord(architecture="mha", suite_version=4))
    write_record(tmp_path, SyntheticRecord(architecture="mlp", suite_version=3))
    assert recorded_cells(tmp_path, suite) == {("rgr", "mha", 1024)}


@pytest.mark.parametrize("text", ["0", "-10%", "110%", "many", "", "nan"])
def test_what_is_no_share_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(BadSetting, match=r"--recheck takes a share above 0 such as 0\.1 or 10%, got "):
        parse_share(text)
    assert parse_share("10%") == parse_share("0.1") == 0.1
