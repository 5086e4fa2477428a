"""Training a group: seeds that mean the same in any group, lanes that do not affect each other."""

from __future__ import annotations

import hashlib
import json
import math
import warnings
from dataclasses import asdict
from typing import ClassVar

import pytest
import torch
from torch import Tensor, nn

from capbench import Architecture, Criterion, Relation, Task
from capbench.contract.plugin import Plugin
from capbench.documents.result import Trial, TrialStatus
from capbench.engine.stack import LoopFallback
from capbench.engine.train import train_group
from capbench.engine.trials import Setup, Training, TrialGroup, TrialSpec, group_trials
from capbench.registry.provenance import Provenance
from capbench.registry.settings import Configured
from capbench_plugins.adam import Adam
from capbench_plugins.mha import Mha
from capbench_tasks.rgr import Rgr
from capbench_tasks.sequences import Sequences

CPU = torch.device("cpu")
SMALL = Rgr(n_items=24, d_item=8)
Ended = dict[TrialSpec, tuple[Trial, dict[str, Tensor]]]


def configured(plugin: Plugin) -> Configured:
    return Configured(plugin, Provenance("test", "test", "0", "test"), "no hash")


def make_pair(task: Task = SMALL, architecture: Architecture | None = None, steps: int = 300) -> Setup:
    return Setup(
        configured(task), configured(architecture or Mha()), configured(Adam()), Training(task.criterion, steps)
    )


def train(setup: Setup, *trials: TrialSpec) -> Ended:
    ended: Ended = {}

    def keep(trial: Trial, weights: dict[str, Tensor]) -> None:
        ended[TrialSpec(trial.load, trial.seed, trial.learning_rate)] = (trial, weights)

    train_group(TrialGroup(setup, 8, trials), CPU, lambda _: None, lambda *_: None, on_weights=keep)
    return ended


