"""A plain associative memory, the simplest baseline: one matrix, fixed keys, no attention."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from capbench import Architecture, Lookup, Recall, Signature, UnsupportedSignature, find_shapes, hookimpl
from capbench_plugins.attention import gaussian

MOST_WIDTH = 1024
MOST_KEY = MOST_WIDTH**2


class LinearMemory(Architecture):
    """Associative memory W = Σ v kᵀ, learned as one matrix on fixed keys.

    On sequences of tokens a key is the outer product of fixed random vectors, one per token; on relations
    the score of two items is x_i W x_jᵀ. The output is linear in W, so facts not held after training
    most likely cannot be held.
    """

    name: ClassVar[str] = "linear_memory"
    family: ClassVar[str] = "memory"

    d_model: int = Field(
        10, ge=1, le=MOST_WIDTH, description="width of a token's vector, on lookup tasks; a key of S tokens has d^S"
    )

    def build(self, signature: Signature) -> nn.Module:
        """The module for sequences of tokens or pairs of items."""
        if isinstance(signature, Recall):
            raise UnsupportedSignature(
                f"{self.name} joins two vectors; a recall task gives a whole context to each query"
            )
        if not isinstance(signature, Lookup):
            return RelationMatrix(signature.d_item)
        if self.d_model**signature.length > MOST_KEY:
            raise UnsupportedSignature(
                f"{self.name} has keys of width d_model^length up to {MOST_KEY:,}, "
                f"got {self.d_model}^{signature.length}; lower d_model"
            )
        return TokenMemory(signature, self.d_model)

    def widths(self, signature: Signature) -> tuple[str, ...]:
        """The width of a token's vector; on relations no width is free."""
        return ("d_model",) if isinstance(signature, Lookup) else ()

    def shapes(self, signature: Signature, n_parameters: int) -> Sequence[LinearMemory]:
        """The one width that has the count; on relations the matrix has the size of the items."""
        if not isinstance(signature, Lookup):
            return ()
        nearest = round((n_parameters / signature.n_classes) ** (1 / signature.length))
        return find_shapes(self, signature, n_parameters, {"d_model": range(max(nearest - 1, 1), nearest + 2)})


class TokenMemory(nn.Module):
    """Logits (x_1 ⊗ … ⊗ x_S) W: only W is trained; the tokens' Gaussian vectors x are fixed."""

    vectors: Tensor

    def __init__(self, signature: Lookup, d: int) -> None:
        super().__init__()
        self.signature = signature
        self.register_buffer("vectors", torch.randn(signature.n_tokens, d))
        S = signature.length
        self.W = gaussian(*(d,) * S, signature.n_classes, std=d ** (-S / 2))
        if S == 2:
            self.forward_grid = self.read_grid  # with two tokens, all pairs can be scored at once

    def forward(self, tokens: Tensor) -> Tensor:
        """(slots, length) tokens -> (slots, n_classes) logits."""
        key, *others = self.vectors[tokens].unbind(dim=1)  # (slots, d) each
        for x in others:
            key = (key.unsqueeze(-1) * x.unsqueeze(-2)).flatten(1)  # (slots, d²), …, (slots, d^length)
        return key @ self.W.flatten(0, -2)

    def read_grid(self) -> Tensor:
        """The logits of every pair, (n_combinations, n_classes); each first token is multiplied by W only once."""
        first, last = (self.vectors[start:stop] for start, stop in self.signature.spans)
        half = torch.einsum("kd,dec->kec", first, self.W)  # (first, d, n_classes)
        return (last @ half).flatten(0, 1)


class RelationMatrix(nn.Module):
    """Edge iff x_i W x_jᵀ exceeds a threshold: one head of full width."""

    def __init__(self, d_item: int) -> None:
        super().__init__()
        self.W = gaussian(d_item, d_item, std=1 / math.sqrt(d_item))
        self.threshold = nn.Parameter(torch.full((), 0.5))

    def forward(self, items: Tensor, contexts: Tensor | None = None) -> Tensor:
        """(items, d) vectors -> (items, items) scores, positive where an edge is predicted, in any context."""
        return items @ self.W @ items.mT - self.threshold


@hookimpl
def capbench_architectures() -> list[type[Architecture]]:
    """The associative memory."""
    return [LinearMemory]
