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
from capbench_plugins.mlp import Mlp
from capbench_tasks.recall import ContextRecall

SMALL = {"n_pairs": 4, "n_keys": 6, "n_values": 4, "n_held_out": 200, "batch": 16}


def draw(load: int, **fields: int) -> tuple[ContextRecall, Problem]:
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
