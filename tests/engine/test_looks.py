"""Looks whose numbers arrive late, as on CUDA, give the same records as looks that are read at once."""

from __future__ import annotations

import pytest
import torch

from capbench.engine import train as training
from capbench.engine.lanes import LaneGroup, Pair, Training, TrialSpec
from capbench.engine.looks import Looks
from capbench.provenance import Provenance
from capbench.settings import Configured
from capbench_plugins.adam import Adam
from capbench_plugins.mha import Mha
from capbench_tasks.rgr import Rgr

TRIALS = tuple(TrialSpec(load, seed, 0.2) for load in (2, 30, 120, 200) for seed in range(3))


def ended(steps: int):
    task = Rgr(n_items=24, d_item=8)
    plugins = (Configured(p, Provenance("t", "t", "0", "t"), "-") for p in (task, Mha(), Adam()))
    pair, found = Pair(*plugins, Training(task.criterion, steps)), {}
    training.train_group(
        LaneGroup(pair, 256, TRIALS), torch.device("cpu"), lambda t, w: found.setdefault(t.key, (t, w)), lambda *_: None
    )
    return found


@pytest.mark.parametrize("steps", [200, 210])
def test_late_looks_give_the_same_trials_and_weights(steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    at_once = ended(steps)
    monkeypatch.setattr(training, "Looks", lambda is_late: Looks(is_late=True))
    late = ended(steps)
    assert late.keys() == at_once.keys()
    assert len({trial.steps for trial, _ in at_once.values()}) > 1  # some end early, so that lateness matters
    for key, (trial, weights) in at_once.items():
        assert late[key][0] == trial
        assert all(torch.equal(late[key][1][name], w) for name, w in weights.items())
