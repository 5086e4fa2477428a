"""Recall from the context: the answer stands in the sequence, and weights that memorise sequences score by chance."""

from __future__ import annotations

import math
from typing import ClassVar

import pytest
import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from capbench import LoadOutOfRange, Problem, Task
from capbench.documents.result import Trial
from capbench.engine.batches import FreshBatches
from capbench.engine.train import train_group
from capbench.engine.trials import Setup, Training, TrialGroup, TrialSpec
from capbench.registry.provenance import Provenance
from capbench.registry.settings import Configured
from capbench_plugins.adam import Adam
from capbench_plugins.deltanet import DeltaNet
from capbench_plugins.mlp import Mlp
from capbench_tasks.recall import ContextRecall

SMALL = {"tokens_per_pair": 2, "n_pairs": 4, "n_keys": 6, "n_values": 4, "n_held_out": 200, "batch": 16}


def draw(load: int, **fields: int | str) -> tuple[ContextRecall, Problem]:
    task = ContextRecall(**{**SMALL, **fields})
    return task, task.problem(load, load, torch.Generator().manual_seed(0))


@pytest.mark.parametrize("noise", [0, 3])
@pytest.mark.parametrize("load", [1, 3, 4])
def test_the_value_after_the_key_that_is_asked_for_is_the_answer(load: int, noise: int) -> None:
    task, problem = draw(load, noise=noise)
    assert (problem.mask == load).all()
    for tokens, answer in zip(problem.inputs[0].tolist(), problem.targets.tolist(), strict=True):
        *context, key = tokens
        assert context.count(key) == 1
        assert context[context.index(key) + 1] == task.n_keys + answer
        assert sum(token < task.n_keys for token in context) == load
        assert context.count(task.signature.n_tokens - 1) == noise


def test_a_pair_may_be_one_token() -> None:
    task, problem = draw(3, tokens_per_pair=1)
    assert task.signature.length == 4 + 1
    for tokens, answer in zip(problem.inputs[0].tolist(), problem.targets.tolist(), strict=True):
        assert tokens[:-1].count(task.n_keys + tokens[-1] * task.n_values + answer) == 1


def queries_of(task: ContextRecall, problem: Problem) -> list[tuple[list[int], list[int], list[int]]]:
    """Of each sequence the context, the pairs asked for, counted from the last one, and the answers."""
    tokens, targets = problem.inputs[0], problem.targets.reshape(len(problem.targets), -1)
    width, found = task.tokens_per_key, []
    for row, answers in zip(tokens.tolist(), targets.tolist(), strict=True):
        context, asked = row[: -task.n_queries * width], row[-task.n_queries * width :]
        is_letter = [token < task.n_letters for token in context]
        starts = [i for i in range(len(context)) if is_letter[i] and not (width == 2 and i and is_letter[i - 1])]
        keys = [tuple(context[i : i + width]) for i in starts]
        places = [keys.index(tuple(asked[i : i + width])) for i in range(0, len(asked), width)]
        assert len(set(keys)) == len(keys)
        assert [context[starts[place] + width] - task.n_letters for place in places] == answers
        found.append((context, [len(keys) - 1 - place for place in places], answers))
    return found


@pytest.mark.parametrize("fields", [{}, {"noise": 3}, {"tokens_per_key": 2}, {"tokens_per_key": 2, "noise": 2}])
@pytest.mark.parametrize("load", [1, 3, 4])
def test_every_pair_is_asked_for_once_before_one_is_repeated(load: int, fields: dict[str, int]) -> None:
    task, problem = draw(load, n_queries=4, **fields)
    assert problem.targets.shape == (200, 4)
    for _, back, _ in queries_of(task, problem):
        assert set(back[:load]) == set(range(load))
        assert back[load:] == back[: 4 - load]


def test_keys_of_two_tokens_share_their_letters() -> None:
    task, problem = draw(4, tokens_per_key=2)
    assert (task.n_letters, task.signature.length) == (3, 4 * 3 + 2)
    assert int(problem.inputs[0][:, -2:].max()) == 2
    assert len(queries_of(task, problem)) == 200
    firsts = [len(set(context[0::3])) for context, _, _ in queries_of(task, problem)]
    assert min(firsts) < 4, "some keys of a sequence differ in their second letter only"


def test_only_recent_pairs_are_asked_for() -> None:
    task, problem = draw(4, recent=2, n_queries=2)
    assert {tuple(sorted(back)) for _, back, _ in queries_of(task, problem)} == {(0, 1)}
    assert (problem.mask == 2).all(), "and only their values count as carried"


def test_gaps_follow_the_power_law_of_zoology() -> None:
    task = ContextRecall(**{**SMALL, "n_held_out": 20_000}, gaps="power")
    problem = task.problem(4, 4, torch.Generator().manual_seed(0))
    back = torch.tensor([places[0] for _, places, _ in queries_of(task, problem)])
    weights = torch.arange(1, 5) ** -0.99
    torch.testing.assert_close(back.bincount() / 20_000, weights / weights.sum(), rtol=0, atol=0.015)
    right = 100.0 * F.one_hot(problem.targets, 4)
    assert set(task.metrics(right, problem)) == {"accuracy"}, "bits of rare pairs are not measured"


def test_uniform_gaps_ask_for_all_pairs_alike() -> None:
    task, problem = draw(4, n_held_out=20_000)
    back = torch.tensor([places[0] for _, places, _ in queries_of(task, problem)])
    torch.testing.assert_close(back.bincount() / 20_000, torch.full((4,), 0.25), rtol=0, atol=0.015)


