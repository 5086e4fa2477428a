"""Tasks: problems of a given load, and how a model's outputs on them are scored."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from pydantic import ConfigDict

from capbench.contract.plugin import Plugin

if TYPE_CHECKING:
    from torch import Generator, Tensor

    from capbench.contract.signatures import Signature


@dataclass(frozen=True)
class Criterion:
    """When a trial counts as holding its facts."""

    # A part of the result document, which is read strictly.
    __pydantic_config__ = ConfigDict(extra="forbid", allow_inf_nan=False, revalidate_instances="always")

    metric: str
    threshold: float
    at_least: bool = True
    """True where the metric must reach the threshold from below; False where it must come down to it."""

    def is_met(self, value: float) -> bool:
        """Whether a value of the metric holds the facts; NaN never does."""
        return value >= self.threshold if self.at_least else value <= self.threshold

    def shortfall(self, value: float) -> float:
        """Share by which a value misses the threshold: 0 where it is met, 1 at worst."""
        part, whole = (value, self.threshold) if self.at_least else (self.threshold, value)
        share = part / whole if whole > 0 else 0.0
        return 0.0 if self.is_met(value) else min(max(1.0 - share, 0.0), 1.0)

    def __str__(self) -> str:
        return f"{self.metric} {'≥' if self.at_least else '≤'} {self.threshold:g}"


@dataclass(frozen=True)
class Recipe:
    """Defaults of gradient training on a task."""

    learning_rates: tuple[float, ...] = (0.003, 0.01, 0.03)
    steps: int = 1000


class Problem(NamedTuple):
    """One set of facts."""

    inputs: tuple[Tensor, ...]
    targets: Tensor
    mask: Tensor
    """Floating-point weight of each slot: 0 for padding beyond the load.

    A training batch is the same problem with a mask that counts how often each fact was drawn.
    """


class Task(Plugin):
    """Makes problems of any load up to `max_load` and scores a model's outputs on them.

    `loss` and `metrics` see one problem; the engine batches them over many models with vmap, so they may not branch
    on the values of tensors.
    """

    fact: ClassVar[str] = "fact"
    """What one fact is called: an edge, a triple, an example."""
    scoring_fields: ClassVar[frozenset[str]] = frozenset()
    """Fields that change the scoring but not the facts: the data of a seed do not depend on them."""

    @property
    @abstractmethod
    def criterion(self) -> Criterion:
        """When a trial holds its facts. May be a ClassVar where it does not depend on the fields."""

    @property
    def recipe(self) -> Recipe:
        """Learning rates and steps that the user did not set. May be a ClassVar too."""
        return Recipe()

    @property
    @abstractmethod
    def signature(self) -> Signature:
        """The shape of the problems."""

    @property
    @abstractmethod
    def max_load(self) -> int:
        """The largest number of facts of a problem."""

    @property
    def typical_load(self) -> int:
        """The load used where one is needed and the user gives none."""
        return self.max_load

    @abstractmethod
    def problem(self, load: int, slots: int, generator: Generator) -> Problem:
        """`load` facts drawn from `generator` alone; the same facts for any number of slots.

        On a lookup task with as many slots as token combinations, the facts are in the order of `Lookup.grid()`: a
        module that defines `forward_grid` can then compute all outputs at once.
        """

    @abstractmethod
    def loss(self, outputs: Tensor, problem: Problem) -> Tensor:
        """What training minimises: a 0-d tensor."""

    @abstractmethod
    def metrics(self, outputs: Tensor, problem: Problem) -> dict[str, Tensor]:
        """0-d scores by name: at least the criterion's metric and "bits"."""

    def facts_held(self, metrics: Mapping[str, float], load: int) -> float | None:
        """Facts held by an overloaded model, from a trial's metrics; None where the task does not measure them."""
        return None

    def analyse(self, outputs: Tensor, problem: Problem) -> dict[str, float]:
        """Measurements of a trained model, made on request and outside vmap.

        On a lookup task `outputs` are the logits of the whole grid of inputs, else those of the problem.
        """
        return {}

    def examine(self, problem: Problem) -> dict[str, float]:
        """Measurements of the generated data, for the record; made outside vmap."""
        return {}
