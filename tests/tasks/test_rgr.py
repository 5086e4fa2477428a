"""Relational graph recognition: graphs, metrics, contexts, and the headline claim."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from torch import Tensor
from torch.func import functional_call

from capbench import Architecture, LoadOutOfRange, Problem, Relation
from capbench.documents.result import Trial
from capbench.engine.stack import make_module, make_problem
from capbench.engine.train import train_group
from capbench.engine.trials import Setup, Training, TrialSpec, group_trials
from capbench.registry.provenance import Provenance
from capbench.registry.settings import Configured
from capbench_plugins.adam import Adam
from capbench_plugins.mha import Mha
from capbench_tasks.rgr import Rgr, log2_binomial

FAMILIES = ["permutation", "random", "out_regular", "hubs"]
PROVENANCE = Provenance("test", "capbench", "0", "test")


def draw(task: Rgr, load: int, seed: int = 0, slots: int = 1) -> Problem:
    return task.problem(load, slots, torch.Generator().manual_seed(seed))


def right_scores(problem: Problem) -> Tensor:
    """Positive on edges, negative elsewhere."""
    return 2 * problem.targets - 1


def metrics_of(task: Rgr, outputs: Tensor, problem: Problem) -> dict[str, float]:
    return {name: float(value) for name, value in task.metrics(outputs, problem).items()}


def make_setup(task: Rgr, architecture: Architecture, steps: int) -> Setup:
    parts = (Configured(part, PROVENANCE, "code") for part in (task, architecture, Adam()))
    return Setup(*parts, Training(task.criterion, steps))


def train(setup: Setup, specs: list[TrialSpec]) -> list[tuple[TrialSpec, Trial, dict[str, Tensor]]]:
    """Every trial's record and weights, through the engine."""
    ended: dict[tuple[int, float | None], tuple[Trial, dict[str, Tensor]]] = {}

    def keep(trial: Trial, weights: dict[str, Tensor]) -> None:
        ended[trial.seed, trial.learning_rate] = (trial, weights)

    for group in group_trials((setup, spec) for spec in specs):
        train_group(group, torch.device("cpu"), lambda trials: None, lambda step, alive: None, on_weights=keep)
    return [(spec, *ended[spec.seed, spec.learning_rate]) for spec in specs]


# Graphs


@pytest.mark.parametrize("graph", FAMILIES)
@pytest.mark.parametrize("context_size", [0, 3])
def test_every_load_has_exactly_that_many_edges_and_a_perfect_answer(graph: str, context_size: int):
    task = Rgr(n_items=6, d_item=4, graph=graph, out_degree=2, context_size=context_size, n_contexts=2)
    for load in range(1, task.max_load + 1):
        problem = draw(task, load, seed=load)
        assert problem.targets.sum() == load
        assert metrics_of(task, right_scores(problem), problem)["f1"] == 1.0
        assert torch.isfinite(task.loss(right_scores(problem), problem))


@given(load=st.integers(1, 12), seed=st.integers(0, 2**40))
@settings(max_examples=40, deadline=None)
def test_a_permutation_has_distinct_sources_and_targets(load: int, seed: int):
    edges = draw(Rgr(n_items=12, d_item=4, graph="permutation"), load, seed).targets
    assert edges.sum(dim=0).max() == edges.sum(dim=1).max() == 1


@pytest.mark.parametrize("graph", ["random", "out_regular", "hubs"])
@given(share=st.floats(0.01, 1), seed=st.integers(0, 2**40))
@settings(max_examples=30, deadline=None)
def test_other_graphs_have_no_self_loops(graph: str, share: float, seed: int):
    task = Rgr(n_items=9, d_item=4, graph=graph, out_degree=3)
    problem = draw(task, max(1, int(share * task.max_load)), seed)
    assert problem.targets.diagonal().sum() == 0
    assert problem.mask.diagonal().sum() == 0


def test_only_a_permutation_is_scored_on_the_diagonal():
    assert draw(Rgr(n_items=5, d_item=4, graph="permutation"), 3).mask.sum() == 25
    assert draw(Rgr(n_items=5, d_item=4, graph="random"), 3).mask.sum() == 20


