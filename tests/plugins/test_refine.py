"""Training that starts at explicit weights: it starts there, keeps lanes apart, and says what it does not know."""

from __future__ import annotations

import json

import pytest
import torch
from torch import Tensor
from torch.func import functional_call

from capbench.engine.lanes import LaneGroup, Pair, Training, TrialSpec
from capbench.engine.stack import build_stack
from capbench.engine.train import train_group
from capbench.errors import PluginMisbehaved
from capbench.plugin import Plugin
from capbench.provenance import Provenance
from capbench.settings import Configured
from capbench.solver import GradientSolver
from capbench.task import Task
from capbench_plugins.adam import Adam
from capbench_plugins.construct import Construct
from capbench_plugins.mha import Mha
from capbench_plugins.refine import Refine
from capbench_tasks.rgr import Rgr
from capbench_tasks.sequences import Sequences

CPU = torch.device("cpu")
GRAPH = Rgr(n_items=16, d_item=16, graph="permutation", embedding="one_hot")
LISTS = Sequences(n_context=3, d_input=8, n_classes=4)


def configured(plugin: Plugin) -> Configured:
    return Configured(plugin, Provenance("test", "test", "0", "test"), "no hash")


def make_pair(task: Task, architecture: Mha, solver: GradientSolver, steps: int = 50, dtype: str = "float32") -> Pair:
    training = Training(task.criterion, steps, dtype=dtype, stops_early=False)
    return Pair(configured(task), configured(architecture), configured(solver), training)


def scores_at_the_start(pair: Pair, *trials: TrialSpec) -> list[float]:
    group = LaneGroup(pair, pair.slots(trials[0]), trials)
    stack, _ = build_stack(group, CPU)
    named, task = stack.layout.split(stack.weights), pair.task.plugin
    scores = []
    for lane in range(len(trials)):
        problem = type(stack.problem)(
            tuple(tensor[lane] for tensor in stack.problem.inputs),
            stack.problem.targets[lane],
            stack.problem.mask[lane],
        )
        outputs = functional_call(stack.module, {name: w[lane] for name, w in named.items()}, problem.inputs)
        scores.append(float(task.metrics(outputs, problem)[task.criterion.metric]))
    return scores


def trained(pair: Pair, *trials: TrialSpec) -> dict[TrialSpec, dict[str, Tensor]]:
    ended: dict[TrialSpec, dict[str, Tensor]] = {}
    train_group(
        LaneGroup(pair, pair.slots(trials[0]), trials),
        CPU,
        lambda t, weights: ended.update({TrialSpec(t.load, t.seed, t.learning_rate): weights}),
        lambda *_: None,
    )
    return ended


def test_training_starts_where_the_construction_holds_every_fact() -> None:
    trials = [TrialSpec(16, seed, 0.1) for seed in range(3)]
    one_head = Mha(n_heads=1, d_qk=4)
    assert scores_at_the_start(make_pair(GRAPH, one_head, Refine()), *trials) == [1.0] * 3
    assert max(scores_at_the_start(make_pair(GRAPH, one_head, Adam()), *trials)) < 0.5


def test_what_the_construction_is_not_made_for_is_left_to_training() -> None:
    heads = Mha(n_heads=4, d_qk=4, d_vo=2)
    reach = Construct().reach(LISTS, heads)
    pair = make_pair(LISTS, heads, Refine(noise=0.0), dtype="float64")
    assert scores_at_the_start(pair, TrialSpec(reach, 0, 0.01)) == [1.0]
    (twice,) = scores_at_the_start(pair, TrialSpec(2 * reach, 0, 0.01))
    assert 0.5 <= twice < 1.0


def test_the_start_is_the_same_at_every_rate_and_shaken_by_the_noise() -> None:
    def weights(solver: Adam, *trials: TrialSpec) -> Tensor:
        pair = make_pair(GRAPH, Mha(n_heads=2, d_qk=4), solver)
        return build_stack(LaneGroup(pair, pair.slots(trials[0]), trials), CPU)[0].weights

    plain = weights(Refine(noise=0.0), TrialSpec(16, 0, 0.1), TrialSpec(16, 0, 0.9), TrialSpec(16, 1, 0.1))
    assert torch.equal(plain[0], plain[1])
    assert not torch.equal(plain[0], plain[2])
    own = weights(Adam(), TrialSpec(16, 0, 0.1))
    assert own.std() > 0.1
    assert torch.allclose(weights(Refine(noise=0.5), TrialSpec(16, 0, 0.1)), plain[:1] + 0.5 * own)


def test_a_refined_model_ends_the_same_alone_and_in_company() -> None:
    pair = make_pair(GRAPH, Mha(n_heads=2, d_qk=2), Refine())
    crowd = tuple(TrialSpec(16, seed, rate) for seed in range(3) for rate in (0.01, 0.1))
    beside, alone = trained(pair, *crowd)[crowd[3]], trained(pair, crowd[3])[crowd[3]]
    assert all(torch.equal(beside[name], alone[name]) for name in alone)


def test_the_command_line_refines_and_refuses_a_pair_without_construction(capbench) -> None:
    words = ("run", "--preset", "smoke", "--task", "rgr", "--solver", "refine", "--at", "24", "--seeds", "2")
    graph = ("--set", "task.graph=permutation", "--lr", "0.1", "--steps", "25", "--set", "arch.n_heads=24")
    done = capbench(*words, *graph, "--arch", "mha", "--set", "arch.d_qk=1", "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["metrics"]["f1"] >= 0.99
    refused = capbench(*words, "--arch", "bilinear")
    assert (refused.code, refused.out, refused.err.count("\n")) == (2, "", 1)
    assert "construct knows" in refused.err


@pytest.mark.parametrize("spoilt", ["name", "shape", "nan"])
def test_a_start_that_does_not_fit_the_module_costs_the_trial(spoilt: str) -> None:
    class Spoilt(Refine):
        def start(self, *given: object) -> dict[str, Tensor]:
            found = super().start(*given)  # type: ignore[arg-type]
            if spoilt == "name":
                return {"W_X": found["W_Q"]}
            return {"W_Q": found["W_Q"][:1] if spoilt == "shape" else found["W_Q"] * torch.nan}

    pair = make_pair(GRAPH, Mha(n_heads=2, d_qk=4), Spoilt())
    with pytest.raises(PluginMisbehaved, match=r"refine\.start must return finite weights"):
        scores_at_the_start(pair, TrialSpec(16, 0, 0.1))
