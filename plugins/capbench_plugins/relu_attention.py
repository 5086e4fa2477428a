"""Attention with a ReLU of each score: weights can be exactly zero, and positions do not compete."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor, nn
from torch.nn import functional as F

from capbench import Architecture, hookimpl
from capbench_plugins.heads import HeadMixer, SeparateHeads


class ReluAttention(HeadMixer):
    """Attention with weights ReLU(s) / n in place of softmax (Wortsman et al. 2023, arXiv 2309.08586)."""

    name: ClassVar[str] = "relu_attention"
    family: ClassVar[str] = "attention"

    def mixer(self, d_model: int, length: int) -> nn.Module:
        """A layer of such heads."""
        return ReluHeads(d_model, self.n_heads, self.d_qk, self.d_vo)


class ReluHeads(SeparateHeads):
    """a_qk = ReLU(s_qk) / n, with n the number of positions."""

    def weigh(self, scores: Tensor, n: int) -> Tensor:
        """The weights of so many positions from their scores."""
        return F.relu(scores) / n


@hookimpl
def capbench_architectures() -> list[type[Architecture]]:
    """Attention with ReLUs."""
    return [ReluAttention]
