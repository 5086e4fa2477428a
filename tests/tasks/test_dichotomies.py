"""Random dichotomies: labelled points, and what counts as separating them."""

from __future__ import annotations

import pytest
import torch

from capbench import LoadOutOfRange
from capbench_tasks.dichotomies import Dichotomies


def draw(task: Dichotomies, load: int, slots: int, seed: int = 0):
    return task.problem(load, slots, torch.Generator().manual_seed(seed))


def test_gaussian_points_are_in_general_position_and_their_labels_are_fair():
    problem = draw(Dichotomies(d_input=4), 512, 512)
    (contexts, points), labels = problem.inputs, problem.targets
    assert torch.equal(contexts[:, 0], points), "a point is its own context"
    assert all(torch.linalg.matrix_rank(points[i : i + 4]) == 4 for i in range(0, 508, 4))
    assert set(labels.tolist()) == {-1.0, 1.0}
    assert abs(labels.mean().item()) < 4 / 512**0.5


def test_one_hot_points_repeat_after_the_last_row():
    _, points = draw(Dichotomies(d_input=3, points="one_hot"), 5, 8).inputs
    assert points[:5].argmax(dim=1).tolist() == [0, 1, 2, 0, 1]
    assert torch.equal(points.sum(dim=1), torch.ones(8))


def test_the_facts_do_not_depend_on_the_slots_and_padding_does_not_count():
    task = Dichotomies(d_input=4)
    few, many = draw(task, 3, 3), draw(task, 3, 8)
    assert torch.equal(few.inputs[1], many.inputs[1][:3])
    assert torch.equal(few.targets, many.targets[:3])
    assert many.mask.tolist() == [1.0] * 3 + [0.0] * 5
    outputs = 2 * many.targets.unsqueeze(1)
    outputs[3:] = -outputs[3:]
    assert task.metrics(outputs, many)["accuracy"] == 1.0
    assert task.loss(outputs, many) == pytest.approx(task.loss(outputs[:3], few))


def test_a_score_of_zero_is_on_no_side_and_stores_nothing():
    task = Dichotomies(d_input=4)
    problem = draw(task, 6, 6)
    metrics = task.metrics(torch.zeros(6, 1), problem)
    assert metrics["accuracy"] == 0.0
    assert metrics["bits"] == pytest.approx(0.0, abs=1e-5)
    sure = task.metrics(100 * problem.targets.unsqueeze(1), problem)
    assert sure["bits"] == pytest.approx(6.0)


def test_loads_beyond_the_limit_are_refused():
    with pytest.raises(LoadOutOfRange, match="1 to 8 points, got 9"):
        draw(Dichotomies(n_points=8), 9, 16)