def same_weights(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_a_trial_alone_and_among_64_others_ends_with_the_same_weights_bit_for_bit() -> None:
    setup = make_pair(Rgr(), steps=150)
    crowd = [
        TrialSpec(load, seed, rate)
        for load in (40, 160, 230, 300)
        for seed in range(4)
        for rate in (0.05, 0.1, 0.2, 0.4)
    ]
    together = train(setup, *crowd, TrialSpec(230, 99, 0.2))
    for trial in (TrialSpec(230, 99, 0.2), crowd[0], crowd[37], crowd[-1]):
        alone = train(setup, trial)[trial]
        assert same_weights(alone[1], together[trial][1])
        assert alone[0] == together[trial][0]
    few = train(setup, *crowd[30:37], crowd[-1])
    assert all(same_weights(weights, together[spec][1]) for spec, (_, weights) in few.items())


def test_the_same_seed_means_the_same_data_for_every_architecture_and_rate() -> None:
    one, other = make_pair(architecture=Mha(n_heads=1)), make_pair(architecture=Mha(n_heads=4))
    spec = TrialSpec(10, 3, 0.1)
    assert one.data_seed(spec) == other.data_seed(spec) == one.data_seed(TrialSpec(10, 3, 0.9))
    assert one.init_seed(spec) != other.init_seed(spec)
    # Of equal tensors the initial weights are equal too, whatever the architecture is called.
    assert one.init_seed(spec) == make_pair(architecture=Mha(n_heads=1, d_model=3, init_scale=0.5)).init_seed(spec)
    assert one.data_seed(spec) != one.data_seed(TrialSpec(10, 4, 0.1))
    assert one.data_seed(spec) != one.data_seed(TrialSpec(11, 3, 0.1))


def test_a_key_is_the_hash_of_the_pair_and_of_the_trials_fields_by_name() -> None:
    setup = make_pair()
    for spec in (TrialSpec(10, 3, 0.1), TrialSpec(7, 0, None)):
        text = "\0".join(["trial", setup.identity, json.dumps(asdict(spec), sort_keys=True)])
        assert setup.key(spec) == hashlib.sha256(text.encode()).hexdigest()[:32]


def test_a_key_changes_with_everything_that_decides_a_trial() -> None:
    base, spec = make_pair(), TrialSpec(10, 3, 0.1)
    others = [
        make_pair(Rgr(n_items=24, d_item=9)).key(spec),
        make_pair(architecture=Mha(n_heads=2)).key(spec),
        make_pair(steps=301).key(spec),
        Setup(base.task, base.architecture, configured(Adam(beta1=0.8)), base.training).key(spec),
        Setup(Configured(SMALL, base.task.provenance, "other code"), base.architecture, base.solver, base.training).key(
            spec
        ),
        *(base.key(s) for s in (TrialSpec(11, 3, 0.1), TrialSpec(10, 4, 0.1), TrialSpec(10, 3, 0.2))),
    ]
    assert len({base.key(spec), *others}) == len(others) + 1
    assert make_pair().key(spec) == base.key(spec)


def test_training_leaves_the_callers_random_state_alone() -> None:
    before = torch.random.get_rng_state()
    train(make_pair(steps=30), TrialSpec(10, 0, 0.1))
    assert torch.equal(torch.random.get_rng_state(), before)


def test_a_lane_that_diverges_is_its_own_result_and_nobody_elses() -> None:
    setup, calm = make_pair(steps=100), TrialSpec(60, 0, 0.1)
    alone = train(setup, calm)[calm]
    wild = [TrialSpec(60, seed, 1e38) for seed in range(3)]
    company = train(setup, *wild, calm)
    assert {company[spec][0].status for spec in wild} == {TrialStatus.DIVERGED}
    assert same_weights(company[calm][1], alone[1])
    assert all(math.isfinite(value) for spec in wild for value in company[spec][0].metrics.values())


def test_lanes_end_when_they_hold_and_the_others_go_on() -> None:
    ended = train(make_pair(), TrialSpec(2, 0, 0.2), TrialSpec(200, 0, 0.2))
    easy, hard = (trial for trial, _ in ended.values())
    assert (easy.status, easy.metrics["f1"]) == (TrialStatus.HELD, 1.0)
    assert easy.steps < hard.steps
    assert hard.status in (TrialStatus.PLATEAU, TrialStatus.NOT_HELD)
    assert hard.metrics["f1"] < 0.99


class Branching(nn.Module):
    """Looks at values to decide what to do, which vmap does not allow."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.W = nn.Parameter(torch.randn(d, d))

    def forward(self, items: Tensor) -> Tensor:
        scores = items @ self.W @ items.T
        return scores if scores.sum().item() < 1e9 else scores / 2


class Straight(Branching):
    """The same without the question."""

    def forward(self, items: Tensor) -> Tensor:
        return items @ self.W @ items.T


class Made(Architecture):
    """A single matrix, in either form."""

    name: ClassVar[str] = "made"
    branching: bool = False

    def build(self, signature: Relation) -> nn.Module:
        return (Branching if self.branching else Straight)(signature.d_item)


def test_a_module_that_cannot_be_batched_is_trained_in_a_loop_with_a_warning() -> None:
    trials = [TrialSpec(20, seed, 0.05) for seed in range(3)]
    with pytest.warns(LoopFallback, match="made on rgr trains one model at a time"):
        looped = train(make_pair(architecture=Made(branching=True), steps=60), *trials)
    assert [looped[spec][0].steps for spec in trials] == [60] * 3 or all(
        t.status in (TrialStatus.PLATEAU, TrialStatus.NOT_HELD) for t, _ in looped.values()
    )


def test_the_loop_computes_what_vmap_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    trials = [TrialSpec(20, seed, 0.05) for seed in range(3)]
    setup = make_pair(architecture=Made(), steps=50)
    batched = train(setup, *trials)
    monkeypatch.setattr("capbench.engine.stack.vmap", _refuse)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LoopFallback)
        looped = train(setup, *trials)
    for spec in trials:
        assert torch.allclose(batched[spec][1]["W"], looped[spec][1]["W"], atol=1e-4)


def _refuse(_: object) -> object:
    raise RuntimeError("vmap is switched off here")


def test_a_criterion_that_must_come_down_is_met_from_above() -> None:
    class Lower(Rgr):
        criterion: ClassVar[Criterion] = Criterion("f1", 0.999, at_least=False)

    ended = train(make_pair(Lower(n_items=24, d_item=8)), TrialSpec(200, 0, 0.1))
    trial, _ = ended[TrialSpec(200, 0, 0.1)]
    assert (trial.status, trial.steps) == (TrialStatus.HELD, 25)


def test_groups_hold_trials_of_one_shape() -> None:
    setup = make_pair(Sequences())
    trials = [TrialSpec(load, seed, 0.1) for load in (3, 4, 5, 8, 100) for seed in range(5)]
    groups = group_trials((setup, trial) for trial in trials)
    assert sorted(trial.load for group in groups for trial in group.trials) == sorted(t.load for t in trials)
    assert {(group.slots, trial.load) for group in groups for trial in group.trials} == {
        (4, 3), (4, 4), (8, 5), (8, 8), (128, 100),
    }  # fmt: skip


def test_all_loads_of_a_relation_train_in_one_group() -> None:
    setup = make_pair()
    (group,) = group_trials((setup, TrialSpec(load, 0, 0.1)) for load in (3, 30, 270))
    assert [trial.load for trial in group.trials] == [3, 30, 270]
