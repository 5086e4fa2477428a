"""Bigrams: the facts, their scores and the bounds, with numbers worked by hand."""

from __future__ import annotations

import math
import time
from typing import ClassVar

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from torch import nn
from torch.func import vmap
from torch.utils._pytree import tree_map

from capbench import Architecture, Heads, Kind, LoadOutOfRange, NotApplicable, Problem, Signature
from capbench.theory import compare, refuse_broken
from capbench_tasks.bigrams import Accuracy, Associations, BestEncoderKl, Bigrams
from capbench_tasks.bits import BitsPerParameter
from capbench_tasks.rgr import Rgr

KINDS = [
    Bigrams(n_tokens=5),
    Bigrams(n_tokens=5, prior="power"),
    Bigrams(n_tokens=5, target="distribution", d_encoder=0),
    Bigrams(n_tokens=5, target="distribution", d_encoder=2, prior="power"),
]


@pytest.fixture(autouse=True)
def one_thread():
    """On tables this small, threads only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Attention(Architecture):
    """Nothing but the shape of its heads, which is all that the bounds look at."""

    name: ClassVar[str] = "attention"
    n_heads: int = 4
    d_model: int = 16
    d_vo: int = 8
    n_layers: int = 1
    has_skip: bool = True
    has_positions: bool = True

    def build(self, signature: Signature) -> nn.Module:
        raise NotImplementedError

    def heads(self, signature: Signature) -> Heads:
        return Heads(self.n_heads, self.d_model, 1, self.d_vo, self.n_layers, self.has_skip, self.has_positions)


class Headless(Architecture):
    """No attention at all."""

    name: ClassVar[str] = "headless"

    def build(self, signature: Signature) -> nn.Module:
        raise NotImplementedError


def draw(task: Bigrams, load: int, slots: int | None = None, seed: int = 0) -> Problem:
    return task.problem(load, task.max_load if slots is None else slots, torch.Generator().manual_seed(seed))


def facts_of(problem: Problem) -> dict[tuple[int, ...], tuple[torch.Tensor, float]]:
    asked = problem.mask > 0
    rows = zip(problem.inputs[0][asked].tolist(), problem.targets[asked], problem.mask[asked].tolist(), strict=True)
    return {tuple(pair): (target, weight) for pair, target, weight in rows}


def logits_of(problem: Problem, n_tokens: int, sharpness: float = 50.0) -> torch.Tensor:
    """What a perfect model says."""
    if problem.targets.ndim == 1:
        return sharpness * nn.functional.one_hot(problem.targets, n_tokens).float()
    return problem.targets[:, :n_tokens].clamp(min=1e-30).log()


# The facts


@pytest.mark.parametrize("task", KINDS, ids=str)
def test_every_load_has_that_many_distinct_pairs_and_weighs_that_much(task):
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
def test_the_generator_alone_decides(task):
    first, again, other = (draw(task, 10, seed=seed) for seed in (3, 3, 4))
    assert all(torch.equal(a, b) for a, b in zip(first[1:], again[1:], strict=True))
    assert not torch.equal(first.targets, other.targets)


def test_a_full_grid_of_slots_stands_in_grid_order():
    task = Bigrams(n_tokens=7)
    assert torch.equal(draw(task, 20).inputs[0], task.signature.grid())


def test_with_fewer_slots_the_facts_come_first_and_the_filling_is_of_other_pairs():
    problem = draw(Bigrams(n_tokens=7), 20, 32)
    assert problem.mask.tolist() == [1.0] * 20 + [0.0] * 12
    assert len({tuple(pair) for pair in problem.inputs[0].tolist()}) == 32


def test_next_tokens_are_uniform():
    counts = torch.bincount(draw(Bigrams(n_tokens=100), 10_000).targets, minlength=100)
    assert ((counts - 100) ** 2 / 100).sum().item() < 160  # chi-square, 99 degrees of freedom: 4 sigma above


def test_the_power_prior_is_worked_by_hand():
    # 1, 1/2, 1/3 sum to 11/6; scaled to a sum of 3: 18/11, 9/11, 6/11.
    problem = draw(Bigrams(n_tokens=5, prior="power"), 3, 4)
    assert problem.mask.tolist() == pytest.approx([18 / 11, 9 / 11, 6 / 11, 0])


def test_a_steeper_prior_gives_the_most_frequent_pair_more():
    flat, steep = (draw(Bigrams(n_tokens=5, prior="power", prior_exponent=e), 25).mask.max() for e in (0.5, 2.0))
    assert flat < steep


def test_distributions_sum_to_one_and_grow_peaked_as_the_temperature_falls():
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


def test_a_hundred_thousand_facts_take_no_time():
    started = time.perf_counter()
    problem = draw(Bigrams(n_tokens=400), 100_000)
    assert time.perf_counter() - started < 2
    assert int((problem.mask > 0).sum()) == 100_000


@pytest.mark.parametrize("load", [0, -1, 26])
def test_loads_that_do_not_exist_are_refused(load):
    with pytest.raises(LoadOutOfRange, match="5 tokens have 1 to 25 pairs, got a load of"):
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
    problem, silent = draw(task, 64), torch.zeros(64, 8)
    assert task.loss(silent, problem).item() == pytest.approx(math.log(8))
    assert task.metrics(silent, problem)["bits"].item() == pytest.approx(0, abs=1e-3)


def test_a_perfect_model_holds_three_bits_a_fact_among_eight_tokens():
    task = Bigrams(n_tokens=8)
    problem = draw(task, 40)
    metrics = task.metrics(logits_of(problem, 8), problem)
    assert metrics["accuracy"].item() == 1
    assert metrics["bits"].item() == pytest.approx(120)


def test_a_model_sure_of_wrong_answers_holds_no_bits_rather_than_fewer():
    task = Bigrams(n_tokens=8)
    problem = draw(task, 40)
    assert task.metrics(-logits_of(problem, 8), problem)["bits"].item() == 0


def test_accuracy_weighs_facts_by_the_prior_and_bits_do_not():
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
def test_what_is_said_outside_the_facts_does_not_count(task):
    problem = draw(task, 11)
    outputs = torch.randn(25, 5, generator=torch.Generator().manual_seed(1))
    changed = torch.where((problem.mask > 0).unsqueeze(1), outputs, 30 * outputs.flip(0))
    assert torch.equal(task.loss(outputs, problem), task.loss(changed, problem))
    for name, value in task.metrics(outputs, problem).items():
        assert torch.equal(value, task.metrics(changed, problem)[name])


@pytest.mark.parametrize("task", KINDS, ids=str)
def test_a_mask_that_counts_draws_weighs_a_fact_drawn_twice_as_two(task):
    problem = draw(task, 2, 2)
    outputs = torch.randn(2, 5, generator=torch.Generator().manual_seed(1))
    first, second = (task.loss(outputs, problem._replace(mask=torch.tensor(m))) for m in ([1.0, 0.0], [0.0, 1.0]))
    both = task.loss(outputs, problem._replace(mask=torch.tensor([2.0, 1.0])))
    assert both.item() == pytest.approx((2 * first.item() + second.item()) / 3, rel=1e-5)


def test_kl_and_bits_of_the_uniform_guess_are_worked_by_hand():
    task = Bigrams(n_tokens=2, target="distribution", d_encoder=0)
    problem = Problem((torch.tensor([[0, 1]]),), torch.tensor([[0.75, 0.25]]), torch.ones(1))
    guess, right = torch.zeros(1, 2), torch.tensor([[math.log(3), 0.0]])
    by_hand = 0.75 * math.log(1.5) + 0.25 * math.log(0.5)
    assert task.metrics(guess, problem)["kl"].item() == pytest.approx(by_hand)
    assert task.metrics(guess, problem)["bits"].item() == pytest.approx(0, abs=1e-6)
    # Knowing the distribution saves log2(2) - H(.75) = 1 - .8113 bits a sample.
    assert task.metrics(right, problem)["kl"].item() == pytest.approx(0, abs=1e-6)
    assert task.metrics(right, problem)["bits"].item() == pytest.approx(0.1887, abs=1e-4)


def test_the_excess_is_the_kl_less_that_of_the_fitted_encoder():
    task = Bigrams(n_tokens=8, target="distribution", d_encoder=3)
    problem = draw(task, 50)
    outputs = torch.zeros(64, 8)
    metrics, data = task.metrics(outputs, problem), task.examine(problem)
    assert 0 < data["best_encoder_kl"] < metrics["kl"].item()
    assert metrics["excess_kl"].item() == pytest.approx(metrics["kl"].item() - data["best_encoder_kl"], rel=1e-4)


@pytest.mark.parametrize(("d_encoder", "load"), [(7, 50), (20, 50), (3, 3)])
def test_an_encoder_wide_enough_leaves_nothing_so_that_the_excess_is_the_kl(d_encoder, load):
    task = Bigrams(n_tokens=8, target="distribution", d_encoder=d_encoder)
    problem = draw(task, load)
    metrics = task.metrics(torch.zeros(64, 8), problem)
    assert task.examine(problem) == {"best_encoder_kl": 0.0}
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
def test_vmap_scores_many_problems_as_it_scores_each(task):
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
    for place in ({"dtype": torch.float32}, {"dtype": torch.float64}, {"device": "meta"}):
        outputs = torch.zeros(25, 5, **place)
        problem = tree_map(
            lambda tensor, like=outputs: tensor.to(like) if tensor.is_floating_point() else tensor.to(like.device),
            draw(task, 9),
        )
        for score in (task.loss(outputs, problem), *task.metrics(outputs, problem).values()):
            assert (score.dtype, score.device, score.shape) == (outputs.dtype, outputs.device, ())


@pytest.mark.parametrize("task", KINDS, ids=str)
def test_following_the_gradient_leads_to_the_answers(task):
    problem = draw(task, 9)
    outputs = torch.zeros(25, 5, requires_grad=True)
    optimiser = torch.optim.Adam([outputs], lr=0.3)
    before = task.loss(outputs, problem).item()
    for _ in range(100):
        optimiser.zero_grad()
        task.loss(outputs, problem).backward()
        optimiser.step()
    assert task.loss(outputs, problem).item() < 0.1 * before


def test_half_of_what_chance_leaves_is_half_of_the_facts():
    task = Bigrams(n_tokens=50)
    assert task.facts_held({"accuracy": 0.51}, 2500) == pytest.approx(1250)
    assert task.facts_held({"accuracy": 0.02}, 2500) == pytest.approx(0)
    assert task.facts_held({"accuracy": 0.0}, 2500) == 0
    assert task.facts_held({"accuracy": 1.0}, 2500) == pytest.approx(2500)


def test_facts_are_counted_only_where_every_right_answer_weighs_the_same():
    assert Bigrams(prior="power").facts_held({"accuracy": 1.0}, 10) is None
    assert Bigrams(target="distribution").facts_held({"kl": 0.1}, 10) is None
    assert Bigrams().facts_held({}, 10) is None


# Bounds


def test_associations_are_heads_times_value_width_plus_model_width():
    found = Associations().evaluate(Bigrams(), Attention(n_heads=4, d_vo=8, d_model=16), None)
    assert (found.value, found.quantity) == (48, "facts")


def test_at_two_dimensions_associations_are_those_of_the_corollary():
    assert Associations().evaluate(Bigrams(n_tokens=30), Attention(n_heads=8, d_vo=2, d_model=2), None).value == 18


def test_the_papers_largest_model_holds_320():
    assert Associations().evaluate(Bigrams(), Attention(n_heads=31, d_vo=10, d_model=10), None).value == 320


def test_associations_end_with_the_pairs():
    found = Associations().evaluate(Bigrams(n_tokens=3), Attention(n_heads=10, d_vo=2, d_model=2), None)
    assert found.value == 9
    assert "22" in found.note


def test_width_beyond_the_tokens_is_not_counted():
    # A width of 16 over 6 tokens counts as 6, and so do value widths: 1 * 6 + 6.
    assert Associations().evaluate(Bigrams(n_tokens=6), Attention(n_heads=1, d_vo=8, d_model=16), None).value == 12


@settings(max_examples=50, deadline=None)
@given(n_heads=st.integers(1, 20), d_vo=st.integers(1, 20), d_model=st.integers(2, 20), load=st.integers(1, 2500))
def test_accuracy_reads_back_as_the_associations_it_was_made_from(n_heads, d_vo, d_model, load):
    task, architecture = Bigrams(), Attention(n_heads=n_heads, d_vo=d_vo, d_model=d_model)
    held = Associations().evaluate(task, architecture, None).value
    accuracy = Accuracy().evaluate(task, architecture, load).value
    assert task.facts_held({"accuracy": accuracy}, load) == pytest.approx(min(held, load))


def test_accuracy_on_the_whole_table_is_worked_by_hand():
    # H = 11, d = d_h = 10: 120 of 2500, so 1/50 + 49/50 * .048 = .06704.
    found = Accuracy().evaluate(Bigrams(n_tokens=50), Attention(n_heads=11, d_vo=10, d_model=10), None)
    assert found.value == pytest.approx(0.06704)
    assert found.quantity == "accuracy"


def test_accuracy_of_no_more_facts_than_are_held_is_one():
    assert Accuracy().evaluate(Bigrams(), Attention(), 48).value == pytest.approx(1)


@pytest.mark.parametrize("bound", [Associations, Accuracy])
@pytest.mark.parametrize(
    ("task", "architecture", "reason"),
    [
        (Rgr(), Attention(), "bigrams"),
        (Bigrams(), Headless(), "headless does not have the heads"),
        (Bigrams(), Attention(n_layers=2), "one attention layer"),
        (Bigrams(), Attention(has_skip=False), "skip"),
        (Bigrams(), Attention(has_positions=False), "positions"),
        (Bigrams(), Attention(d_model=1), "d = 1"),
        (Bigrams(target="distribution"), Attention(), "one right next token"),
    ],
)
def test_the_theorem_is_silent_outside_its_setting(bound, task, architecture, reason):
    with pytest.raises(NotApplicable, match=reason):
        bound().evaluate(task, architecture, None)


def test_accuracy_is_silent_on_other_priors_where_associations_are_not():
    task = Bigrams(prior="power")
    assert Associations().evaluate(task, Attention(), None).value == 48
    with pytest.raises(NotApplicable, match="uniform prior"):
        Accuracy().evaluate(task, Attention(), None)


@pytest.mark.parametrize(
    ("task", "d_model", "load"),
    [
        (Bigrams(n_tokens=17, target="distribution"), 16, None),
        (Bigrams(n_tokens=50), 2, None),
        (Bigrams(n_tokens=50, target="distribution"), 16, 16),
    ],
)
def test_the_encoders_kl_is_nothing_where_that_is_known(task, d_model, load):
    found = BestEncoderKl().evaluate(task, Attention(d_model=d_model), load)
    assert (found.value, found.quantity) == (0, "kl")


@pytest.mark.parametrize(
    ("task", "d_model", "load"),
    [
        (Bigrams(n_tokens=18, target="distribution"), 16, None),
        (Bigrams(n_tokens=50, target="distribution"), 16, 17),
        (Bigrams(n_tokens=50), 1, None),
    ],
)
def test_elsewhere_the_encoders_kl_is_left_to_the_fit(task, d_model, load):
    with pytest.raises(NotApplicable, match="best_encoder_kl in the trials' data"):
        BestEncoderKl().evaluate(task, Attention(d_model=d_model), load)


def test_a_model_worse_than_the_encoder_does_not_count_as_breaking_its_floor():
    records = compare([BestEncoderKl], Bigrams(n_tokens=10, target="distribution"), Attention(), None, {"kl": 0.7})
    assert records[0].value == 0
    refuse_broken(records)


def test_bits_per_parameter_is_a_mark_and_no_bound():
    for task in (Bigrams(), Rgr()):
        assert BitsPerParameter().evaluate(task, Headless(), None).value == 2
    record = compare([BitsPerParameter], Bigrams(), Headless(), None, {"bits_per_parameter": 1.1})[0]
    assert BitsPerParameter.kind is Kind.LAW
    assert (record.ratio, record.holds) == (None, None)
    assert record.constant == pytest.approx(0.55)
