"""Bigrams: the facts and their metrics, with numbers worked by hand."""

from __future__ import annotations

import math
import time

import pytest
import torch
from pydantic import ValidationError
from torch import nn
from torch.func import vmap
from torch.utils._pytree import tree_map

from capbench import LoadOutOfRange, Lookup, Problem
from capbench_tasks.bigrams import Bigrams

KINDS = [
    Bigrams(n_tokens=5),
    Bigrams(n_tokens=5, prior="power"),
    Bigrams(n_tokens=5, target="distribution", d_encoder=0),
    Bigrams(n_tokens=5, target="distribution", d_encoder=2, prior="power"),
]


@pytest.fixture(autouse=True)
def one_thread():
    """On tables this small, more threads only cost time."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def draw(task: Bigrams, load: int, slots: int | None = None, seed: int = 0) -> Problem:
    return task.problem(load, task.max_load if slots is None else slots, torch.Generator().manual_seed(seed))


def facts_of(problem: Problem) -> dict[tuple[int, ...], tuple[torch.Tensor, float]]:
    is_fact = problem.mask > 0
    rows = zip(
        problem.inputs[0][is_fact].tolist(), problem.targets[is_fact], problem.mask[is_fact].tolist(), strict=True
    )
    return {tuple(pair): (target, weight) for pair, target, weight in rows}


def logits_of(problem: Problem, n_tokens: int, sharpness: float = 50.0) -> torch.Tensor:
    """The logits of a perfect model."""
    if problem.targets.ndim == 1:
        return sharpness * nn.functional.one_hot(problem.targets, n_tokens).float()
    return problem.targets[:, :n_tokens].clamp(min=1e-30).log()


# The facts


@pytest.mark.parametrize("task", KINDS, ids=str)
def test_every_load_has_that_many_distinct_pairs_and_that_total_weight(task):
    for load in range(1, task.max_load + 1):
        problem = draw(task, load)
        assert len(facts_of(problem)) == load
        assert problem.mask.sum().item() == pytest.approx(load, rel=1e-5)


@pytest.mark.parametrize("task", KINDS, ids=str)
@pytest.mark.parametrize("load", [1, 7, 16, 24])
def test_the_facts_do_not_depend_on_the_slots(task, load):
    alone, roomy, grid = (facts_of(draw(task, load, slots)) for slots in (load, 24, 25))
    assert alone.keys() == roomy.keys() == grid.keys()
    for pair, (target, weight) in alone.items():
        for other in (roomy, grid):
            assert torch.equal(other[pair][0], target)
            assert other[pair][1] == weight


@pytest.mark.parametrize("task", KINDS, ids=str)
def test_the_facts_depend_on_the_generator_only(task):
    first, again, other = (draw(task, 10, seed=seed) for seed in (3, 3, 4))
    assert all(torch.equal(a, b) for a, b in zip(first[1:], again[1:], strict=True))
    assert not torch.equal(first.targets, other.targets)


def test_a_full_grid_of_slots_is_in_grid_order():
    task = Bigrams(n_tokens=7)
    assert torch.equal(draw(task, 20).inputs[0], task.signature.grid())


def test_with_fewer_slots_the_facts_come_first_and_the_padding_is_other_pairs():
    problem = draw(Bigrams(n_tokens=7), 20, 32)
    assert problem.mask.tolist() == [1.0] * 20 + [0.0] * 12
    assert len({tuple(pair) for pair in problem.inputs[0].tolist()}) == 32


def test_next_tokens_are_uniform():
    counts = torch.bincount(draw(Bigrams(n_tokens=100), 10_000).targets, minlength=100)
    assert ((counts - 100) ** 2 / 100).sum().item() < 160  # chi-square, 99 degrees of freedom: 4 sigma above


def test_the_power_prior_has_the_weights_worked_by_hand():
    # 1, 1/2, 1/3 sum to 11/6; scaled to a sum of 3: 18/11, 9/11, 6/11.
    problem = draw(Bigrams(n_tokens=5, prior="power"), 3, 4)
    assert problem.mask.tolist() == pytest.approx([18 / 11, 9 / 11, 6 / 11, 0])


def test_a_steeper_prior_gives_the_most_frequent_pair_more_weight():
    flat, steep = (draw(Bigrams(n_tokens=5, prior="power", prior_exponent=e), 25).mask.max() for e in (0.5, 2.0))
    assert flat < steep


def test_distributions_sum_to_one_and_become_peaked_as_the_temperature_falls():
    entropies = []
    for temperature in (2.0, 0.5, 0.1):
        task = Bigrams(n_tokens=20, target="distribution", d_encoder=0, temperature=temperature)
        targets = draw(task, 400).targets
        assert targets.shape == (400, 20)
        assert torch.allclose(targets.sum(dim=1), torch.ones(400), atol=1e-5)
        entropies.append(torch.special.entr(targets).sum(dim=1).mean().item())
    assert entropies == sorted(entropies, reverse=True)


def test_the_encoder_does_not_change_the_distributions():
    without, with_one = (
        draw(Bigrams(n_tokens=6, target="distribution", d_encoder=d), 20).targets[:, :6] for d in (0, 2)
    )
    assert torch.equal(without, with_one)


def test_a_hundred_thousand_facts_take_less_than_two_seconds():
    started = time.perf_counter()
    problem = draw(Bigrams(n_tokens=400), 100_000)
    assert time.perf_counter() - started < 2
    assert int((problem.mask > 0).sum()) == 100_000


@pytest.mark.parametrize("load", [0, -1, 26])
def test_loads_that_do_not_exist_are_refused(load):
    with pytest.raises(LoadOutOfRange, match="5 tokens have 1 to 25 contexts, got a load of"):
        draw(Bigrams(n_tokens=5), load)


@pytest.mark.parametrize(
    "fields",
    [
        {"n_tokens": 1},
        {"target": "letter"},
        {"prior": "zipf"},
        {"prior_exponent": 0},
        {"temperature": 0},
        {"temperature": math.nan},
        {"d_encoder": -1},
        {"kl_threshold": 0},
    ],
)
def test_bad_fields_are_refused(fields):
    with pytest.raises(ValidationError):
        Bigrams(**fields)


# Loss and metrics


def test_a_model_that_knows_nothing_scores_chance_and_no_bits():
    task = Bigrams(n_tokens=8)
    problem, uniform = draw(task, 64), torch.zeros(64, 8)
    assert task.loss(uniform, problem).item() == pytest.approx(math.log(8))
    assert task.metrics(uniform, problem)["bits"].item() == pytest.approx(0, abs=1e-3)


def test_a_perfect_model_stores_three_bits_per_fact_among_eight_tokens():
    task = Bigrams(n_tokens=8)
    problem = draw(task, 40)
    metrics = task.metrics(logits_of(problem, 8), problem)
    assert metrics["accuracy"].item() == 1
    assert metrics["bits"].item() == pytest.approx(120)


def test_a_model_sure_of_wrong_answers_stores_zero_bits_and_not_fewer():
    task = Bigrams(n_tokens=8)
    problem = draw(task, 40)
    assert task.metrics(-logits_of(problem, 8), problem)["bits"].item() == 0


def test_accuracy_is_weighted_by_the_prior_and_bits_are_not():
    task = Bigrams(n_tokens=5, prior="power")
    problem = draw(task, 3, 3)
    outputs = logits_of(problem, 5)
    outputs[1:] = 0.0  # only the most frequent of the three is known: 18/11 of 3
    outputs[1:].scatter_(1, ((problem.targets[1:] + 1) % 5).unsqueeze(1), 1e-6)
    metrics = task.metrics(outputs, problem)
    assert metrics["accuracy"].item() == pytest.approx(6 / 11)
    assert metrics["bits"].item() == pytest.approx(math.log2(5), rel=1e-4)
    assert task.loss(outputs, problem).item() == pytest.approx(5 / 11 * math.log(5), rel=1e-4)


@pytest.mark.parametrize("task", KINDS, ids=str)
def test_outputs_outside_the_facts_do_not_count(task):
    problem = draw(task, 11)
    outputs = torch.randn(25, 5, generator=torch.Generator().manual_seed(1))
    changed = torch.where((problem.mask > 0).unsqueeze(1), outputs, 30 * outputs.flip(0))
    assert torch.equal(task.loss(outputs, problem), task.loss(changed, problem))
    for name, value in task.metrics(outputs, problem).items():
        assert torch.equal(value, task.metrics(changed, problem)[name])


@pytest.mark.parametrize("task", KINDS, ids=str)
def test_a_fact_drawn_twice_into_a_batch_counts_twice(task):
    problem = draw(task, 2, 2)
    outputs = torch.randn(2, 5, generator=torch.Generator().manual_seed(1))
    first, second = (task.loss(outputs, problem._replace(mask=torch.tensor(m))) for m in ([1.0, 0.0], [0.0, 1.0]))
    both = task.loss(outputs, problem._replace(mask=torch.tensor([2.0, 1.0])))
    assert both.item() == pytest.approx((2 * first.item() + second.item()) / 3, rel=1e-5)


def test_kl_and_bits_of_the_uniform_guess_match_numbers_worked_by_hand():
    task = Bigrams(n_tokens=2, target="distribution", d_encoder=0)
    problem = Problem((torch.tensor([[0, 1]]),), torch.tensor([[0.75, 0.25]]), torch.ones(1))
    guess, right = torch.zeros(1, 2), torch.tensor([[math.log(3), 0.0]])
    by_hand = 0.75 * math.log(1.5) + 0.25 * math.log(0.5)
    assert task.metrics(guess, problem)["kl"].item() == pytest.approx(by_hand)
    assert task.metrics(guess, problem)["bits"].item() == pytest.approx(0, abs=1e-6)
    # Knowing the distribution saves log2(2) - H(.75) = 1 - .8113 bits per sample.
    assert task.metrics(right, problem)["kl"].item() == pytest.approx(0, abs=1e-6)
    assert task.metrics(right, problem)["bits"].item() == pytest.approx(0.1887, abs=1e-4)


def test_the_excess_is_the_kl_minus_that_of_the_fitted_encoder():
    task = Bigrams(n_tokens=8, target="distribution", d_encoder=3)
    problem = draw(task, 50)
    outputs = torch.zeros(64, 8)
    metrics, data = task.metrics(outputs, problem), task.examine(problem)
    assert 0 < data["best_encoder_kl"] < metrics["kl"].item()
    assert metrics["excess_kl"].item() == pytest.approx(metrics["kl"].item() - data["best_encoder_kl"], rel=1e-4)


@pytest.mark.parametrize(("d_encoder", "load"), [(7, 50), (20, 50), (3, 3)])
def test_a_wide_enough_encoder_has_zero_kl_so_that_the_excess_is_the_kl(d_encoder, load):
    task = Bigrams(n_tokens=8, target="distribution", d_encoder=d_encoder)
    problem = draw(task, load)
    metrics = task.metrics(torch.zeros(64, 8), problem)
    assert task.examine(problem)["best_encoder_kl"] == 0.0
    assert torch.equal(metrics["kl"], metrics["excess_kl"])


def test_the_true_distributions_beat_a_narrow_encoder():
    task = Bigrams(n_tokens=8, target="distribution", d_encoder=2)
    problem = draw(task, 50)
    metrics = task.metrics(logits_of(problem, 8), problem)
    assert metrics["kl"].item() == pytest.approx(0, abs=1e-5)
    assert metrics["excess_kl"].item() < -0.05


@pytest.mark.parametrize("task", KINDS, ids=str)
def test_the_criterion_is_among_the_metrics_and_a_model_that_knows_the_answers_meets_it(task):
    problem, criterion = draw(task, 9), task.criterion
    value = task.metrics(logits_of(problem, 5), problem)[criterion.metric].item()
    assert value >= criterion.threshold if criterion.at_least else value <= criterion.threshold


@pytest.mark.parametrize("task", KINDS, ids=str)
def test_vmap_scores_many_problems_like_each_alone(task):
    problems = [draw(task, load) for load in (1, 9, 25)]
    outputs = torch.randn(3, 25, 5, generator=torch.Generator().manual_seed(0))
    stacked = tree_map(lambda *same: torch.stack(same), *problems)
    losses, metrics = vmap(task.loss)(outputs, stacked), vmap(task.metrics)(outputs, stacked)
    for i, problem in enumerate(problems):
        assert torch.allclose(losses[i], task.loss(outputs[i], problem), atol=1e-6)
        for name, value in task.metrics(outputs[i], problem).items():
            assert torch.allclose(metrics[name][i], value, atol=1e-4)


@pytest.mark.parametrize("task", KINDS, ids=str)
def test_scores_keep_the_precision_and_the_device_of_the_outputs(task):
    for options in ({"dtype": torch.float32}, {"dtype": torch.float64}, {"device": "meta"}):
        outputs = torch.zeros(25, 5, **options)
        problem = tree_map(
            lambda tensor, like=outputs: tensor.to(like) if tensor.is_floating_point() else tensor.to(like.device),
            draw(task, 9),
        )
        for score in (task.loss(outputs, problem), *task.metrics(outputs, problem).values()):
            assert (score.dtype, score.device, score.shape) == (outputs.dtype, outputs.device, ())


@pytest.mark.parametrize("task", KINDS, ids=str)
def test_gradient_descent_on_the_logits_learns_the_answers(task):
    problem = draw(task, 9)
    outputs = torch.zeros(25, 5, requires_grad=True)
    optimiser = torch.optim.Adam([outputs], lr=0.3)
    before = task.loss(outputs, problem).item()
    for _ in range(100):
        optimiser.zero_grad()
        task.loss(outputs, problem).backward()
        optimiser.step()
    assert task.loss(outputs, problem).item() < 0.1 * before


def test_accuracy_halfway_between_chance_and_one_is_half_of_the_facts():
    task = Bigrams(n_tokens=50)
    assert task.facts_held({"accuracy": 0.51}, 2500) == pytest.approx(1250)
    assert task.facts_held({"accuracy": 0.02}, 2500) == pytest.approx(0)
    assert task.facts_held({"accuracy": 0.0}, 2500) == 0
    assert task.facts_held({"accuracy": 1.0}, 2500) == pytest.approx(2500)


def test_facts_held_are_counted_only_where_all_answers_have_the_same_weight():
    assert Bigrams(prior="power").facts_held({"accuracy": 1.0}, 10) is None
    assert Bigrams(target="distribution").facts_held({"kl": 0.1}, 10) is None
    assert Bigrams().facts_held({}, 10) is None


def test_longer_contexts_are_distinct_and_in_grid_order() -> None:
    task = Bigrams(n_tokens=5, length=3)
    assert (task.max_load, task.signature) == (125, Lookup(5, 3, 5))
    few, all_slots = (task.problem(20, slots, torch.Generator().manual_seed(0)) for slots in (32, 125))
    torch.testing.assert_close(all_slots.inputs[0], task.signature.grid())
    facts = {tuple(row): int(y) for row, y, m in zip(few.inputs[0].tolist(), few.targets, few.mask, strict=True) if m}
    again = all_slots.inputs[0].tolist(), all_slots.targets, all_slots.mask
    assert facts == {tuple(row): int(y) for row, y, m in zip(*again, strict=True) if m}
    assert len(facts) == 20


def test_more_contexts_than_can_be_drawn_are_refused() -> None:
    with pytest.raises(ValidationError, match=r"must be at most 4194304, got 32\^5; lower one of them"):
        Bigrams(length=5)


def test_distances_between_distributions_by_hand():
    task = Bigrams(n_tokens=2, target="distribution", d_encoder=0)
    problem = draw(task, 1, slots=1)._replace(targets=torch.tensor([[0.75, 0.25]]))
    found = task.metrics(torch.zeros(1, 2), problem)  # the model says one half each
    assert found["total_variation"].item() == pytest.approx(0.25)
    assert found["squared_error"].item() == pytest.approx(2 * 0.25**2)


@pytest.mark.parametrize("objective", ["kl", "total_variation", "squared_error"])
def test_training_minimises_the_distance_that_is_asked_for(objective: str):
    task = Bigrams(n_tokens=6, target="distribution", d_encoder=0, objective=objective)
    problem = draw(task, 20)
    outputs = torch.randn(len(problem.mask), 6, generator=torch.Generator().manual_seed(0))
    assert task.loss(outputs, problem) == task.metrics(outputs, problem)[objective]


def test_the_mass_beyond_the_most_frequent_pairs_by_hand():
    task = Bigrams(prior="power")  # weights 1, 1/2, 1/3 and 1/4 of a total of 25/12
    assert task.mass_beyond(3, 4) == pytest.approx(3 / 25)
    assert task.mass_beyond(4, 4) == 0.0
    assert Bigrams().mass_beyond(1, 4) == pytest.approx(0.75)