def test_out_regular_fills_one_source_after_the_other():
    task = Rgr(n_items=10, d_item=4, graph="out_regular", out_degree=3)
    assert draw(task, 30).targets.sum(dim=1).tolist() == [3.0] * 10
    assert sorted(draw(task, 11).targets.sum(dim=1).tolist()) == [0.0] * 6 + [2.0, 3.0, 3.0, 3.0]


def test_random_edges_are_equally_likely_on_every_pair():
    task = Rgr(n_items=4, d_item=2, graph="random")
    total = sum(draw(task, 3, seed).targets for seed in range(2000))  # 3 of 12 pairs: 500 each
    assert isinstance(total, Tensor)
    off_diagonal = total[~torch.eye(4, dtype=torch.bool)]
    assert (off_diagonal - 500).abs().max() < 5 * math.sqrt(500)


def test_hubs_have_heavier_in_degrees_than_random_graphs():
    hubs, plain = (Rgr(graph=graph) for graph in ("hubs", "random"))
    for seed in range(5):
        largest = [float(draw(task, 256, seed).targets.sum(dim=0).max()) for task in (hubs, plain)]
        assert largest[0] > 2 * largest[1]


def test_hubs_differ_between_seeds():
    tops = {int(draw(Rgr(graph="hubs"), 256, seed).targets.sum(dim=0).argmax()) for seed in range(10)}
    assert len(tops) > 3


@pytest.mark.parametrize("graph", FAMILIES)
def test_facts_depend_on_the_generator_and_not_on_slots(graph: str):
    task = Rgr(n_items=8, d_item=4, graph=graph, context_size=3)
    first, second, other = draw(task, 5, 1, slots=5), draw(task, 5, 1, slots=32), draw(task, 5, 2)
    assert torch.equal(first.inputs[0], second.inputs[0])
    assert torch.equal(first.targets, second.targets)
    assert torch.equal(first.mask, second.mask)
    assert not torch.equal(first.inputs[0], other.inputs[0])


# Vectors


def test_gaussian_vectors_have_unit_length():
    (vectors,) = draw(Rgr(), 5).inputs
    assert vectors.shape == (64, 16)
    torch.testing.assert_close(vectors.norm(dim=1), torch.ones(64))


def test_one_hot_vectors_are_the_axes():
    (vectors,) = draw(Rgr(n_items=3, d_item=5, embedding="one_hot"), 1).inputs
    assert torch.equal(vectors, torch.eye(3, 5))


def test_given_vectors_are_used_as_they_are():
    rows = ((1.0, 2.0), (3.0, 4.0), (5.0, 6.0))
    task = Rgr(n_items=3, d_item=2, embedding="given", vectors=rows)
    assert torch.equal(draw(task, 1).inputs[0], torch.tensor(rows))


def test_as_many_one_hot_items_as_dimensions_need_one_head():
    task = Rgr(n_items=16, d_item=16, graph="permutation", embedding="one_hot")
    setup = make_setup(task, Mha(n_heads=1, d_qk=12), steps=600)
    trials = train(setup, [TrialSpec(16, seed, 0.1) for seed in range(3)])
    assert all(trial.metrics["f1"] >= 0.99 for _, trial, _ in trials)


# Scores


def test_f1_and_loss_of_a_tiny_graph_by_hand():
    task = Rgr(n_items=3, d_item=2)
    edges = torch.tensor([[0.0, 1.0, 1.0], [0.0, 0.0, 1.0], [0.0, 0.0, 0.0]])
    problem = draw(task, 3)._replace(targets=edges)
    # Found: 0->1 and 0->2; missed: 1->2; wrongly predicted: 2->0. The diagonal is not scored.
    outputs = torch.tensor([[9.0, 1.0, 1.0], [-1.0, 9.0, -1.0], [1.0, -1.0, 9.0]])
    assert metrics_of(task, outputs, problem)["f1"] == pytest.approx(2 * 2 / (3 + 3))
    # As many edges as non-edges, so no boost: 4 pairs cost softplus(-1), 2 cost softplus(1).
    expected = (4 * math.log1p(math.exp(-1)) + 2 * math.log1p(math.e)) / 6
    assert float(task.loss(outputs, problem)) == pytest.approx(expected, rel=1e-6)


