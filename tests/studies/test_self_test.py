"""The self-test of a device: what it counts, and what it calls wrong."""

from __future__ import annotations

import pytest
import torch

from capbench.engine.counting import OperationCount
from capbench.engine.trials import TrialGroup
from capbench.registry.registry import load_registry
from capbench.studies import self_test

MOST_OPERATIONS = {"step": 95, "evaluation": 332}
"""Operations that are not views, for the pair of the self-test: fewer are welcome here, more need a reason."""


def test_a_step_and_an_evaluation_take_no_more_operations_than_they_did() -> None:
    setup = self_test._setup(load_registry())
    group = TrialGroup(setup, setup.task.plugin.max_load, self_test._trials(setup))
    step, evaluation = self_test._Stepped(group, torch.device("cpu")).count()
    assert step.operations.total() <= MOST_OPERATIONS["step"]
    assert evaluation.operations.total() <= MOST_OPERATIONS["evaluation"]
    assert not step.waits


def test_reads_of_the_host_are_counted_and_views_are_not() -> None:
    with OperationCount() as count:
        own = torch.ones(3).view(3, 1) + 1
        own.sum().item()
        own.nonzero()
    assert count.operations["view"] == 0
    assert count.operations["add"] == 1
    assert count.waits == {"_local_scalar_dense": 1, "nonzero": 1}


@pytest.mark.parametrize(
    ("found", "problems"),
    [
        ((0, 0.0, ()), []),
        ((1, 0.0, ()), ["1 trials end otherwise than on the CPU"]),
        ((0, 0.5, ()), ["weights differ by 5.0e-01 after 50 steps"]),
        ((0, 0.0, ("nonzero",)), ["the host waits within a step, for nonzero"]),
    ],
)
def test_a_device_is_ready_unless_one_of_three_things_is_wrong(
    found: tuple[int, float, tuple[str, ...]], problems: list[str]
) -> None:
    assert self_test._problems(*found) == problems
