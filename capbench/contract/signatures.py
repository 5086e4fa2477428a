"""Signatures: the shapes of a task's inputs and outputs, which an architecture is built for."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Lookup:
    """(slots, length) int64 tokens -> (slots, n_classes) logits."""

    n_tokens: int
    length: int
    n_classes: int
    ranges: tuple[tuple[int, int], ...] | None = None
    """The half-open range of tokens at each position; None where any token may be anywhere."""

    @property
    def spans(self) -> tuple[tuple[int, int], ...]:
        """The range of tokens at each position."""
        return self.ranges or ((0, self.n_tokens),) * self.length

    @property
    def n_combinations(self) -> int:
        """The number of different inputs."""
        return math.prod([stop - start for start, stop in self.spans])  # a list: torch.compile traces no generators

    def grid(self) -> Tensor:
        """Every input, (n_combinations, length), the last position changing fastest."""
        import torch

        return torch.cartesian_prod(*(torch.arange(*span) for span in self.spans)).view(-1, self.length)

    def rows(self, tokens: Tensor) -> Tensor:
        """The row of `grid` that holds each of (…, length) inputs."""
        row = tokens[..., 0] - self.spans[0][0]
        for (start, stop), token in zip(self.spans[1:], tokens.unbind(-1)[1:], strict=True):
            row = row * (stop - start) + token - start
        return row


@dataclass(frozen=True)
class Recall:
    """(slots or 1, n_context, d_input) contexts and (slots, d_input) queries -> (slots, n_classes) logits.

    A context that all examples share comes once, with a leading size of 1, to be broadcast.
    n_classes = 1 is regression: the single output is the predicted value.
    """

    n_context: int
    d_input: int
    n_classes: int
    shared_context: bool = False


@dataclass(frozen=True)
class Relation:
    """(n_items, d_item) vectors -> (n_items, n_items) scores; an edge from i to j iff scores[i, j] > 0."""

    n_items: int
    d_item: int


Signature = Lookup | Recall | Relation