def test_rare_edges_are_weighted_by_the_root_of_their_rarity():
    task = Rgr(n_items=5, d_item=2)
    problem = draw(task, 4)  # 4 edges and 16 other pairs: a boost of 2
    expected = (16 + 4 * 2) / 20 * math.log(2)
    assert float(task.loss(torch.zeros(5, 5), problem)) == pytest.approx(expected, rel=1e-6)


def test_f1_is_zero_if_no_edge_is_predicted_and_low_if_all_are():
    task = Rgr(n_items=5, d_item=2)
    problem = draw(task, 4)
    assert metrics_of(task, -torch.ones(5, 5), problem)["f1"] == 0.0
    assert metrics_of(task, torch.ones(5, 5), problem)["f1"] == pytest.approx(2 * 4 / (20 + 4))


@pytest.mark.parametrize(("graph", "n", "load"), [("random", 4032, 128), ("hubs", 4032, 40), ("out_regular", 4032, 9)])
def test_an_exact_graph_stores_its_bits_minus_one_to_say_that_it_is_exact(graph: str, n: int, load: int):
    problem = draw(Rgr(graph=graph), load)
    bits = metrics_of(Rgr(graph=graph), right_scores(problem), problem)["bits"]
    assert bits == pytest.approx(math.log2(math.comb(n, load)) - 1, abs=0.01)


@pytest.mark.parametrize("load", [1, 20, 63, 64])
def test_an_exact_permutation_stores_the_bits_of_its_sources_targets_and_arrangement(load: int):
    task = Rgr(graph="permutation")
    problem = draw(task, load)
    bits = metrics_of(task, right_scores(problem), problem)["bits"]
    whole = 2 * math.log2(math.comb(64, load)) + math.log2(math.factorial(load))
    assert bits == pytest.approx(whole - 1, abs=0.01)


@pytest.mark.parametrize("graph", FAMILIES)
def test_random_scores_and_no_predicted_edges_store_almost_no_bits(graph: str):
    task = Rgr(graph=graph)
    problem = draw(task, 60)
    noise = torch.randn(64, 64, generator=torch.Generator().manual_seed(5))
    whole = metrics_of(task, right_scores(problem), problem)["bits"]
    assert metrics_of(task, noise, problem)["bits"] < 0.02 * whole
    assert metrics_of(task, -torch.ones(64, 64), problem)["bits"] < 0.02 * whole


def test_bits_of_a_graph_with_one_edge_missed_by_hand():
    task = Rgr(n_items=5, d_item=2)
    problem = draw(task, 4)
    outputs = right_scores(problem)
    source, target = problem.targets.nonzero()[0].tolist()
    outputs[source, target] = -1.0
    # Which of the 17 pairs not predicted is the edge, and that one is missed: log2 17 + (2 log2 2 + 1).
    expected = math.log2(math.comb(20, 4)) - math.log2(17) - 3
    assert metrics_of(task, outputs, problem)["bits"] == pytest.approx(expected, abs=0.01)


@given(n=st.integers(0, 5000), share=st.floats(0, 1))
def test_log2_binomial_agrees_with_exact_counting(n: int, share: float):
    k = round(share * n)
    exact = math.log2(math.comb(n, k))
    for dtype in (torch.float32, torch.float64):
        found = float(log2_binomial(torch.tensor(float(n), dtype=dtype), torch.tensor(float(k), dtype=dtype)))
        assert found == pytest.approx(exact, rel=2e-6, abs=2e-3)


