"""The perceptron: a hyperplane through the origin, whose capacity is known exactly."""

from __future__ import annotations

import math
from typing import ClassVar

from torch import Tensor, nn

from capbench import Architecture, Recall, Signature, UnsupportedSignature, hookimpl
from capbench_plugins.attention import gaussian


class Perceptron(Architecture):
    """A hyperplane through the origin: the score of a query is w·x, with one weight per coordinate."""

    name: ClassVar[str] = "perceptron"
    family: ClassVar[str] = "mlp"

    def build(self, signature: Signature) -> nn.Module:
        """The module for queries that get a single score."""
        if not isinstance(signature, Recall) or signature.n_classes != 1:
            raise UnsupportedSignature("perceptron gives a query one score, as dichotomies asks")
        return Hyperplane(signature.d_input)


class Hyperplane(nn.Module):
    """Scores w·x of the queries; the contexts are not read."""

    def __init__(self, d_input: int) -> None:
        super().__init__()
        self.w = gaussian(d_input, std=1 / math.sqrt(d_input))

    def forward(self, contexts: Tensor, queries: Tensor) -> Tensor:
        """(slots, d) queries -> (slots, 1) scores."""
        return (queries @ self.w).unsqueeze(1)


@hookimpl
def capbench_architectures() -> list[type[Architecture]]:
    """The perceptron."""
    return [Perceptron]
