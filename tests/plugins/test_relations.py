"""The margin of scores between items, and what is left of them when weights are rounded."""

from __future__ import annotations

import pytest
import torch

from capbench import Problem
from capbench_plugins.headsplit import HeadSplit
from capbench_plugins.mha import Mha
from capbench_plugins.relations import RelationScores, analyse_scores, round_weights
from capbench_tasks.rgr import Rgr


def scores_of(table: list[list[float]], threshold: float) -> tuple[RelationScores, Problem]:
    """A model whose scores on two one-hot items are the table less the threshold, on a graph with the edge 0 -> 1."""
    module = RelationScores(2, 1, 2, init_scale=1.0)
    weights = {"W_Q": torch.eye(2)[None], "W_K": torch.tensor(table).T[None], "log_scale": torch.zeros(())}
    module.load_state_dict({**weights, "threshold": torch.tensor(threshold)})
    edges = torch.tensor([[0.0, 1.0], [0.0, 0.0]])
    return module, Problem((torch.eye(2),), edges, 1 - torch.eye(2))


def test_the_margin_is_the_least_distance_to_the_threshold_as_a_share_of_the_largest_score():
    module, problem = scores_of([[0.0, 2.5], [0.2, 0.0]], threshold=0.5)
    with torch.no_grad():
        assert analyse_scores(module, problem)["margin"] == pytest.approx(0.3 / 2.0)
        wrong, problem = scores_of([[0.0, 0.1], [-1.5, 0.0]], threshold=0.5)
        assert analyse_scores(wrong, problem)["margin"] == pytest.approx(-0.4 / 2.0)


def test_weights_are_rounded_to_an_even_grid_around_zero():
    W = torch.tensor([[[1.0, -0.3, 0.2, -0.9]]])
    assert round_weights(W, 2).tolist() == [[[1.0, 0.0, 0.0, -1.0]]]
    assert round_weights(W, 3).flatten().tolist() == pytest.approx([1.0, -1 / 3, 1 / 3, -1.0])
    assert torch.allclose(round_weights(W, 16), W, atol=1e-4)


def test_few_bits_lose_an_edge_that_many_keep():
    # A score of .6 beside one of 2 rounds to .67 at 3 bits, and to 0 at 2.
    module, problem = scores_of([[2.0, 0.6], [0.0, 0.0]], threshold=0.5)
    with torch.no_grad():
        found = analyse_scores(module, problem)
    assert (found["f1_at_2_bits"], found["f1_at_3_bits"], found["f1_at_8_bits"]) == (0.0, 1.0, 1.0)


@pytest.mark.parametrize("architecture", [Mha(n_heads=2, d_qk=3), HeadSplit(n_heads=2, d_qk_total=6)])
def test_both_ways_to_split_heads_are_analysed(architecture):
    task = Rgr(n_items=8, d_item=4)
    module = architecture.build(task.signature)
    with torch.no_grad():
        found = architecture.analyse(module, task.problem(5, 5, torch.Generator().manual_seed(0)))
    assert {"margin", "f1_at_2_bits", "f1_at_8_bits"} <= found.keys()