@pytest.mark.parametrize("graph", ["permutation", "random"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_scores_keep_the_precision_and_device_of_the_outputs(graph: str, dtype: torch.dtype):
    task = Rgr(n_items=6, d_item=3, graph=graph)
    drawn = draw(task, 4)
    for device in ("cpu", "meta"):
        problem = Problem(
            (drawn.inputs[0].to(device, dtype),), drawn.targets.to(device, dtype), drawn.mask.to(device, dtype)
        )
        outputs = torch.zeros(6, 6, dtype=dtype, device=device)
        results = [task.loss(outputs, problem), *task.metrics(outputs, problem).values()]
        assert all(r.shape == () and r.dtype == dtype and r.device.type == device for r in results)


def test_a_batch_of_lanes_scores_like_each_lane_alone():
    task = Rgr(n_items=6, d_item=3, graph="permutation")
    problems = [draw(task, load, seed=load) for load in (1, 4, 6)]
    stacked = Problem(
        (torch.stack([p.inputs[0] for p in problems]),),
        torch.stack([p.targets for p in problems]),
        torch.stack([p.mask for p in problems]),
    )
    outputs = torch.randn(3, 6, 6, generator=torch.Generator().manual_seed(0))
    losses, metrics = torch.vmap(task.loss)(outputs, stacked), torch.vmap(task.metrics)(outputs, stacked)
    for i, problem in enumerate(problems):
        torch.testing.assert_close(losses[i], task.loss(outputs[i], problem))
        for name, value in task.metrics(outputs[i], problem).items():
            torch.testing.assert_close(metrics[name][i], value)


# Contexts


@pytest.mark.parametrize("graph", ["permutation", "random"])
def test_pair_weights_count_the_contexts_that_contain_both_items(graph: str):
    task = Rgr(n_items=10, d_item=4, graph=graph, context_size=4, n_contexts=7)
    weights = draw(task, 5).mask
    assert torch.equal(weights, weights.T)
    assert weights.max() <= 7
    scored_per_context = 4 * 4 if graph == "permutation" else 4 * 3
    assert weights.sum() == 7 * scored_per_context


def test_contexts_of_all_items_are_the_whole_set():
    task = Rgr(n_items=6, d_item=4, context_size=6, n_contexts=3)
    assert torch.equal(draw(task, 5).mask, 3 * draw(task.model_copy(update={"context_size": 0}), 5).mask)


def test_a_permutation_scored_in_few_contexts_stores_no_more_bits_than_its_pairs_can():
    task = Rgr(graph="permutation", context_size=8, n_contexts=4)
    problem = draw(task, 64)
    n_pairs, n_edges = int((problem.mask > 0).sum()), int((problem.targets * (problem.mask > 0)).sum())
    bits = metrics_of(task, right_scores(problem), problem)["bits"]
    assert n_edges > 0
    assert bits <= math.log2(math.comb(n_pairs, n_edges))


def test_contexts_without_an_edge_are_right_where_nothing_is_predicted():
    task = Rgr(n_items=20, d_item=4, context_size=2, n_contexts=1)
    problem = draw(task, 1)
    assert (problem.targets * problem.mask).sum() == 0
    assert metrics_of(task, -torch.ones(20, 20), problem) == {"f1": 1.0, "bits": 0.0}
    assert metrics_of(task, torch.ones(20, 20), problem)["f1"] == 0.0


# Trained models


def scores_on(setup: Setup, spec: TrialSpec, weights: dict[str, Tensor], items: Tensor) -> Tensor:
    """A trained model's scores for some of the items."""
    with torch.no_grad():
        scores: Tensor = functional_call(make_module(setup, spec), weights, (items,))
    return scores


@pytest.mark.slow
@pytest.mark.parametrize(("n_heads", "d_item", "recovers"), [(4, 16, True), (1, 6, False)])
def test_a_margin_on_all_items_holds_in_every_context(n_heads: int, d_item: int, recovers: bool):
    # Adler 2025, Lemma 4.1: where a source's edges clear its non-edges on V, they do so in any C inside V.
    task = Rgr(n_items=32, d_item=d_item, graph="permutation")
    sampled = Rgr(n_items=32, d_item=d_item, graph="permutation", context_size=6, n_contexts=200)
    setup = make_setup(task, Mha(n_heads=n_heads), steps=600)
    generator = torch.Generator().manual_seed(0)
    n_with_margin, n_without, n_recovered = 0, 0, 0
    for spec, trial, weights in train(setup, [TrialSpec(32, seed, 0.1) for seed in range(3)]):
        problem = make_problem(setup, spec, setup.slots(spec))
        (items,), is_edge = problem.inputs, problem.targets > 0
        scores = scores_on(setup, spec, weights, items)
        has_margin = torch.where(is_edge, scores > 1e-4, scores < -1e-4).all(dim=1)  # of each source, on V
        n_with_margin, n_without = n_with_margin + int(has_margin.sum()), n_without + int((~has_margin).sum())
        for _ in range(40):
            context = torch.randperm(32, generator=generator)[:6]
            predicted = scores_on(setup, spec, weights, items[context]) > 0  # (sources in C, targets in C)
            is_right = (predicted == is_edge[context][:, context]).all(dim=1)
            assert is_right[has_margin[context]].all()
        if trial.metrics["f1"] == 1.0:
            n_recovered += 1
            rescored = problem._replace(mask=draw(sampled, 32, seed=spec.seed).mask)
            assert sampled.metrics(scores, rescored)["f1"] == 1.0
    assert n_with_margin > 0
    assert (n_recovered > 0) if recovers else (n_without > 0)


def test_the_score_of_a_pair_does_not_change_with_the_context():
    # Why the lemma holds for this readout: the score of a pair is the same when other items are absent.
    module = Mha().build(Relation(12, 6))
    items = torch.randn(12, 6, generator=torch.Generator().manual_seed(0))
    context = torch.tensor([7, 2, 9, 0])
    with torch.no_grad():
        torch.testing.assert_close(module(items[context]), module(items)[context][:, context])


def test_anisotropic_vectors_share_a_direction_and_have_unequal_spreads():
    vectors = draw(Rgr(n_items=400, d_item=16, embedding="anisotropic"), 5).inputs[0]
    assert torch.allclose(vectors.norm(dim=1), torch.ones(400), atol=1e-5)
    cosines = (vectors @ vectors.T)[~torch.eye(400, dtype=torch.bool)]
    assert 0.2 < cosines.mean() < 0.5
    spreads = vectors.std(dim=0)[1:]
    assert spreads[0] > 2 * spreads[-1]
    plain = draw(Rgr(n_items=400, d_item=16), 5).inputs[0]
    assert abs(float((plain @ plain.T).mean())) < 0.01


CONTEXT = torch.tensor([7, 2, 9, 0])


@pytest.mark.parametrize("readout", ["max", "softmax", "routed"])
def test_a_context_is_scored_as_if_its_items_were_all_there_are(readout: str):
    module = Mha(readout=readout).build(Relation(12, 6)).double()
    items = torch.randn(12, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    contexts = torch.zeros(2, 12, dtype=torch.float64).index_fill(1, CONTEXT, 1.0)
    with torch.no_grad():
        scores = module(items, contexts).expand(2, 12, 12)[1]
        torch.testing.assert_close(scores[CONTEXT][:, CONTEXT], module(items[CONTEXT]), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(("readout", "lemma_holds"), [("max", True), ("softmax", False), ("routed", False)])
def test_lemma_4_1_holds_for_the_largest_score_and_not_where_attention_is_normalised(readout: str, lemma_holds: bool):
    # Item 0 points to 1 and scores 2 second. On all items 1 takes the attention; where it is absent, 2 does.
    task = Rgr(n_items=4, d_item=4, embedding="one_hot", context_size=3)
    module = Mha(n_heads=1, d_qk=4, d_vo=4, readout=readout).build(task.signature)
    scores = torch.zeros(4, 4)
    scores[0, 1], scores[0, 2] = 12.0, 6.0
    weights = {"W_Q": torch.eye(4)[None], "W_K": scores.T[None], "log_scale": torch.zeros(())}
    weights["threshold"] = torch.tensor({"max": 9.0, "softmax": math.log(2), "routed": 0.5}[readout])
    weights |= {"W_V": torch.eye(4)[None], "W_O": torch.eye(4)[None]} if readout == "routed" else {}
    edges = torch.zeros(4, 4)
    edges[0, 1] = 1.0

    def f1(*contexts: list[float]) -> float:
        present = torch.tensor(contexts)
        mask = (present.T @ present).fill_diagonal_(0.0)
        outputs = functional_call(module, weights, (torch.eye(4), present))
        return float(task.metrics(outputs, Problem((torch.eye(4), present), edges, mask))["f1"])

    assert f1([1.0, 1.0, 1.0, 1.0]) == 1.0
    assert f1([1.0, 1.0, 1.0, 0.0]) == 1.0
    assert (f1([1.0, 0.0, 1.0, 1.0]) == 1.0) == lemma_holds


def test_training_in_contexts_uses_the_scores_of_each_context():
    task = Rgr(n_items=8, d_item=4, context_size=4, n_contexts=5)
    problem = draw(task, 6)
    module = Mha(readout="softmax").build(task.signature)
    outputs = module(*problem.inputs)
    assert outputs.shape == (5, 8, 8)
    outside = (problem.inputs[1].unsqueeze(2) * problem.inputs[1].unsqueeze(1)) == 0
    changed = torch.where(outside, outputs + 7.0, outputs)
    assert task.loss(changed, problem) == task.loss(outputs, problem), "pairs outside a context do not count"
    same = torch.randn(8, 8, generator=torch.Generator().manual_seed(0))
    for_all = task.metrics(same.expand(5, 8, 8), problem)
    assert {n: float(v) for n, v in for_all.items()} == {
        n: pytest.approx(float(v)) for n, v in task.metrics(same, problem).items()
    }


@pytest.mark.slow
def test_one_head_plateaus_where_four_recover_the_graph():
    task = Rgr(n_items=64, d_item=16, graph="permutation")
    best = {}
    for n_heads, d_qk in ((1, 32), (4, 8)):
        setup = make_setup(task, Mha(n_heads=n_heads, d_qk=d_qk), steps=1500)
        ended = train(setup, [TrialSpec(64, seed, rate) for seed in range(2) for rate in (0.1, 0.2)])
        best[n_heads] = max(trial.metrics["f1"] for _, trial, _ in ended)
    assert best[1] < 0.7
    assert best[4] >= 0.99


# Validation


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"embedding": "one_hot", "n_items": 20, "d_item": 10}, "n_items <= d_item, got 20 > 10; raise d_item"),
        ({"embedding": "given"}, "64 vectors of width 16, got 0"),
        ({"embedding": "given", "n_items": 2, "d_item": 2, "vectors": ((1, 2), (3,))}, r"got 2 of width \[1, 2\]"),
        ({"vectors": ((1.0,),)}, "only where embedding=given"),
        ({"graph": "out_regular", "n_items": 4, "out_degree": 4}, "below n_items, got 4 >= 4"),
        ({"context_size": 1}, "0 or 2..n_items, got 1"),
        ({"context_size": 65}, "got 65"),
        ({"n_items": 1}, "greater than or equal to 2"),
        ({"graph": "ring"}, "'permutation'"),
        ({"hub_exponent": 0.0}, "greater than 0"),
        ({"n_item": 4}, "Extra inputs"),
    ],
)
def test_bad_fields_are_refused_with_the_reason(fields: dict[str, object], reason: str):
    with pytest.raises(ValidationError, match=reason):
        Rgr(**fields)


@pytest.mark.parametrize("graph", FAMILIES)
def test_loads_out_of_range_are_refused(graph: str):
    task = Rgr(n_items=6, d_item=3, graph=graph)
    for load in (-1, 0, task.max_load + 1):
        with pytest.raises(LoadOutOfRange, match=f"1 to {task.max_load} edges, got {load}"):
            draw(task, load)


def test_presets_are_valid():
    for fields in Rgr.presets.values():
        task = Rgr(**fields)
        assert 1 <= task.typical_load <= task.max_load
