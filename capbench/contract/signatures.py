"""Signatures: the shapes of a task's inputs and outputs, which an architecture is built for.

A signature may be subclassed: the core asks it for its shapes.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from torch import Tensor

Shape = tuple[int, ...]


class Shaped(ABC):
    """What the core asks a signature."""

    takes_tokens: ClassVar[bool] = False
    """Whether the inputs are int64 tokens."""
    has_slots: ClassVar[bool] = True
    """Whether inputs, targets and mask have one row per fact; False where their shape does not depend on the load."""

    @property
    def n_combinations(self) -> int:
        """The number of different inputs; 0 where they cannot be counted."""
        return 0

    @abstractmethod
    def input_shapes(self, slots: int) -> list[Shape]:
        """The shape of each input of `forward`, with room for so many facts."""

    @abstractmethod
    def output_shape(self, slots: int) -> Shape:
        """The shape of the outputs."""

    def output_shapes(self, slots: int) -> list[Shape]:
        """The shapes that outputs may have, the usual one first."""
        return [self.output_shape(slots)]


@dataclass(frozen=True)
class Lookup(Shaped):
    """(slots, length) int64 tokens -> (slots, n_classes) logits."""

    takes_tokens: ClassVar[bool] = True

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

    @property
    def n_reads(self) -> int:
        """How many of the last positions are answered; with more than one, outputs are (slots, n_reads, n_classes)."""
        return 1

    def input_shapes(self, slots: int) -> list[Shape]:
        """The tokens."""
        return [(slots, self.length)]

    def output_shape(self, slots: int) -> Shape:
        """The logits."""
        return (slots, self.n_classes) if self.n_reads == 1 else (slots, self.n_reads, self.n_classes)

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
class Recall(Shaped):
    """(slots or 1, n_context, d_input) contexts and (slots, d_input) queries -> (slots, n_classes) logits.

    A context that all examples share comes once, with a leading size of 1, to be broadcast.
    n_classes = 1 is regression: the single output is the predicted value.
    """

    n_context: int
    d_input: int
    n_classes: int
    shared_context: bool = False

    def input_shapes(self, slots: int) -> list[Shape]:
        """The contexts and the queries."""
        n_contexts = 1 if self.shared_context else slots
        return [(n_contexts, self.n_context, self.d_input), (slots, self.d_input)]

    def output_shape(self, slots: int) -> Shape:
        """The logits."""
        return slots, self.n_classes


@dataclass(frozen=True)
class Relation(Shaped):
    """(n_items, d_item) vectors -> (n_items, n_items) scores; an edge from i to j iff scores[i, j] > 0.

    With contexts, a second input of shape (n_contexts, n_items) is 1 where a context has an item, else 0. Scores that
    depend on the context are (n_contexts, n_items, n_items), others (n_items, n_items) as without contexts.
    """

    has_slots: ClassVar[bool] = False

    n_items: int
    d_item: int
    n_contexts: int = 0

    def input_shapes(self, slots: int) -> list[Shape]:
        """The items, whatever the load, and the contexts where there are any."""
        contexts = [(self.n_contexts, self.n_items)] if self.n_contexts else []
        return [(self.n_items, self.d_item), *contexts]

    def output_shape(self, slots: int) -> Shape:
        """The scores of all ordered pairs, whatever the load."""
        return self.n_items, self.n_items

    def output_shapes(self, slots: int) -> list[Shape]:
        """The scores of all ordered pairs; in each context, where they depend on it."""
        pairs = self.output_shape(slots)
        return [pairs, *([(self.n_contexts, *pairs)] if self.n_contexts else [])]


Signature = Lookup | Recall | Relation
