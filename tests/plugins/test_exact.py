"""The perceptron, and the linear programme that separates points if anything does."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from capbench import CannotConstruct, Lookup, Recall, UnsupportedSignature
from capbench_plugins.exact import Exact, widest_margin
from capbench_plugins.mlp import Mlp
from capbench_plugins.perceptron import Perceptron
from capbench_tasks.dichotomies import Dichotomies
from capbench_tasks.dichotomies_bounds import Separable

TASK = Dichotomies(d_input=4)


def solve(load: int, seed: int) -> bool:
    """Whether the solver's weights hold a problem, scored as the engine scores them."""
    problem = TASK.problem(load, load, torch.Generator().manual_seed(seed))
    problem = problem._replace(inputs=tuple(t.double() for t in problem.inputs), mask=problem.mask.double())
    module = Perceptron().build(TASK.signature).double()
    found = Exact().find_weights(TASK, Perceptron(), module, problem, load, torch.Generator())
    module.load_state_dict(found)
    return TASK.criterion.is_met(float(TASK.metrics(module(*problem.inputs), problem)["accuracy"]))


def test_the_perceptron_has_one_weight_per_coordinate_and_no_threshold():
    module = Perceptron().build(TASK.signature)
    assert [tuple(p.shape) for p in module.parameters()] == [(4,)]
    queries = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(module(queries.unsqueeze(1), -queries), -module(queries.unsqueeze(1), queries))
    for signature in (Lookup(4, 2, 4), Recall(2, 4, 10)):
        with pytest.raises(UnsupportedSignature, match="one score"):
            Perceptron().build(signature)


def test_it_separates_whatever_can_be_separated():
    assert np.array_equal(np.sign(widest_margin(np.eye(3))), np.ones(3))
    thin = np.array([[1.0, 1e-4], [-1.0, 1e-4]])  # only w = (0, 1) up to one part in ten thousand
    assert (thin @ widest_margin(thin) > 0).all()


def test_where_nothing_separates_it_says_so_with_weights_of_zero():
    opposite = np.array([[1.0, 0.0], [-1.0, 0.0]])
    assert np.array_equal(widest_margin(opposite), np.zeros(2))


def test_any_labels_of_as_many_points_as_dimensions_are_held():
    assert all(solve(4, seed) for seed in range(20))


def test_half_of_the_trials_hold_twice_as_many_points():
    n_trials, p = 400, Separable().success(TASK, Perceptron(), 8)
    held = sum(solve(8, seed) for seed in range(n_trials))
    assert p == pytest.approx(0.5)
    assert abs(held / n_trials - p) < 3 * (p * (1 - p) / n_trials) ** 0.5


def test_other_pairs_are_refused():
    with pytest.raises(CannotConstruct, match="exact covers perceptron on dichotomies; got mlp on dichotomies"):
        Exact().reach(TASK, Mlp())
