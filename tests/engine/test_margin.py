"""The margin floor: honest explicit weights pass, and ties placed within rounding do not."""

from __future__ import annotations

import json

import pytest
import torch

from capbench import Criterion, Problem
from capbench.documents.result import LEAD_FLOOR, Result
from capbench.engine.margin import condition_number, lead
from capbench_plugins import construct_sequences
from capbench_plugins.construct_codes import circle
from capbench_tasks.dichotomies import Dichotomies
from capbench_tasks.rgr import Rgr
from capbench_tasks.sequences import Sequences
from capbench_tasks.triples import Triples

ALL = Criterion("accuracy", 1.0)


def test_the_lead_of_class_logits_by_hand() -> None:
    problem = Problem((torch.zeros(3, 2, dtype=torch.long),), torch.tensor([0, 2, 1]), torch.tensor([1.0, 1.0, 0.0]))
    outputs = torch.tensor([[4.0, 0.0, -4.0], [101.0, 100.0, 102.0], [9.0, -9.0, 0.0]]).double()
    # The scale is 4, by the first row: the second is 101 ± 1, and the third is padding. The second row leads by 1.
    assert lead(Triples(n_values=3), outputs, problem, ALL) == pytest.approx(0.25)
    assert lead(Triples(n_values=3), outputs.roll(1, dims=1), problem, ALL) == 0.0


def test_the_lead_of_a_relation_by_hand() -> None:
    task = Rgr(n_items=2, d_item=2, graph="random")
    edges = torch.tensor([[0.0, 1.0], [0.0, 0.0]]).double()
    mask = torch.tensor([[0.0, 1.0], [1.0, 0.0]]).double()
    scores = torch.tensor([[50.0, 2.0], [-1.0, -50.0]]).double()  # the diagonal is not scored
    assert lead(task, scores, Problem((torch.eye(2),), edges, mask), task.criterion) == pytest.approx(0.5)


def test_the_lead_of_a_score_with_two_sides_by_hand() -> None:
    problem = Problem((torch.zeros(2, 1, 16), torch.zeros(2, 16)), torch.tensor([1.0, -1.0]), torch.ones(2))
    outputs = torch.tensor([[0.5], [-2.0]]).double()
    assert lead(Dichotomies(), outputs, problem, ALL) == pytest.approx(0.25)


def test_a_prediction_of_numbers_has_no_lead() -> None:
    task = Sequences(n_classes=1)
    problem = task.problem(2, 2, torch.Generator().manual_seed(0))
    assert lead(task, torch.zeros(2, 1), problem, task.criterion) is None


def test_the_condition_number_leaves_zeros_out() -> None:
    assert condition_number(torch.diag(torch.tensor([8.0, 2.0, 0.0]))) == pytest.approx(4.0)
    assert condition_number(torch.stack([torch.eye(2), torch.diag(torch.tensor([1.0, 0.1]))])) == pytest.approx(10.0)


PAIRS = {
    "sequences": ("--arch", "mha", "--set", "arch.n_heads=4"),
    "bigrams": ("--arch", "aot"),
    "rgr": ("--arch", "mha"),
}


@pytest.mark.parametrize("task", PAIRS)
def test_the_honest_constructions_lead_by_more_than_the_floor(capbench, task) -> None:
    done = capbench("run", "--task", task, *PAIRS[task], "--solver", "construct", "--preset", "smoke", "--json")
    result = Result.model_validate_json(done.out)
    assert result.above_floor is not None
    assert result.above_floor.estimate == pytest.approx(result.capacity.estimate, rel=0.05)
    held = [trial for trial in result.trials if trial.status.value == "held"]
    assert all(trial.data["lead_in_bfloat16"] >= LEAD_FLOOR for trial in held)
    metric = result.protocol.criterion.metric
    for name in (f"{metric}_in_float32", f"{metric}_with_bfloat16_weights", "largest_weight", "condition_number"):
        assert all(name in trial.data for trial in result.trials)


def test_ties_placed_within_rounding_are_caught(capbench, monkeypatch) -> None:
    def squeezed(n_classes: int, width: int, generator: torch.Generator) -> torch.Tensor:
        """Two classes next to each other at each place of the circle: argmax still tells them apart, in float64."""
        place = torch.arange(n_classes)
        return circle((place // 2) / ((n_classes + 1) // 2) + 1e-5 * (place % 2))

    run = ("run", "--task", "sequences", *PAIRS["sequences"], "--solver", "construct", "--preset", "smoke", "--json")
    honest = Result.model_validate_json(capbench(*run).out)
    monkeypatch.setattr(construct_sequences, "class_codes", squeezed)
    gamed = Result.model_validate_json(capbench(*run, "--first-seed", "100").out)
    assert gamed.capacity.estimate == honest.capacity.estimate  # by argmax alone nothing is wrong
    assert all(trial.metrics["accuracy"] == 1.0 for trial in gamed.trials)
    assert gamed.above_floor is not None
    assert honest.above_floor is not None
    assert gamed.above_floor.estimate < honest.above_floor.estimate / 2


def test_a_run_shows_the_constructed_capacity_that_counts(capbench) -> None:
    done = capbench("run", "--task", "sequences", "--arch", "mha", "--preset", "smoke", "--json")
    constructed = json.loads(done.out)["constructed"]
    assert constructed["above_floor"]["estimate"] == constructed["capacity"]["estimate"]
