"""A settled record of a suite starts where the suite starts: at its steps, and at its rates or those of its shape."""

from __future__ import annotations

from dataclasses import replace

import pytest

from capbench.documents.result import Result, Selection
from capbench.measure.document import command
from capbench.registry.registry import Registry, load_registry
from capbench.studies.suite import load_suite
from capbench.studies.suite_run import PlannedCell, make_plan
from capbench.studies.verify.suite_cell import check_cell
from tests.leaderboard.synthetic import SyntheticRecord

SUITE = load_suite("standard")


@pytest.fixture(scope="module")
def registry() -> Registry:
    return load_registry()


def settled_record(planned: PlannedCell, rates: tuple[float, ...], steps: int, share: float = 0.05) -> Result:
    """A record of a cell whose selection tried some rates at a number of steps."""
    request, made = planned.request, SyntheticRecord(architecture=planned.architecture).result()
    trials = tuple(made.trials[0].model_copy(update={"learning_rate": rate, "limit": steps}) for rate in rates)
    chosen = replace(request, options=request.options.replaced(rates=(rates[0],), steps=steps), shapes=())
    return made.model_copy(
        update={
            "suite": planned.cell,
            "command": command(chosen),
            "protocol": chosen.protocol,
            "selection": Selection(version=2, share=share, first_seed=1_000_000, trials=trials, rates=None),
        }
    )


@pytest.mark.parametrize(("architecture", "needs_the_tasks_rates"), [("headsplit", False), ("mlp", True)])
def test_only_where_no_shape_is_chosen_settling_starts_at_the_rates_of_the_task(
    registry: Registry, architecture: str, needs_the_tasks_rates: bool
) -> None:
    (planned,) = [cell for cell in make_plan(SUITE, registry, ["rgr"], [architecture]).cells if cell.cell.tier == 256]
    assert planned.request.chooses_shape is not needs_the_tasks_rates
    around_a_shape = settled_record(planned, (0.4, 0.2, 0.8), 1500)
    found = check_cell(around_a_shape, SUITE, registry)
    assert [line.split(":")[0] for line in found] == (["selection.trials"] if needs_the_tasks_rates else [])
    at_the_tasks = settled_record(planned, (0.4, 0.1, 0.2, 0.8, 1.6), 1500)
    assert check_cell(at_the_tasks, SUITE, registry) == []
    late = settled_record(planned, (0.4, 0.1, 0.2, 0.8, 1.6), 3000)
    assert [line.split(":")[0] for line in check_cell(late, SUITE, registry)] == ["selection.trials"]
    assert check_cell(settled_record(planned, (0.4, 0.2, 0.8, 0.1, 1.6), 1500, 0.5), SUITE, registry) == [
        "selection.share: stated 0.5, the suite asks for 0.05"
    ]
