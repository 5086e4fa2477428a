"""PairAssociations: which of n values belongs to this key?

Barnfield, Kim, Nichani, Lee & Lu, "Sharp Capacity Thresholds in Linear Associative Memory", arXiv 2605.05189.
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from pydantic import Field
from torch import Generator, Tensor
from torch.nn import functional as F

from capbench import Criterion, LoadOutOfRange, Problem, Recipe, Relation, Task, hookimpl


class PairAssociations(Task):
    """Find the value of each key among the values of all keys. A fact is one pair of random vectors.

    Keys and values are Gaussian vectors; the value of a key must have the largest score of all values.
    """

    name: ClassVar[str] = "associations"
    fact: ClassVar[str] = "pair"
    criterion: ClassVar[Criterion] = Criterion("accuracy", 1.0)
    recipe: ClassVar[Recipe] = Recipe(learning_rates=(0.3, 1.0, 3.0), steps=1000)
    presets: ClassVar = {"smoke": {"n_pairs": 48, "d_item": 8}}

    d_item: int = Field(16, ge=1, le=4096, description="d: width of a key and of a value")
    n_pairs: int = Field(96, ge=1, le=8192, description="the largest load; there are twice as many items")

    @property
    def signature(self) -> Relation:
        """Keys, then as many values, as items; scores of ordered pairs out."""
        return Relation(2 * self.n_pairs, self.d_item)

    @property
    def max_load(self) -> int:
        """`n_pairs`."""
        return self.n_pairs

    def problem(self, load: int, slots: int, generator: Generator) -> Problem:
        """`load` keys, the first items, and their values, at the same places of the second half of the items.

        The targets are 1 where a key meets its value. The mask has the rows of keys and the columns of values in use.
        """
        if not 1 <= load <= self.max_load:
            raise LoadOutOfRange(f"associations has 1 to {self.max_load} pairs, got {load}; raise n_pairs")
        n_items = 2 * self.n_pairs
        items = torch.randn(n_items, self.d_item, generator=generator) / math.sqrt(self.d_item)
        place = torch.arange(n_items)
        is_value = (place >= self.n_pairs) & (place < self.n_pairs + load)
        mask = (place < load).float().unsqueeze(1) * is_value.float()  # (items, items)
        return Problem((items,), torch.diag(torch.ones(self.n_pairs), self.n_pairs) * mask, mask)

    def loss(self, outputs: Tensor, problem: Problem) -> Tensor:
        """Mean cross-entropy of the right value among all values."""
        is_key = problem.mask.amax(dim=1)
        return (self._losses(outputs, problem) * is_key).sum() / is_key.sum()

    def metrics(self, outputs: Tensor, problem: Problem) -> dict[str, Tensor]:
        """Share of keys whose own value has the largest score, and the bits stored against guessing a value."""
        is_key = problem.mask.amax(dim=1)  # (items,)
        chosen = self._scores(outputs, problem).argmax(dim=1, keepdim=True)  # (items, 1)
        is_right = problem.targets.gather(1, chosen).squeeze(1)  # (items,)
        bits = (torch.log(is_key.sum()) - self._losses(outputs, problem)) / math.log(2)
        return {
            "accuracy": (is_right * is_key).sum() / is_key.sum(),
            "bits": (bits * is_key).sum().clamp(min=0.0),
        }

    def _scores(self, outputs: Tensor, problem: Problem) -> Tensor:
        """Scores of the values in use, far below them for all other items, (items, items)."""
        is_value = problem.mask.amax(dim=0)  # (items,)
        return torch.where(is_value > 0, outputs, torch.finfo(outputs.dtype).min / 2)

    def _losses(self, outputs: Tensor, problem: Problem) -> Tensor:
        """Cross-entropy of each key's value in nats, (items,), where "none of them" has a score of 0.

        Without that score a threshold common to all pairs would have no effect, and Adam would follow rounding errors.
        """
        scores = self._scores(outputs, problem)
        right = torch.where(problem.targets > 0, scores, 0.0).sum(dim=1)
        return F.softplus(torch.logsumexp(scores, dim=1)) - right


@hookimpl
def capbench_tasks() -> list[type[Task]]:
    """PairAssociations."""
    return [PairAssociations]
