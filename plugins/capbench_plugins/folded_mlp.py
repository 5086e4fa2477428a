"""The smallest MLP on tokens: an embedding of each token is its part of the hidden layer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from capbench import Architecture, Lookup, Signature, find_shapes, hookimpl
from capbench_plugins.aot import require_lookup
from capbench_plugins.attention import gaussian

MOST_HIDDEN = 65536


class FoldedMlp(Architecture):
    """ReLU MLP on added embeddings, folded: 5 d² weights for 2d tokens per place and d labels at width d.

    The model of the hand-coding challenge of Linsefors & Bushnaq 2026. It has no biases, and an embedding per position.
    """

    name: ClassVar[str] = "folded_mlp"
    family: ClassVar[str] = "mlp"

    d_mlp: int = Field(16, ge=1, le=MOST_HIDDEN, description="hidden width")

    def build(self, signature: Signature) -> nn.Module:
        """The module for a lookup task."""
        return FoldedTokens(require_lookup(signature, self.name), self.d_mlp)

    def shapes(self, signature: Signature, n_parameters: int) -> Sequence[FoldedMlp]:
        """The one width that has the count."""
        return find_shapes(self, signature, n_parameters, {"d_mlp": range(1, MOST_HIDDEN + 1)})


class FoldedTokens(nn.Module):
    """ReLU(Σ_s E_s[t_s]) W."""

    def __init__(self, signature: Lookup, d_mlp: int) -> None:
        super().__init__()
        self.signature = signature
        std = 1 / math.sqrt(signature.length)
        self.E = nn.ParameterList(gaussian(stop - start, d_mlp, std=std) for start, stop in signature.spans)
        self.W = gaussian(d_mlp, signature.n_classes, std=1 / math.sqrt(d_mlp))
        if signature.length == 2:
            self.forward_grid = self.read_grid  # with two tokens, all pairs can be scored at once

    def forward(self, tokens: Tensor) -> Tensor:
        """(slots, length) tokens -> (slots, n_classes) logits."""
        starts = [start for start, _ in self.signature.spans]
        parts = [E[t - start] for E, t, start in zip(self.E, tokens.unbind(1), starts, strict=True)]
        z = parts[0]  # (slots, d_mlp)
        for part in parts[1:]:
            z = z + part
        return F.relu(z) @ self.W

    def read_grid(self) -> Tensor:
        """The logits of every pair of tokens, (n_combinations, n_classes), without looking tokens up."""
        first, last = self.E
        return F.relu(first.unsqueeze(1) + last).flatten(0, 1) @ self.W


@hookimpl
def capbench_architectures() -> list[type[Architecture]]:
    """The folded MLP."""
    return [FoldedMlp]
