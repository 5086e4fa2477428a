"""Triples: the databases, their metrics, and the ranks of both."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from capbench import LoadOutOfRange, Problem
from capbench_tasks.tensor_rank import cp_rank_estimate, database_tensor
from capbench_tasks.triples import Triples

STRUCTURES = ["random", "block", "diagonal", "low_rank"]


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def facts(task: Triples, problem: Problem) -> set[tuple[int, int, int]]:
    tokens, values = problem.inputs[0][problem.mask > 0], problem.targets[problem.mask > 0]
    return {(k, q, v) for (k, q), v in zip(tokens.tolist(), values.tolist(), strict=True)}


def small(structure: str) -> Triples:
    return Triples(n_keys=6, n_queries=7, n_values=5, structure=structure, rank=3)


@pytest.mark.parametrize("structure", STRUCTURES)
def test_every_load_gives_that_many_distinct_valid_triples_on_the_grid_and_in_a_list(structure):
    task = small(structure)
    grid = task.signature.grid()
    for load in range(1, task.max_load + 1):
        whole = task.problem(load, len(grid), seeded(load))
        listed = task.problem(load, max(load, task.max_load - 1), seeded(load))
        assert torch.equal(whole.inputs[0], grid)
        assert facts(task, whole) == facts(task, listed)
        assert len({fact[:2] for fact in facts(task, whole)}) == load == int(whole.mask.sum())
        if len(listed.mask) < len(grid):
            assert listed.mask[:load].all()
            assert not listed.mask[load:].any()
        assert {k for k, _, _ in facts(task, listed)} <= set(range(6))
        assert {q for _, q, _ in facts(task, listed)} <= set(range(6, 13))
        assert {v for _, _, v in facts(task, listed)} <= set(range(5))
        assert int(listed.inputs[0][:, 0].max()) < 6 <= int(listed.inputs[0][:, 1].min())


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(STRUCTURES[1:]), st.integers(2, 4), st.integers(0, 10**6), st.data())
def test_structured_databases_have_their_known_rank(structure, rank, seed, data):
    task = Triples(n_keys=6, n_queries=7, n_values=5, structure=structure, rank=rank)
    load = data.draw(st.integers(1, task.max_load))
    found = task.examine(task.problem(load, task.max_load, seeded(seed)))
    assert found["database_rank_lower"] == found["database_rank_upper"] == task.known_rank(load)


def test_databases_of_the_same_size_can_have_different_ranks():
    ranks = {r: Triples(structure="low_rank", rank=r).examine(problem_of(r, 200)) for r in (2, 5, 20)}
    assert {r: found["database_rank_upper"] for r, found in ranks.items()} == {2: 2.0, 5: 5.0, 20: 20.0}
    ragged = Triples(structure="block", rank=4)  # blocks of 5 keys and 5 queries
    assert [ragged.known_rank(load) for load in (1, 3, 20, 21, 25, 99, 100)] == [1, 3, 4, 5, 4, 5, 4]


def problem_of(rank: int, load: int) -> Problem:
    return Triples(structure="low_rank", rank=rank).problem(load, load, seeded())


def test_the_estimate_agrees_with_the_known_rank():
    task = small("block")
    problem = task.problem(11, 11, seeded())  # rows of two in three blocks: five full and one ragged
    assert task.known_rank(11) == 4
    assert cp_rank_estimate(database_tensor(task._database(problem)), seeded()) == 4


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 400), st.integers(0, 10**6))
def test_rank_bounds_of_random_databases_are_in_order(load, seed):
    task = Triples()
    found = task.examine(task.problem(load, 400, seeded(seed)))
    assert 1 <= found["database_rank_lower"] <= found["database_rank_upper"] <= load


def test_a_database_too_large_for_a_dense_tensor_is_still_examined():
    task = Triples(n_keys=100, n_queries=100, n_values=100, structure="diagonal")
    assert task.examine(task.problem(100, 100, seeded())) == {"database_rank_upper": 100.0, "database_rank_lower": 1.0}


def test_values_are_uniform_and_pairs_spread_over_the_grid():
    task = Triples()
    problem = task.problem(400, 400, seeded())
    counts = torch.bincount(problem.targets, minlength=20)
    assert counts.min() >= 5
    assert counts.max() <= 40
    few = facts(task, task.problem(100, 100, seeded()))
    assert len({k for k, _, _ in few}) == len({q for _, q, _ in few}) == 20


def test_different_generators_give_different_facts():
    task = Triples()
    assert facts(task, task.problem(50, 64, seeded(1))) != facts(task, task.problem(50, 64, seeded(2)))


@pytest.mark.parametrize("structure", ["random", "block", "low_rank"])
def test_a_hundred_thousand_facts_are_distinct(structure):
    task = Triples(n_keys=800, n_queries=800, n_values=300, structure=structure, rank=5)
    problem = task.problem(100_000, 131_072, seeded())
    assert int(problem.mask.sum()) == 100_000
    assert len(torch.unique(problem.inputs[0][:100_000], dim=0)) == 100_000
    if structure != "block":  # blocks may share values
        assert task.examine(problem)["database_rank_lower"] == (300 if structure == "random" else 5)


@pytest.mark.parametrize("load", [0, -1, 43])
def test_loads_out_of_range_are_refused(load):
    with pytest.raises(LoadOutOfRange, match="1 to 42 triples"):
        small("random").problem(load, 64, seeded())
    with pytest.raises(LoadOutOfRange, match="got 5 in 4"):
        small("random").problem(5, 4, seeded())


@pytest.mark.parametrize(
    "fields",
    [
        {"n_keys": 0},
        {"n_queries": 0},
        {"n_values": 1},
        {"tau": 0.0},
        {"tau": 1.0},
        {"tau": math.nan},
        {"structure": "ring"},
        {"score": "bits"},
        {"rank": 0},
        {"structure": "low_rank", "rank": 1},
        {"structure": "low_rank", "rank": 6, "n_values": 5},
        {"structure": "block", "rank": 8, "n_queries": 7},
        {"n_items": 3},
    ],
)
def test_bad_sizes_are_refused(fields):
    with pytest.raises(ValidationError):
        Triples(**fields)


def test_a_refused_rank_is_explained_with_rule_and_remedy():
    with pytest.raises(ValidationError, match=r"needs 2 <= rank <= min\(n_keys, n_values\).*got 30; change rank"):
        Triples(structure="low_rank", rank=30)


def test_the_criterion_follows_the_score():
    assert str(Triples().criterion) == "accuracy ≥ 0.99"
    assert str(Triples(score="tau_accuracy").criterion) == "tau_accuracy ≥ 0.99"


def test_metrics_match_numbers_worked_by_hand():
    task = Triples(n_keys=2, n_queries=2, n_values=4, tau=0.6)
    targets, mask = torch.tensor([0, 1, 2, 3]), torch.tensor([1.0, 1.0, 1.0, 0.0])
    odds = torch.tensor([[7.0, 1, 1, 1], [2, 3, 2, 1], [5, 1, 1, 1], [1, 1, 1, 5]], dtype=torch.float64)
    # p of the targets: 7/10 (right, confident), 3/8 (right), 1/8 (wrong); the last is masked.
    found = task.metrics(odds.log(), Problem((task.signature.grid(),), targets, mask))
    assert found["accuracy"].item() == pytest.approx(2 / 3)
    assert found["tau_accuracy"].item() == pytest.approx(1 / 3)
    assert found["bits"].item() == pytest.approx(math.log2(2.8) + math.log2(1.5) + math.log2(0.5))
    loss = task.loss(odds.log(), Problem((task.signature.grid(),), targets, mask))
    assert loss.item() == pytest.approx(-math.log(0.7 * 0.375 * 0.125) / 3)


def test_bits_sum_gains_and_losses_and_stop_at_zero():
    task = Triples(n_keys=2, n_queries=2, n_values=4)
    problem = task.problem(4, 4, seeded())
    sure = 50 * torch.nn.functional.one_hot(problem.targets, 4).double()
    assert task.metrics(sure, problem)["bits"].item() == pytest.approx(8.0)
    assert task.metrics(-sure, problem)["bits"].item() == 0.0


def test_masked_slots_do_not_count():
    task = small("random")
    problem = task.problem(10, 16, seeded())
    outputs = torch.randn(16, 5, generator=seeded())
    changed = torch.where(problem.mask[:, None] > 0, outputs, 9.0 * outputs.flip(1))
    assert torch.equal(task.loss(outputs, problem), task.loss(changed, problem))
    for name, value in task.metrics(outputs, problem).items():
        assert torch.equal(value, task.metrics(changed, problem)[name])


def test_a_fact_drawn_three_times_into_a_batch_counts_three_times_in_the_loss():
    task = Triples(n_keys=1, n_queries=2, n_values=2)
    odds = torch.tensor([[3.0, 1.0], [1.0, 1.0]], dtype=torch.float64)
    batch = Problem((task.signature.grid(),), torch.tensor([0, 0]), torch.tensor([3.0, 1.0]))
    assert task.loss(odds.log(), batch).item() == pytest.approx(-(3 * math.log(0.75) + math.log(0.5)) / 4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_scores_keep_precision_and_device(dtype, device):
    task = small("random")
    problem = task.problem(10, 42, seeded())
    moved = Problem((problem.inputs[0].to(device),), problem.targets.to(device), problem.mask.to(device))
    outputs = torch.zeros(42, 5, dtype=dtype, device=device)
    for value in (task.loss(outputs, moved), *task.metrics(outputs, moved).values()):
        assert (value.dtype, value.device.type, value.shape) == (dtype, device, ())


def test_vmap_over_lanes_equals_a_loop():
    task = small("random")
    problems = [task.problem(load, 42, seeded(load)) for load in (3, 17, 42)]
    stacked = Problem(
        (torch.stack([p.inputs[0] for p in problems]),),
        torch.stack([p.targets for p in problems]),
        torch.stack([p.mask for p in problems]),
    )
    outputs = torch.randn(3, 42, 5, generator=seeded())
    losses = torch.func.vmap(task.loss)(outputs, stacked)
    metrics = torch.func.vmap(task.metrics)(outputs, stacked)
    for lane, problem in enumerate(problems):
        torch.testing.assert_close(losses[lane], task.loss(outputs[lane], problem))
        for name, value in task.metrics(outputs[lane], problem).items():
            torch.testing.assert_close(metrics[name][lane], value)


def test_facts_held_corrects_for_guessing_among_uniform_values():
    assert Triples(n_values=5).facts_held({"accuracy": 0.6}, 100) == pytest.approx(50.0)
    assert Triples(n_values=5).facts_held({"accuracy": 0.2}, 100) == pytest.approx(0.0)
    assert Triples(n_values=5).facts_held({"accuracy": 0.1}, 100) == 0.0
    assert Triples(structure="diagonal").facts_held({"accuracy": 1.0}, 20) is None
    assert Triples().facts_held({}, 20) is None


def test_argmax_raises_the_rank_of_circular_logits_from_two_to_twelve():
    task = Triples(n_keys=12, n_queries=1, n_values=12, structure="random")
    angle = torch.arange(12) * (2 * math.pi / 12)
    L = 3 * torch.cos(angle[:, None] - angle)  # (pairs, values): no value is likely
    found = task.analyse(L, task.problem(12, 12, seeded()))
    assert found["layer_rank_by_key"] == found["layer_rank_by_value"] == found["layer_cp_rank_estimate"] == 2
    assert found["layer_rank_by_query"] == 1
    assert found["layer_rank_at_a_query"] == 2
    assert found["argmax_rank_lower"] == found["argmax_rank_upper"] == 12
    assert found["tau_0.95_rank_lower"] == found["tau_0.95_rank_upper"] == 0
    sharp = task.analyse(200 * L, task.problem(12, 12, seeded()))
    assert [sharp[f"tau_{tau}_rank_lower"] for tau in (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)] == [12] * 7


def test_accuracy_is_given_at_every_confidence_that_is_swept():
    task = Triples(n_keys=2, n_queries=2, n_values=2)
    problem = task.problem(4, 4, torch.Generator().manual_seed(0))
    sure = torch.tensor([0.55, 0.75, 0.92, 0.999])  # confidence in the right value, one per pair
    logits = torch.zeros(4, 2).scatter(1, problem.targets.unsqueeze(1), torch.log(sure / (1 - sure)).unsqueeze(1))
    found = task.analyse(logits, problem)
    assert [found[f"tau_{tau:g}_accuracy"] for tau in (0.5, 0.6, 0.8, 0.95)] == [1.0, 0.75, 0.5, 0.25]
