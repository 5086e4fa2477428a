"""Explicit weights hold as many facts as the theorems guarantee, in the modules that are trained."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.func import functional_call

from capbench import Architecture, CannotConstruct, Heads, Problem, Task
from capbench_plugins.aot import Aot
from capbench_plugins.construct import Construct
from capbench_plugins.construct_rgr import best_threshold
from capbench_plugins.construct_sequences import head_outputs, least_squares
from capbench_plugins.mha import Mha
from capbench_plugins.mlp import Mlp
from capbench_tasks.bigrams import Bigrams
from capbench_tasks.bigrams_bounds import Associations
from capbench_tasks.rgr import Rgr
from capbench_tasks.sequences import Sequences
from capbench_tasks.sequences_bounds import Examples


def in_precision(problem: Problem, dtype: torch.dtype) -> Problem:
    def cast(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(dtype) if tensor.is_floating_point() else tensor

    return Problem(tuple(map(cast, problem.inputs)), cast(problem.targets), cast(problem.mask))


def construct(
    task: Task,
    architecture: Architecture,
    load: int | None = None,
    slots: int | None = None,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
) -> tuple[dict[str, torch.Tensor], torch.Tensor, Problem]:
    """The weights for `load` facts (default: the solver's reach), the module's outputs with them, and the problem."""
    load = load or Construct().reach(task, architecture)
    slots = slots or min(task.max_load, 1 << (load - 1).bit_length())
    problem = in_precision(task.problem(load, slots, torch.Generator().manual_seed(seed)), dtype)
    module = architecture.build(task.signature).to(dtype)
    generator = torch.Generator().manual_seed(seed + 1)
    weights = Construct().find_weights(task, architecture, module, problem, load, generator)
    return weights, functional_call(module, weights, problem.inputs), problem


def metric_of(name: str, task: Task, architecture: Architecture, **how: int) -> float:
    _, outputs, problem = construct(task, architecture, **how)
    return float(task.metrics(outputs, problem)[name])


# --- sequences -------------------------------------------------------------------------------------------------------

SEQUENCES = [  # d, n, H, d_qk and the theorem's H (min(n, d_qk) - 1) + 1
    (64, 32, 4, 32, 125),
    (64, 32, 20, 64, 621),
    (16, 8, 4, 8, 29),
    (16, 8, 5, 3, 11),
    (8, 4, 5, 9, 16),
    (10, 3, 6, 2, 7),
    (64, 2, 30, 2, 31),
    (12, 1, 3, 4, 1),
    (12, 6, 3, 1, 1),
]


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(("d", "n", "h", "d_qk", "guaranteed"), SEQUENCES)
def test_saturated_attention_fits_as_many_numbers_as_the_theorem_promises(d, n, h, d_qk, guaranteed, shared):
    task = Sequences(n_context=n, d_input=d, n_classes=1, shared_context=shared)
    architecture = Mha(n_heads=h, d_qk=d_qk, d_vo=1)
    assert Examples().evaluate(task, architecture, None).value == guaranteed
    assert Construct().reach(task, architecture) == guaranteed
    _, outputs, problem = construct(task, architecture)
    error = (outputs[:, 0] - problem.targets)[problem.mask > 0].abs()
    assert len(error) == guaranteed
    assert error.max() < 1e-9


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("inputs", ["uniform", "centred"])
@pytest.mark.parametrize(("d", "n", "h", "d_qk", "guaranteed"), SEQUENCES)
def test_two_value_dimensions_encode_a_hundred_classes(d, n, h, d_qk, guaranteed, inputs, shared):
    task = Sequences(n_context=n, d_input=d, n_classes=100, shared_context=shared, inputs=inputs)
    _, outputs, problem = construct(task, Mha(n_heads=h, d_qk=d_qk, d_vo=2), seed=3)
    scores = task.metrics(outputs, problem)
    assert scores["accuracy"] == 1
    assert scores["bits"] == pytest.approx(guaranteed * math.log2(100))


@settings(max_examples=25, deadline=None)
@given(load=st.integers(1, 16), seed=st.integers(0, 10**6), shared=st.booleans())
def test_fewer_examples_than_guaranteed_are_held_too(load, seed, shared):
    task = Sequences(n_context=4, d_input=8, n_classes=5, shared_context=shared)
    assert metric_of("accuracy", task, Mha(n_heads=5, d_qk=4, d_vo=2), load=load, seed=seed) == 1


def test_one_value_dimension_encodes_two_classes_and_no_more():
    two, three = (Sequences(n_context=4, d_input=8, n_classes=n) for n in (2, 3))
    narrow = Mha(n_heads=3, d_qk=4, d_vo=1)
    assert metric_of("accuracy", two, narrow) == 1
    with pytest.raises(CannotConstruct, match=r"d_vo >= 2, got 1; set arch\.d_vo=2"):
        Construct().reach(three, narrow)


@pytest.mark.parametrize(("n", "h"), [(2, 3), (3, 4), (4, 2), (4, 6), (5, 5), (8, 3)])
def test_one_fact_more_than_the_shared_context_rank_defeats_frozen_attention(n, h):
    cap, heads = h * (n - 1) + 1, Heads(h, d_model=12, d_qk=12, d_vo=1)
    misfits = []
    for n_examples in (cap, cap + 1):
        generator = torch.Generator().manual_seed(n_examples)
        context, queries, targets = (
            torch.rand(*shape, dtype=torch.float64, generator=generator)
            for shape in ((1, n, 12), (n_examples, 12), (n_examples, 1))
        )
        misfits.append(frozen_misfit(context, queries, targets, heads, generator))
    assert misfits[0] < 1e-7
    assert misfits[1] > 1e-4


def frozen_misfit(
    contexts: torch.Tensor, queries: torch.Tensor, targets: torch.Tensor, heads: Heads, generator: torch.Generator
) -> float:
    """The least root-mean-square error when attention is random and only the values are fitted."""
    W_Q, W_K = torch.randn(2, heads.n_heads, heads.d_model, heads.d_qk, dtype=torch.float64, generator=generator)
    W_Q = W_Q / heads.d_model  # logits of order 1
    Z = head_outputs(contexts.expand(len(queries), -1, -1), queries, W_Q, W_K)
    return float((Z @ least_squares(Z, targets) - targets).square().mean().sqrt())


def test_constructed_attention_has_the_full_rank_of_a_shared_context():
    task = Sequences(n_context=6, d_input=12, n_classes=1, shared_context=True)
    weights, _, problem = construct(task, Mha(n_heads=4, d_qk=6, d_vo=1), load=21, slots=21)
    contexts, queries = problem.inputs
    Z = head_outputs(contexts.expand(21, -1, -1), queries, weights["W_Q"], weights["W_K"])
    assert torch.linalg.matrix_rank(Z) == 21 == 4 * (6 - 1) + 1


# --- bigrams ---------------------------------------------------------------------------------------------------------

BIGRAMS = [  # N, d, d_qk, d_vo, H and H d_h + d
    (50, 10, 10, 10, 31, 320),
    (30, 2, 2, 2, 8, 18),
    (50, 10, 1, 10, 11, 120),
    (20, 5, 5, 3, 6, 23),
    (12, 10, 4, 10, 4, 50),
    (30, 2, 1, 1, 30, 32),
    (40, 8, 2, 4, 1, 12),
    (12, 4, 2, 7, 3, 16),  # values wider than the stream: H d + d
    (6, 10, 3, 12, 2, 18),  # more dimensions than tokens: H N + N
    (3, 4, 4, 4, 5, 9),  # all pairs
]


@pytest.mark.parametrize(("n", "d", "d_qk", "d_vo", "h", "guaranteed"), BIGRAMS)
def test_the_exact_fit_holds_as_many_associations_as_the_theorem_promises(n, d, d_qk, d_vo, h, guaranteed):
    task, architecture = Bigrams(n_tokens=n), Aot(d_model=d, d_qk=d_qk, d_vo=d_vo, n_heads=h)
    assert Associations().evaluate(task, architecture, None).value == guaranteed
    assert Construct().reach(task, architecture) == guaranteed
    _, outputs, problem = construct(task, architecture)
    scores = task.metrics(outputs, problem)
    assert scores["accuracy"] == 1
    assert scores["bits"] == pytest.approx(guaranteed * math.log2(n))


def test_facts_are_selected_by_their_mask_on_the_whole_grid():
    task, architecture = Bigrams(n_tokens=12, prior="power"), Aot(d_model=4, d_qk=1, d_vo=4, n_heads=3)
    weights, outputs, problem = construct(task, architecture, load=16, slots=144)
    assert (problem.mask > 0).sum() == 16
    assert task.metrics(outputs, problem)["accuracy"] == 1
    module = architecture.build(task.signature).double()
    module.load_state_dict(weights)
    torch.testing.assert_close(module.forward_grid(), outputs)


@settings(max_examples=25, deadline=None)
@given(load=st.integers(1, 23), seed=st.integers(0, 10**6))
def test_few_associations_with_few_answers_leave_the_embeddings_invertible(load, seed):
    task, architecture = Bigrams(n_tokens=20), Aot(d_model=5, d_qk=2, d_vo=3, n_heads=6)
    problem = in_precision(task.problem(load, 32, torch.Generator().manual_seed(seed)), torch.float64)
    problem = problem._replace(targets=torch.full_like(problem.targets, 7))  # one answer for all: target rank 1
    module, generator = architecture.build(task.signature).double(), torch.Generator().manual_seed(seed)
    weights = Construct().find_weights(task, architecture, module, problem, load, generator)
    assert task.metrics(functional_call(module, weights, problem.inputs), problem)["accuracy"] == 1
    assert torch.linalg.matrix_rank(weights["W_E"]) == 5


def test_one_association_more_is_refused():
    task, architecture = Bigrams(n_tokens=30), Aot(d_model=2, d_qk=2, d_vo=2, n_heads=8)
    with pytest.raises(CannotConstruct, match=r"at most 18 associations of bigrams in aot .* got 19; lower"):
        construct(task, architecture, load=19)


def test_without_positions_the_fit_is_exact_while_equal_pairs_are_few():
    task, architecture = Bigrams(n_tokens=50), Aot(d_model=10, n_heads=11, positions=False)
    weights, outputs, problem = construct(task, architecture)
    assert "P" not in weights
    assert task.metrics(outputs, problem)["accuracy"] == 1


# --- relational graphs -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("d_qk", [2, 3, 8])
@pytest.mark.parametrize("m", [4, 16, 64, 128])
def test_one_head_of_width_two_recovers_any_permutation_of_one_hot_items(m, d_qk):
    task = Rgr(n_items=m, d_item=m, graph="permutation", embedding="one_hot")
    assert metric_of("f1", task, Mha(n_heads=1, d_qk=d_qk)) == 1


@pytest.mark.parametrize("graph", ["permutation", "random", "out_regular", "hubs"])
@pytest.mark.parametrize(("n_heads", "d_qk"), [(1, 32), (4, 8), (8, 4)])
def test_orthonormal_codes_recover_any_graph_of_one_hot_items(graph, n_heads, d_qk):
    task = Rgr(n_items=32, d_item=32, graph=graph, embedding="one_hot")
    assert metric_of("f1", task, Mha(n_heads=n_heads, d_qk=d_qk)) == 1


@pytest.mark.parametrize(("m", "d"), [(16, 16), (64, 64), (48, 80)])
def test_independent_items_are_as_good_as_one_hot(m, d):
    task = Rgr(n_items=m, d_item=d, graph="permutation")
    assert metric_of("f1", task, Mha(n_heads=1, d_qk=2)) == 1


@pytest.mark.parametrize(("m", "d"), [(16, 3), (32, 4), (64, 4), (64, 8), (64, 16), (128, 8)])
@pytest.mark.parametrize("graph", ["permutation", "random"])
def test_one_head_per_edge_needs_width_one_only(m, d, graph):
    task = Rgr(n_items=m, d_item=d, graph=graph)
    assert metric_of("f1", task, Mha(n_heads=m, d_qk=1), load=m) == 1


@pytest.mark.parametrize(
    ("m", "d", "n_heads", "d_qk"),
    [(64, 16, 32, 8), (64, 16, 64, 2), (64, 32, 16, 8), (128, 64, 8, 64), (128, 32, 64, 8), (32, 16, 16, 4)],
)
def test_signatures_recover_permutations_of_more_items_than_dimensions(m, d, n_heads, d_qk):
    task = Rgr(n_items=m, d_item=d, graph="permutation")
    scores = [metric_of("f1", task, Mha(n_heads=n_heads, d_qk=d_qk), seed=seed) for seed in range(3)]
    assert min(scores) >= task.criterion.threshold


def test_overload_is_tried_and_scored_rather_than_refused():
    task, architecture = Rgr(n_items=64, d_item=16), Mha(n_heads=4, d_qk=8)
    assert Construct().reach(task, architecture) == task.max_load
    assert 0 < metric_of("f1", task, architecture, load=256) < 0.99


def test_contexts_without_an_edge_give_finite_outputs():
    task = Rgr(n_items=64, d_item=16, context_size=2, n_contexts=1)
    _, outputs, problem = construct(task, Mha(), load=4)
    assert (problem.targets * problem.mask).sum() == 0
    assert outputs.isfinite().all()


def test_the_threshold_is_midway_between_edges_and_other_pairs_that_can_be_separated():
    scores = torch.tensor([[0.9, 0.1], [0.5, 0.8]], dtype=torch.float64)
    edges = torch.tensor([[1.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    found = best_threshold(scores, edges, torch.ones(2, 2, dtype=torch.float64))
    assert found == pytest.approx((1.0, 0.3, 0.65))


def test_the_threshold_has_the_best_f1_where_they_cannot():
    # In descending order: edge, other, other, edge, other. F1 of the first k: 2/3, 1/2, 2/5, 2/3 (of 4), 4/7.
    scores = torch.tensor([5.0, 4.0, 3.0, 2.0, 1.0], dtype=torch.float64)
    edges = torch.tensor([1.0, 0.0, 0.0, 1.0, 0.0], dtype=torch.float64)
    found = best_threshold(scores, edges, torch.ones(5, dtype=torch.float64))
    assert found.f1 == pytest.approx(2 / 3)
    assert found.value in (4.5, 1.5)


# --- the solver ------------------------------------------------------------------------------------------------------

KNOWN = [
    (Sequences(n_context=4, d_input=8, n_classes=5), Mha(n_heads=3, d_qk=4, d_vo=3)),
    (Bigrams(n_tokens=12), Aot(d_model=4, d_qk=3, d_vo=4, n_heads=3)),
    (Rgr(n_items=8, d_item=8, graph="permutation", embedding="one_hot"), Mha(n_heads=2, d_qk=4)),
]


@pytest.mark.parametrize(("task", "architecture"), KNOWN)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_weights_fit_the_module_and_come_in_the_precision_of_the_problem(task, architecture, dtype):
    weights, _, _ = construct(task, architecture, dtype=dtype)
    shapes = {name: parameter.shape for name, parameter in architecture.build(task.signature).named_parameters()}
    assert {name: tensor.shape for name, tensor in weights.items()} == shapes
    assert {tensor.dtype for tensor in weights.values()} == {dtype}


@pytest.mark.parametrize(("task", "architecture"), KNOWN)
def test_the_weights_depend_on_the_generator_only(task, architecture):
    (first, *_), (again, *_) = construct(task, architecture, seed=5), construct(task, architecture, seed=5)
    assert all(torch.equal(first[name], again[name]) for name in first)


@pytest.mark.parametrize(
    ("task", "architecture", "message"),
    [
        (
            Bigrams(),
            Mha(),
            "covers mha on sequences, aot on bigrams, mha on rgr; got mha on bigrams: use --solver adam",
        ),
        (Bigrams(), Mlp(), "got mlp on bigrams"),
        (Bigrams(target="distribution"), Aot(), "set task.target=token"),
        (Bigrams(), Aot(n_layers=2), "with one layer, got 2; set arch.n_layers=1"),
        (Bigrams(), Aot(d_model=1), "set arch.d_model=2 or more"),
        (Bigrams(), Aot(shared_maps=True), "leave arch.readout and arch.shared_maps unset"),
        (Rgr(), Mha(readout="softmax"), "leave arch.readout and arch.shared_maps unset"),
        (Rgr(), Mha(readout="routed"), "leave arch.readout and arch.shared_maps unset"),
    ],
)
def test_a_pair_or_size_that_is_not_covered_is_refused_in_one_line(task, architecture, message):
    with pytest.raises(CannotConstruct) as refusal:
        Construct().reach(task, architecture)
    assert message in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_load_beyond_its_reach_is_refused_in_one_line():
    task, architecture = Sequences(n_context=4, d_input=8), Mha(n_heads=5, d_qk=4, d_vo=2)
    with pytest.raises(
        CannotConstruct, match=r"^construct holds at most 16 examples of sequences in mha .* got 17; .*$"
    ):
        construct(task, architecture, load=17)
