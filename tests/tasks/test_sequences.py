"""Labelled sequences: data, metrics and the assumptions of the theorem."""

from __future__ import annotations

import math
import time

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from torch import nn

from capbench import CannotConstruct, LoadOutOfRange, NotApplicable, Problem, Recall
from capbench_plugins.construct import Construct
from capbench_plugins.mha import Mha
from capbench_tasks.sequences import Sequences, capbench_tasks, sinusoids
from capbench_tasks.sequences_bounds import Examples

IN_ORDER = {"query_kruskal_share": 1.0, "context_rank_share": 1.0}
SMALL = {"n_context": 3, "d_input": 5, "n_classes": 4, "n_examples": 40}
KINDS = [
    pytest.param({**SMALL, "n_classes": c, "shared_context": shared, "inputs": inputs}, id=f"{c}-{shared}-{inputs}")
    for c, shared, inputs in [(4, False, "uniform"), (4, True, "centred"), (1, False, "centred"), (1, True, "uniform")]
]


def draw(task: Sequences, load: int, slots: int | None = None, seed: int = 0) -> Problem:
    return task.problem(load, slots or load, torch.Generator().manual_seed(seed))


def right_outputs(task: Sequences, problem: Problem) -> torch.Tensor:
    """The outputs of a perfect model."""
    if task.is_regression:
        return problem.targets[:, None]
    return 50.0 * nn.functional.one_hot(problem.targets, task.n_classes).float()


def scores(task: Sequences, outputs: torch.Tensor, problem: Problem) -> dict[str, float]:
    return {name: float(value) for name, value in task.metrics(outputs, problem).items()}


# The data


@pytest.mark.parametrize("fields", KINDS)
@pytest.mark.parametrize("load", range(1, 41))
def test_every_load_has_its_shape_and_a_perfect_answer(fields: dict[str, object], load: int):
    task = Sequences(**fields)
    problem = draw(task, load, slots=40)
    contexts, queries = problem.inputs
    assert contexts.shape == ((1 if task.shared_context else 40), 3, 5)
    assert queries.shape == (40, 5)
    assert problem.mask.sum() == load
    assert scores(task, right_outputs(task, problem), problem)["accuracy"] == 1.0


@pytest.mark.parametrize("fields", KINDS)
@given(load=st.integers(1, 40), room=st.integers(0, 30), seed=st.integers(0, 2**40))
@settings(max_examples=20, deadline=None)
def test_facts_do_not_depend_on_slots(fields: dict[str, object], load: int, room: int, seed: int):
    task = Sequences(**fields)
    tight, roomy = draw(task, load, load, seed), draw(task, load, load + room, seed)
    n_contexts = 1 if task.shared_context else load
    assert torch.equal(tight.inputs[0], roomy.inputs[0][:n_contexts])
    assert torch.equal(tight.inputs[1], roomy.inputs[1][:load])
    assert torch.equal(tight.targets, roomy.targets[:load])
    assert tight.mask.all()
    assert roomy.mask.tolist() == [1.0] * load + [0.0] * room


