"""Attention whose scores are not learned: uniform over the positions so far, or random."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from capbench import Architecture, Signature, hookimpl
from capbench_plugins.attention import MOST_WIDTH, gaussian
from capbench_plugins.heads import HeadMixer, Layer, SoftmaxHeads


class UniformAttention(HeadMixer):
    """Attention without learned scores: what do queries and keys add? Values and outputs are learned.

    The ablation of the hand-coding challenge of Linsefors & Bushnaq 2026, where it holds as much as learned attention.
    """

    name: ClassVar[str] = "uniform_attention"
    family: ClassVar[str] = "attention"

    scores: Literal["uniform", "random"] = Field(
        "uniform", description="uniform: equal weights; random: queries and keys stay as drawn (n_heads and d_qk count)"
    )

    def mixer(self, d_model: int, length: int) -> nn.Module:
        """A layer of such heads."""
        if self.scores == "random":
            return RandomHeads(d_model, self.n_heads, self.d_qk, self.d_vo)
        return Mean(d_model, self.n_heads * self.d_vo)

    def state_size(self, signature: Signature, length: int) -> int | None:
        """With equal weights one sum of values per layer, else the keys and values of all positions."""
        if self.scores == "random" or self.read != "last":
            return super().state_size(signature, length)
        return self.n_layers * self.n_heads * self.d_vo

    def shape_grid(self, signature: Signature) -> dict[str, Sequence[Any]]:
        """With equal weights, streams of any width and values of several; else those of other heads."""
        grid = super().shape_grid(signature)
        if self.scores == "random":
            return grid
        own = {"d_model": range(1, MOST_WIDTH + 1), "d_vo": grid["d_qk+d_vo"], "n_heads": (1,)}
        return {**own, "init_scale": grid["init_scale"]}

    def is_useful(self, signature: Signature) -> bool:
        """With equal weights all heads are one, which needs no more than the width of the stream."""
        return super().is_useful(signature) and (self.scores == "random" or self.n_heads * self.d_vo <= self.d_model)


class Mean(Layer):
    """y_s = mean over r <= s of x_r W_V W_O."""

    def __init__(self, d: int, width: int) -> None:
        super().__init__()
        self.W_V, self.W_O = gaussian(d, width, std=1 / math.sqrt(d)), gaussian(width, d, std=1 / math.sqrt(width))

    def project(self, x: Tensor) -> tuple[Tensor, ...]:
        """The values, (batch, length, width)."""
        return (x @ self.W_V,)

    def mix(self, *parts: Tensor) -> Tensor:
        """The running mean."""
        (v,) = parts
        count = torch.arange(1, v.shape[1] + 1, device=v.device, dtype=v.dtype).unsqueeze(1)  # (length, 1)
        return v.cumsum(dim=1) / count @ self.W_O

    def mix_last(self, *parts: Tensor) -> Tensor:
        """The mean of all."""
        (v,) = parts
        return v.mean(dim=1) @ self.W_O

    def mix_pairs(self, first: tuple[Tensor, ...], last: tuple[Tensor, ...]) -> Tensor:
        """The mean of every pair of a first and a last token, (n, m, d)."""
        return (first[0] @ self.W_O + (last[0] @ self.W_O).transpose(0, 1)) / 2


class RandomHeads(SoftmaxHeads):
    """Softmax attention whose W_Q and W_K are not trained."""

    def __init__(self, d: int, n_heads: int, d_qk: int, d_vo: int) -> None:
        super().__init__(d, n_heads, d_qk, d_vo)
        for name in ("W_Q", "W_K"):
            drawn = getattr(self, name).detach()
            delattr(self, name)
            self.register_buffer(name, drawn)


@hookimpl
def capbench_architectures() -> list[type[Architecture]]:
    """Attention without learned scores."""
    return [UniformAttention]
