"""Training that starts from explicit weights: where it starts, that lanes are independent, and what it refuses."""

from __future__ import annotations

import json

import pytest
import torch
from torch import Tensor
from torch.func import functional_call

from capbench.contract.plugin import Plugin
from capbench.contract.solver import GradientSolver
from capbench.contract.task import Task
from capbench.engine.stack import build_stack
from capbench.engine.train import train_group
from capbench.engine.trials import Setup, Training, TrialGroup, TrialSpec
from capbench.errors import PluginMisbehaved
from capbench.registry.provenance import Provenance
from capbench.registry.settings import Configured
from capbench_plugins.adam import Adam
from capbench_plugins.construct import Construct
from capbench_plugins.mha import Mha
from capbench_plugins.refine import Refine
from capbench_tasks.rgr import Rgr
from capbench_tasks.sequences import Sequences

CPU = torch.device("cpu")
GRAPH = Rgr(n_items=16, d_item=16, graph="permutation", embedding="one_hot")
SEQUENCES = Sequences(n_context=3, d_input=8, n_classes=4)


def configured(plugin: Plugin) -> Configured:
    return Configured(plugin, Provenance("test", "test", "0", "test"), "no hash")


def make_setup(task: Task, architecture: Mha, solver: GradientSolver, steps: int = 50, dtype: str = "float32") -> Setup:
    training = Training(task.criterion, steps, dtype=dtype, stops_early=False)
    return Setup(configured(task), configured(architecture), configured(solver), training)


def scores_at_the_start(setup: Setup, *trials: TrialSpec) -> list[float]:
    group = TrialGroup(setup, setup.slots(trials[0]), trials)
    stack, _ = build_stack(group, CPU)
    named, task = stack.layout.split(stack.weights), setup.task.plugin
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


def trained(setup: Setup, *trials: TrialSpec) -> dict[TrialSpec, dict[str, Tensor]]:
    ended: dict[TrialSpec, dict[str, Tensor]] = {}
    train_group(
        TrialGroup(setup, setup.slots(trials[0]), trials),
        CPU,
        lambda *_: None,
        lambda *_: None,
        on_weights=lambda t, weights: ended.update({TrialSpec(t.load, t.seed, t.learning_rate): weights}),
    )
    return ended


def test_training_starts_where_the_construction_holds_every_fact() -> None:
    trials = [TrialSpec(16, seed, 0.1) for seed in range(3)]
    one_head = Mha(n_heads=1, d_qk=4)
    assert scores_at_the_start(make_setup(GRAPH, one_head, Refine()), *trials) == [1.0] * 3
    assert max(scores_at_the_start(make_setup(GRAPH, one_head, Adam()), *trials)) < 0.5


def test_facts_beyond_the_reach_of_the_construction_are_left_to_training() -> None:
    heads = Mha(n_heads=4, d_qk=4, d_vo=2)
    reach = Construct().reach(SEQUENCES, heads)
    setup = make_setup(SEQUENCES, heads, Refine(noise=0.0), dtype="float64")
    assert scores_at_the_start(setup, TrialSpec(reach, 0, 0.01)) == [1.0]
    (twice,) = scores_at_the_start(setup, TrialSpec(2 * reach, 0, 0.01))
    assert 0.5 <= twice < 1.0


def test_the_start_is_the_same_at_every_learning_rate_and_noise_is_added() -> None:
    def weights(solver: Adam, *trials: TrialSpec) -> Tensor:
        setup = make_setup(GRAPH, Mha(n_heads=2, d_qk=4), solver)
        return build_stack(TrialGroup(setup, setup.slots(trials[0]), trials), CPU)[0].weights

    plain = weights(Refine(noise=0.0), TrialSpec(16, 0, 0.1), TrialSpec(16, 0, 0.9), TrialSpec(16, 1, 0.1))
    assert torch.equal(plain[0], plain[1])
    assert not torch.equal(plain[0], plain[2])
    own = weights(Adam(), TrialSpec(16, 0, 0.1))
    assert own.std() > 0.1
    assert torch.allclose(weights(Refine(noise=0.5), TrialSpec(16, 0, 0.1)), plain[:1] + 0.5 * own)


def test_a_refined_model_ends_the_same_alone_and_in_a_group() -> None:
    setup = make_setup(GRAPH, Mha(n_heads=2, d_qk=2), Refine())
    trials = tuple(TrialSpec(16, seed, rate) for seed in range(3) for rate in (0.01, 0.1))
    grouped, alone = trained(setup, *trials)[trials[3]], trained(setup, trials[3])[trials[3]]
    assert all(torch.equal(grouped[name], alone[name]) for name in alone)


def test_the_command_line_refines_and_refuses_a_pair_without_construction(capbench) -> None:
    command = ("run", "--preset", "smoke", "--task", "rgr", "--solver", "refine", "--at", "24", "--seeds", "2")
    graph = ("--set", "task.graph=permutation", "--lr", "0.1", "--steps", "25", "--set", "arch.n_heads=24")
    done = capbench(*command, *graph, "--arch", "mha", "--set", "arch.d_qk=1", "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["metrics"]["f1"] >= 0.99
    refused = capbench(*command, "--arch", "bilinear")
    assert (refused.code, refused.out, refused.err.count("\n")) == (2, "", 1)
    assert "construct covers" in refused.err


@pytest.mark.parametrize("fault", ["name", "shape", "nan"])
def test_a_start_that_does_not_fit_the_module_is_refused(fault: str) -> None:
    class FaultyRefine(Refine):
        def start(self, *given: object) -> dict[str, Tensor]:
            found = super().start(*given)  # type: ignore[arg-type]
            if fault == "name":
                return {"W_X": found["W_Q"]}
            return {"W_Q": found["W_Q"][:1] if fault == "shape" else found["W_Q"] * torch.nan}

    setup = make_setup(GRAPH, Mha(n_heads=2, d_qk=4), FaultyRefine())
    with pytest.raises(PluginMisbehaved, match=r"refine\.start must return finite weights"):
        scores_at_the_start(setup, TrialSpec(16, 0, 0.1))
