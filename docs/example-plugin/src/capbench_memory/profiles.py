"""Profiles: attributes of people, looked up by first name, last name and attribute."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

import torch
from pydantic import Field, model_validator
from torch import Generator, Tensor
from torch.nn import functional as F

from capbench import Criterion, LoadOutOfRange, Lookup, Problem, Recipe, Task, hookimpl


class Profiles(Task):
    """Remember the attributes of people. A fact is one attribute of one person."""

    name: ClassVar[str] = "profiles"
    fact: ClassVar[str] = "attribute"
    criterion: ClassVar[Criterion] = Criterion("accuracy", 0.99)
    recipe: ClassVar[Recipe] = Recipe(learning_rates=(0.01, 0.03, 0.1), steps=1000)
    presets: ClassVar = {"smoke": {"n_names": 8, "n_people": 32, "n_attributes": 4}}

    n_names: int = Field(32, ge=1, le=1024, description="number of first names, and of last names")
    n_people: int = Field(256, ge=1, le=65536, description="number of people; no two have the same pair of names")
    n_attributes: int = Field(6, ge=1, le=1024, description="number of attributes per person")
    n_values: int = Field(8, ge=2, le=65536, description="number of values that an attribute can take")

    @model_validator(mode="after")
    def _names_are_enough(self) -> Profiles:
        if self.n_people > self.n_names**2:
            raise ValueError(f"n_names² must reach n_people, got {self.n_names}² < {self.n_people}; raise n_names")
        return self

    @property
    def signature(self) -> Lookup:
        """The sequence "first last attribute", with different tokens at each position."""
        last, attribute = self.n_names, 2 * self.n_names
        n_tokens = attribute + self.n_attributes
        return Lookup(n_tokens, 3, self.n_values, ((0, last), (last, attribute), (attribute, n_tokens)))

    @property
    def max_load(self) -> int:
        """All attributes of all people."""
        return self.n_people * self.n_attributes

    def problem(self, load: int, slots: int, generator: Generator) -> Problem:
        """`load` attributes, person by person; in grid order where there is one slot per row of the grid."""
        if not 1 <= load <= min(self.max_load, slots):
            raise LoadOutOfRange(f"{self.n_people} people have 1 to {self.max_load} attributes, got {load}")
        person = torch.randperm(self.n_names**2, generator=generator)[: self.n_people]  # one pair of names each
        values = torch.randint(self.n_values, (self.max_load,), generator=generator)[:load]
        fact = torch.arange(load)
        row = person[fact // self.n_attributes] * self.n_attributes + fact % self.n_attributes  # of the grid
        if slots < self.signature.n_combinations:
            rows, slot = torch.cat([row, row.new_zeros(slots - load)]), fact  # facts first, then padding
        else:
            rows, slot = torch.arange(slots), row
        targets = torch.zeros(slots, dtype=torch.int64).index_copy(0, slot, values)
        return Problem((self._tokens(rows),), targets, torch.zeros(slots).index_fill(0, slot, 1.0))

    def _tokens(self, rows: Tensor) -> Tensor:
        """The sequences at these rows of `Lookup.grid()`, (slots, 3)."""
        first, rest = rows // (self.n_names * self.n_attributes), rows % (self.n_names * self.n_attributes)
        last, attribute = rest // self.n_attributes, rest % self.n_attributes
        return torch.stack([first, self.n_names + last, 2 * self.n_names + attribute], dim=1)

    def loss(self, outputs: Tensor, problem: Problem) -> Tensor:
        """Mean cross-entropy over the facts."""
        return _mean(F.cross_entropy(outputs, problem.targets, reduction="none"), problem.mask)

    def metrics(self, outputs: Tensor, problem: Problem) -> dict[str, Tensor]:
        """Share of right answers, and the bits saved against guessing."""
        is_right = (outputs.argmax(dim=-1) == problem.targets).to(outputs.dtype)
        nats = math.log(self.n_values) - F.cross_entropy(outputs, problem.targets, reduction="none")  # (slots,)
        bits = (nats * problem.mask).sum() / math.log(2)
        return {"accuracy": _mean(is_right, problem.mask), "bits": bits.clamp(min=0.0)}

    def facts_held(self, metrics: Mapping[str, float], load: int) -> float | None:
        """Attributes known, assuming that the model guesses all others."""
        chance = 1 / self.n_values
        return load * max(0.0, (metrics["accuracy"] - chance) / (1 - chance))


def _mean(values: Tensor, mask: Tensor) -> Tensor:
    """Mean over the facts, weighted by the mask."""
    return (values * mask).sum() / mask.sum()


@hookimpl
def capbench_tasks() -> list[type[Task]]:
    """The task of this module."""
    return [Profiles]
