"""A tensor of low rank as a model: what is the least rank that answers every stored pair rightly?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

from pydantic import Field
from torch import Tensor, nn

from capbench import Architecture, Lookup, Signature, UnsupportedSignature, find_shapes, hookimpl
from capbench_plugins.attention import gaussian

MOST_RANK = 4096


class LowRank(Architecture):
    """Logits Σ_r A[k, r] B[q, r] C[r, v] of two tokens k and q: any tensor of rank at most R.

    The least R that holds a database is an estimate of its effective rank (Wong 2025, arXiv 2502.05076) from above: the
    lowest rank of any tensor that is right on the stored pairs, whatever it says of the others.
    """

    name: ClassVar[str] = "low_rank"
    family: ClassVar[str] = "memory"

    rank: int = Field(8, ge=1, le=MOST_RANK, description="R: terms of the tensor")

    def build(self, signature: Signature) -> nn.Module:
        """The module for pairs of tokens."""
        if not isinstance(signature, Lookup) or signature.length != 2:
            raise UnsupportedSignature(f"{self.name} multiplies two tokens; capbench list shows what fits")
        return RankTerms(signature, self.rank)

    def widths(self, signature: Signature) -> tuple[str, ...]:
        """The rank."""
        return ("rank",)

    def shapes(self, signature: Signature, n_parameters: int) -> Sequence[LowRank]:
        """The one rank that has the count."""
        return find_shapes(self, signature, n_parameters, {"rank": range(1, MOST_RANK + 1)})


class RankTerms(nn.Module):
    """(A[k] ⊙ B[q]) C with one row of A or B for each token at its position."""

    def __init__(self, signature: Lookup, rank: int) -> None:
        super().__init__()
        (self.first, stop), (self.last, end) = signature.spans
        self.A = gaussian(stop - self.first, rank, std=1.0)
        self.B = gaussian(end - self.last, rank, std=1.0)
        self.C = gaussian(rank, signature.n_classes, std=1 / math.sqrt(rank))

    def forward(self, tokens: Tensor) -> Tensor:
        """(slots, 2) tokens -> (slots, n_classes) logits."""
        return (self.A[tokens[:, 0] - self.first] * self.B[tokens[:, 1] - self.last]) @ self.C

    def forward_grid(self) -> Tensor:
        """The logits of every pair, (n_combinations, n_classes)."""
        return ((self.A.unsqueeze(1) * self.B) @ self.C).flatten(0, 1)


@hookimpl
def capbench_architectures() -> list[type[Architecture]]:
    """The tensor of low rank."""
    return [LowRank]