@pytest.mark.parametrize("fields", KINDS)
def test_masked_slots_change_neither_loss_nor_metrics(fields: dict[str, object]):
    task = Sequences(**fields)
    tight, roomy = draw(task, 7), draw(task, 7, 16)
    outputs = torch.randn(16, task.n_classes, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(task.loss(outputs, roomy), task.loss(outputs[:7], tight))
    assert scores(task, outputs, roomy) == pytest.approx(scores(task, outputs[:7], tight), rel=1e-5)


def test_seeds_give_different_facts():
    task = Sequences()
    assert not torch.equal(draw(task, 8, seed=0).inputs[1], draw(task, 8, seed=1).inputs[1])


def test_uniform_inputs_fill_the_unit_interval_and_centred_ones_have_zero_mean():
    uniform = draw(Sequences(inputs="uniform"), 2000).inputs
    centred = draw(Sequences(inputs="centred"), 2000).inputs
    for tensor in uniform:
        assert tensor.min() >= 0
        assert tensor.max() <= 1
        assert float(tensor.mean()) == pytest.approx(0.5, abs=0.01)
    for tensor in centred:
        assert float(tensor.mean()) == pytest.approx(0.0, abs=0.03)
        assert float(tensor.std()) == pytest.approx(1.0, abs=0.03)


def test_labels_use_all_classes_and_regression_targets_the_unit_interval():
    labels = draw(Sequences(n_classes=10), 1000).targets
    assert set(labels.tolist()) == set(range(10))
    values = draw(Sequences(n_classes=1), 1000).targets
    assert float(values.mean()) == pytest.approx(0.5, abs=0.05)
    assert values.dtype == torch.float32


def test_the_signature_has_the_sizes_of_the_task():
    task = Sequences(n_context=3, d_input=7, n_classes=5, shared_context=True)
    assert task.signature == Recall(3, 7, 5, shared_context=True)


def test_a_hundred_thousand_examples_take_well_under_a_second():
    task = Sequences(n_examples=100_000)
    started = time.process_time()
    draw(task, 100_000, 131_072)
    assert time.process_time() - started < 1.0


# Scores


def test_scores_of_four_classes_by_hand():
    task = Sequences(n_classes=4)
    problem = draw(task, 4)._replace(targets=torch.tensor([0, 1, 2, 3]))
    # Half of the probability on the right class, 1/6 on each other; the last example gets the wrong class.
    probability = torch.full((4, 4), 1 / 6)
    probability[[0, 1, 2, 3], [0, 1, 2, 0]] = 0.5
    nats = (3 * math.log(2) + math.log(6)) / 4
    assert float(task.loss(probability.log(), problem)) == pytest.approx(nats, rel=1e-6)
    found = scores(task, probability.log(), problem)
    assert found["accuracy"] == 0.75
    # Three examples gain log2 4 - 1 = 1 bit, the last log2 4 - log2 6 = -0.585.
    assert found["bits"] == pytest.approx(3 + 2 - math.log2(6), rel=1e-5)
    # (0.75 - 1/4) / (1 - 1/4) of four examples.
    assert task.facts_held(found, 4) == pytest.approx(4 * 2 / 3)


def test_scores_of_a_regression_by_hand():
    task = Sequences(n_classes=1, tolerance=0.125)
    problem = draw(task, 4)._replace(targets=torch.tensor([0.1, 0.4, 0.6, 0.9]))
    outputs = torch.tensor([[0.1], [0.5], [0.6], [0.5]])  # errors 0, 0.1, 0, 0.4
    found = scores(task, outputs, problem)
    assert found["mse"] == pytest.approx((0.01 + 0.16) / 4, rel=1e-5)
    assert float(task.loss(outputs, problem)) == pytest.approx(found["mse"])
    assert found["accuracy"] == 0.75
    # An interval of width 1/4 gives 2 bits; saying which of the four is wrong costs four times the entropy of 1/4.
    entropy = 0.25 * 2 + 0.75 * math.log2(4 / 3)
    assert found["bits"] == pytest.approx(3 * 2 - 4 * entropy, rel=1e-5)
    assert task.facts_held(found, 4) == pytest.approx(4 * (0.75 - 0.25) / 0.75)


def test_perfect_recall_is_worth_the_whole_label():
    classes, values = Sequences(n_classes=8), Sequences(n_classes=1, tolerance=0.03125)
    for task, bits_each in ((classes, 3), (values, 4)):
        problem = draw(task, 100, 128)
        found = scores(task, right_outputs(task, problem), problem)
        assert found["bits"] == pytest.approx(100 * bits_each, rel=1e-5)
        assert task.facts_held(found, 100) == pytest.approx(100)


def test_a_model_that_knows_nothing_stores_nothing():
    classes = Sequences(n_classes=10)
    found = scores(classes, torch.zeros(4000, 10), draw(classes, 4000))
    assert found["bits"] == pytest.approx(0, abs=0.01)
    values = Sequences(n_classes=1)
    found = scores(values, torch.full((4000, 1), 0.5), draw(values, 4000))
    assert found["accuracy"] == pytest.approx(0.1, abs=0.02)
    assert found["bits"] == 0.0
    assert values.facts_held(found, 4000) == pytest.approx(0, abs=80)


def test_confident_wrong_answers_have_no_negative_bits_or_facts():
    task = Sequences(n_classes=3)
    problem = draw(task, 50)
    wrong = 40.0 * nn.functional.one_hot((problem.targets + 1) % 3, 3).float()
    found = scores(task, wrong, problem)
    assert found["accuracy"] == 0.0
    assert found["bits"] == 0.0
    assert task.facts_held(found, 50) == 0.0


@pytest.mark.parametrize("fields", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_scores_keep_the_precision_and_device_of_the_outputs(fields: dict[str, object], dtype: torch.dtype):
    task = Sequences(**fields)
    problem = draw(task, 7, 8)
    targets = problem.targets.to(dtype) if task.is_regression else problem.targets
    here = Problem(tuple(x.to(dtype) for x in problem.inputs), targets, problem.mask.to(dtype))
    outputs = torch.zeros(8, task.n_classes, dtype=dtype)
    away = Problem(tuple(x.to("meta") for x in here.inputs), here.targets.to("meta"), here.mask.to("meta"))
    for device, given_problem in (("cpu", here), ("meta", away)):
        results = [task.loss(outputs.to(device), given_problem)]
        results += task.metrics(outputs.to(device), given_problem).values()
        assert all(r.shape == () and r.dtype == dtype and r.device.type == device for r in results)


@pytest.mark.parametrize("fields", KINDS)
def test_a_batch_of_lanes_scores_like_each_lane_alone(fields: dict[str, object]):
    task = Sequences(**fields)
    problems = [draw(task, load, 16, seed=load) for load in (1, 9, 16)]
    outputs = torch.randn(3, 16, task.n_classes, generator=torch.Generator().manual_seed(0))
    stacked = Problem(
        tuple(torch.stack(same) for same in zip(*(p.inputs for p in problems), strict=True)),
        torch.stack([p.targets for p in problems]),
        torch.stack([p.mask for p in problems]),
    )
    losses, metrics = torch.vmap(task.loss)(outputs, stacked), torch.vmap(task.metrics)(outputs, stacked)
    for i, problem in enumerate(problems):
        torch.testing.assert_close(losses[i], task.loss(outputs[i], problem))
        for name, value in task.metrics(outputs[i], problem).items():
            torch.testing.assert_close(metrics[name][i], value)


# The theorem's assumptions


@pytest.mark.parametrize("inputs", ["uniform", "centred"])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("load", [1, 2, 3, 30])
def test_generated_data_meet_both_assumptions(inputs: str, shared: bool, load: int):
    task = Sequences(**{**SMALL, "inputs": inputs, "shared_context": shared, "n_subsets": 200})
    assert task.examine(draw(task, load, 40)) == IN_ORDER | {"query_kruskal_rank": float(task.n_context)}


def test_the_papers_sizes_meet_both_assumptions():
    task = Sequences(n_context=32, d_input=64, n_classes=100, n_subsets=500)
    assert task.examine(draw(task, 200)) == IN_ORDER | {"query_kruskal_rank": float(task.n_context)}


def test_degenerate_data_are_detected_and_padding_is_not_counted():
    task = Sequences(**SMALL, n_subsets=500)
    problem = draw(task, 20, 40)
    contexts, queries = (tensor.clone() for tensor in problem.inputs)
    queries[:, 2:] = 0.0  # in a plane no three are independent
    contexts[:5, 2] = contexts[:5, 0] + contexts[:5, 1]
    flat = task.examine(problem._replace(inputs=(contexts, queries)))
    assert flat == {"query_kruskal_share": 0.0, "query_kruskal_rank": 2.0, "context_rank_share": 0.75}
    contexts, queries = (tensor.clone() for tensor in problem.inputs)
    queries[20:], contexts[20:] = 0.0, 0.0  # only padding
    assert task.examine(problem._replace(inputs=(contexts, queries))) == IN_ORDER | {"query_kruskal_rank": 3.0}


def test_a_degenerate_shared_context_is_detected():
    task = Sequences(**SMALL, shared_context=True, n_subsets=10)
    problem = draw(task, 20)
    flat = problem._replace(inputs=(torch.ones_like(problem.inputs[0]), problem.inputs[1]))
    assert task.examine(flat)["context_rank_share"] == 0.0


def test_queries_of_a_subspace_have_its_kruskal_rank():
    task = Sequences(n_context=5, d_input=8, query_rank=3, n_subsets=200)
    found = task.examine(draw(task, 30))
    assert (found["query_kruskal_share"], found["query_kruskal_rank"]) == (0.0, 3.0)


@pytest.mark.parametrize(("positions", "share"), [("none", 0.0), ("sinusoidal", 1.0)])
def test_sinusoidal_positions_give_contexts_of_one_token_full_rank(positions: str, share: float):
    task = Sequences(n_context=6, d_input=16, context_rank=1, positions=positions, n_subsets=10)
    assert task.examine(draw(task, 20))["context_rank_share"] == share


def test_sinusoids_by_hand():
    table = sinusoids(3, 4)
    torch.testing.assert_close(table[:, 0], torch.tensor([0.0, math.sin(1), math.sin(2)]))
    torch.testing.assert_close(table[2], torch.tensor([math.sin(2), math.cos(2), math.sin(0.02), math.cos(0.02)]))


def test_examples_may_share_a_few_contexts():
    task = Sequences(**SMALL, n_contexts=3)
    contexts = draw(task, 10).inputs[0]
    assert len(torch.unique(contexts, dim=0)) == 3
    assert torch.equal(contexts[0], contexts[3])
    assert len(torch.unique(draw(Sequences(**SMALL), 10).inputs[0], dim=0)) == 10


def test_contexts_may_be_longer_than_wide_where_no_theorem_speaks():
    task = Sequences(n_context=20, d_input=6, n_subsets=20)
    assert task.examine(draw(task, 30))["context_rank_share"] == 0.0
    with pytest.raises(NotApplicable, match="n < d"):
        Examples().evaluate(task, Mha(), None)
    with pytest.raises(CannotConstruct, match="n < d"):
        Construct().reach(task, Mha(d_vo=2))


def test_queries_of_low_rank_are_independent_again_after_a_random_attention_layer():
    task = Sequences(n_context=5, d_input=16, query_rank=2, inputs="centred", n_subsets=200)
    problem = draw(task, 30)
    assert task.examine(problem)["query_kruskal_share"] == 0.0
    assert task.analyse(torch.zeros(30, 10), problem)["encoded_kruskal_share"] > 0.9


# Validation


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"shared_context": True, "n_contexts": 3}, "one context for all, got n_contexts=3; leave one out"),
        ({"query_rank": 9, "d_input": 8}, "query_rank must be at most d_input, got 9 > 8"),
        ({"n_context": 0}, "greater than or equal to 1"),
        ({"n_classes": 0}, "greater than or equal to 1"),
        ({"tolerance": 0.0}, "greater than 0"),
        ({"tolerance": 0.5}, "less than 0.5"),
        ({"inputs": "normal"}, "'uniform' or 'centred'"),
        ({"n_exmaples": 5}, "Extra inputs"),
    ],
)
def test_bad_fields_are_refused_with_the_reason(fields: dict[str, object], reason: str):
    with pytest.raises(ValidationError, match=reason):
        Sequences(**fields)


@pytest.mark.parametrize("load", [0, -1, 41])
def test_loads_out_of_range_are_refused_with_the_remedy(load: int):
    with pytest.raises(LoadOutOfRange, match=f"1 to 40 examples, got {load}; raise n_examples"):
        draw(Sequences(**SMALL), load, 64)


@pytest.mark.parametrize("preset", ["smoke", "paper"])
def test_presets_are_valid_and_paper_has_the_papers_sizes(preset: str):
    (task,) = capbench_tasks()
    sized = task(**task.presets[preset])
    assert isinstance(sized, Sequences)
    assert sized.typical_load <= sized.max_load
    if preset == "paper":
        assert (sized.d_input, sized.n_context, sized.n_classes) == (64, 32, 100)
