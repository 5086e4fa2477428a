"""Evaluations whose numbers arrive late, as on CUDA, give the same records as those that are read at once."""

from __future__ import annotations

import pytest
import torch

from capbench.engine import train as training
from capbench.engine.evaluation import PendingEvaluations
from capbench.engine.trials import Setup, Training, TrialGroup, TrialSpec
from capbench.registry.provenance import Provenance
from capbench.registry.settings import Configured
from capbench_plugins.adam import Adam
from capbench_plugins.mha import Mha
from capbench_tasks.rgr import Rgr

TRIALS = tuple(TrialSpec(load, seed, 0.2) for load in (2, 30, 120, 200) for seed in range(3))


def ended(steps: int):
    task = Rgr(n_items=24, d_item=8)
    plugins = (Configured(p, Provenance("t", "t", "0", "t"), "-") for p in (task, Mha(), Adam()))
    setup, found = Setup(*plugins, Training(task.criterion, steps)), {}
    training.train_group(
        TrialGroup(setup, 256, TRIALS),
        torch.device("cpu"),
        lambda _: None,
        lambda *_: None,
        on_weights=lambda t, w: found.setdefault(t.key, (t, w)),
    )
    return found


@pytest.mark.parametrize("steps", [200, 210])
def test_late_evaluations_give_the_same_trials_and_weights(steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    at_once = ended(steps)
    monkeypatch.setattr(training, "PendingEvaluations", lambda _, keeps: PendingEvaluations(True, keeps))
    late = ended(steps)
    assert late.keys() == at_once.keys()
    assert len({trial.steps for trial, _ in at_once.values()}) > 1  # some end early, so that lateness matters
    for key, (trial, weights) in at_once.items():
        assert late[key][0] == trial
        assert all(torch.equal(late[key][1][name], w) for name, w in weights.items())