@pytest.mark.parametrize("width", [1, 2])
def test_each_query_is_answered_at_its_last_token(width: int) -> None:
    task, problem = draw(3, n_queries=2, tokens_per_key=width)
    right = 100.0 * F.one_hot(problem.targets, 4)  # (200, 2, 4)
    outputs = torch.zeros(task.signature.output_shape(200))
    outputs[:, width - 1 :: width] = right
    assert task.metrics(outputs, problem)["accuracy"] == 1
    outputs[:, -1] = 100.0 * F.one_hot((problem.targets[:, 1] + 1) % 4, 4)
    assert task.metrics(outputs, problem)["accuracy"] == 0.5


def test_a_mixer_answers_every_query_from_what_came_before_it() -> None:
    task, problem = draw(3, n_queries=2)
    module = DeltaNet(n_layers=2).build(task.signature)
    outputs = module(*problem.inputs)
    assert outputs.shape == (200, 2, 4)
    changed = problem.inputs[0].clone()
    changed[:, -1] = (changed[:, -1] + 1) % task.n_keys
    torch.testing.assert_close(module(changed)[:, 0], outputs[:, 0])
    assert (module(changed)[:, 1] - outputs[:, 1]).abs().max() > 1e-4
    single = ContextRecall(**SMALL).signature
    alone = DeltaNet(n_layers=2).build(single)
    alone.load_state_dict({name: w[: single.length] if name == "P" else w for name, w in module.state_dict().items()})
    torch.testing.assert_close(alone(problem.inputs[0][:, :-1]), outputs[:, 0])


def test_an_architecture_that_answers_once_is_refused_by_name_of_the_remedy(capbench) -> None:
    fields = [f"--set=task.{name}={value}" for name, value in {**SMALL, "n_queries": 2}.items()]
    done = capbench("run", "--task", "recall", "--arch", "aot", *fields, "--at", "2", "--seeds", "1", "--steps", "5")
    assert done.code == 1
    assert "answers at the last one only; take one that derives from Mixer" in done.out + done.err


def test_all_loads_have_one_length() -> None:
    assert {draw(load)[1].inputs[0].shape for load in (1, 2, 4)} == {(200, 9)}


def test_certain_right_answers_carry_all_values_and_equal_ones_nothing() -> None:
    task, problem = draw(3)
    right = 100.0 * F.one_hot(problem.targets, 4)
    assert task.metrics(right, problem)["context_bits"] == pytest.approx(3 * math.log2(4))
    assert task.metrics(torch.zeros(200, 4), problem)["context_bits"] == pytest.approx(0, abs=1e-5)
    assert task.metrics(right, problem)["accuracy"] == 1


def test_loads_beyond_the_limit_and_too_few_keys_are_refused() -> None:
    with pytest.raises(LoadOutOfRange, match="1 to 4 pairs, got 5"):
        draw(5)
    with pytest.raises(ValueError, match="raise n_keys"):
        ContextRecall(n_pairs=8, n_keys=4)
    with pytest.raises(ValueError, match="set tokens_per_pair=2"):
        ContextRecall(tokens_per_pair=1, tokens_per_key=2)


def test_every_step_sees_new_sequences_whatever_the_chunks() -> None:
    task, problem = draw(4)
    whole = FreshBatches(task, 4, 7, problem).take(3)
    parts = FreshBatches(task, 4, 7, problem)
    first, rest = parts.take(1), parts.take(2)
    assert torch.equal(whole.inputs[0], torch.cat([first.inputs[0], rest.inputs[0]]))
    assert whole.inputs[0].shape == (3, 16, 9)
    assert len(whole.inputs[0].flatten(0, 1).unique(dim=0)) == 48, "none twice"


class Memorised(ContextRecall):
    """Trains on few sequences, over and over, whose labels are shuffled."""

    name: ClassVar[str] = "memorised"

    def fresh(self, load: int, generator: Generator) -> Problem:
        """Always the same."""
        same = torch.Generator().manual_seed(1)
        problem = self._draw(load, self.batch, same)
        return problem._replace(targets=torch.randint(self.n_values, (self.batch,), generator=same))


def test_memorising_training_sequences_gives_no_credit() -> None:
    task = Memorised(**SMALL)
    trial, weights = trained(task)
    module = Mlp(n_layers=1).build(task.signature)
    module.load_state_dict(weights)
    seen = task.fresh(4, torch.Generator())
    assert task.metrics(module(*seen.inputs), seen)["accuracy"] > 0.9, "it learned what it was shown"
    assert trial.metrics["accuracy"] < 0.5, "chance is 1/4, and 1/4 + 3/4 · 1/4 for a value that is in the context"
    assert trial.metrics["context_bits"] == 0


def trained(task: Task) -> tuple[Trial, dict[str, Tensor]]:
    """A trial with four pairs, and its weights."""
    plugins = (Configured(p, Provenance("t", "t", "0", "t"), "-") for p in (task, Mlp(n_layers=1), Adam()))
    setup = Setup(*plugins, Training(task.criterion, 150, stops_early=False))
    spec = TrialSpec(4, 0, 0.01)
    ended: list[tuple[Trial, dict[str, Tensor]]] = []
    group = TrialGroup(setup, setup.slots(spec), (spec,))
    cpu = torch.device("cpu")
    train_group(group, cpu, lambda _: None, lambda *_: None, on_weights=lambda *pair: ended.append(pair))
    return ended[0]
