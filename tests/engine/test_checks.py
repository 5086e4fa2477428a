"""Modules that behave differently in training are refused with the reason."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from capbench.contract.task import Problem
from capbench.engine.checks import refuse_training_state
from capbench.errors import ChangesInTraining

PROBLEM = Problem((torch.randn(4, 3, generator=torch.Generator().manual_seed(0)),), torch.zeros(4), torch.ones(4))


class Noisy(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + torch.randn_like(x) if self.training else x


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x


@pytest.mark.parametrize("module", [nn.Dropout(0.5), nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.1)), Noisy()])
def test_randomness_in_training_is_refused(module: nn.Module) -> None:
    with pytest.raises(ChangesInTraining, match=r"must not be random in training.* two calls of mine differ: remove"):
        refuse_training_state(module, PROBLEM, "mine")


@pytest.mark.parametrize(("module", "buffer"), [(nn.BatchNorm1d(3), "running_mean"), (Counting(), "calls")])
def test_buffers_that_change_are_refused(module: nn.Module, buffer: str) -> None:
    before = {name: tensor.clone() for name, tensor in module.named_buffers()}
    with pytest.raises(ChangesInTraining, match=f"must not change its buffers.* mine changes {buffer}: normalise"):
        refuse_training_state(module, PROBLEM, "mine")
    assert all(torch.equal(before[name], tensor) for name, tensor in module.named_buffers())


@pytest.mark.parametrize(
    "module", [nn.Dropout(0.0), nn.LayerNorm(3), nn.BatchNorm1d(3, track_running_stats=False), nn.Linear(5, 3)]
)
def test_other_modules_pass_and_errors_of_forward_are_left_to_training(module: nn.Module) -> None:
    state = torch.random.get_rng_state()
    refuse_training_state(module, PROBLEM, "mine")
    assert torch.equal(torch.random.get_rng_state(), state)
