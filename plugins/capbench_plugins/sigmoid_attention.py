"""Attention with a sigmoid of each score: positions do not compete for weight."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor, nn

from capbench import Architecture, hookimpl
from capbench_plugins.heads import HeadMixer, SeparateHeads


class SigmoidAttention(HeadMixer):
    """Attention with weights sigmoid(s - ln n) in place of softmax (Ramapuram et al. 2024, arXiv 2409.04431)."""

    name: ClassVar[str] = "sigmoid_attention"
    family: ClassVar[str] = "attention"

    def mixer(self, d_model: int, length: int) -> nn.Module:
        """A layer of such heads."""
        return SigmoidHeads(d_model, self.n_heads, self.d_qk, self.d_vo)


class SigmoidHeads(SeparateHeads):
    """a_qk = sigmoid(s_qk - ln n), with n the number of positions."""

    def weigh(self, scores: Tensor, n: int) -> Tensor:
        """The weights of so many positions from their scores."""
        return torch.sigmoid(scores - math.log(n))


@hookimpl
def capbench_architectures() -> list[type[Architecture]]:
    """Attention with sigmoids."""
    return [SigmoidAttention]
