"""PairAssociations of random vectors: top-1 among the values in use, and the law for one matrix."""

from __future__ import annotations

import math

import pytest
import torch

from capbench import Kind, LoadOutOfRange, NotApplicable
from capbench_plugins.bilinear import Bilinear
from capbench_plugins.linear_memory import LinearMemory
from capbench_plugins.mha import Mha
from capbench_tasks.associations import PairAssociations
from capbench_tasks.associations_bounds import TopOne
from capbench_tasks.rgr import Rgr

TASK = PairAssociations(d_item=4, n_pairs=8)


def draw(load: int):
    return TASK.problem(load, load, torch.Generator().manual_seed(0))


def test_a_key_meets_its_value_in_the_other_half_of_the_items():
    problem = draw(3)
    assert problem.inputs[0].shape == (16, 4)
    assert problem.targets.nonzero().tolist() == [[0, 8], [1, 9], [2, 10]]
    assert problem.mask.sum() == 9, "three keys by three values"


def test_only_the_values_in_use_compete():
    problem = draw(3)
    outputs = problem.targets.clone()
    outputs[0, 11] = 5.0  # a value that no fact uses
    assert TASK.metrics(outputs, problem)["accuracy"] == 1.0
    outputs[0, 9] = 5.0  # the value of another key
    assert TASK.metrics(outputs, problem)["accuracy"] == pytest.approx(2 / 3)


def test_equal_scores_store_nothing_and_certain_ones_all():
    problem = draw(4)
    assert TASK.loss(torch.zeros(16, 16), problem) == pytest.approx(math.log(5))  # four values, or none of them
    assert TASK.metrics(torch.zeros(16, 16), problem)["bits"] == 0.0
    assert TASK.metrics(100 * problem.targets, problem)["bits"] == pytest.approx(4 * 2.0)


def test_loads_beyond_the_limit_are_refused():
    with pytest.raises(LoadOutOfRange, match="1 to 8 pairs, got 9"):
        draw(9)


def test_the_law_solves_two_n_log_n_for_the_square_of_the_width():
    n = TopOne().evaluate(PairAssociations(d_item=16), LinearMemory(), None).value
    assert TopOne().evaluate(PairAssociations(d_item=16), Bilinear(), None).value == n
    assert 2 * n * math.log(n) == pytest.approx(256)
    assert TopOne.kind is Kind.LAW


def test_the_law_is_about_one_matrix_and_this_task():
    with pytest.raises(NotApplicable, match="one matrix"):
        TopOne().evaluate(TASK, Mha(), None)
    with pytest.raises(NotApplicable, match="random vectors"):
        TopOne().evaluate(Rgr(), Bilinear(), None)
