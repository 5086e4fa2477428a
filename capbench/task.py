"""Tasks: problems of a given load, and how answers are scored."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from capbench.plugin import Plugin

if TYPE_CHECKING:
    from torch import Generator, Tensor

    from capbench.signatures import Signature


@dataclass(frozen=True)
class Criterion:
    """When a trial counts as holding its facts."""

    metric: str
    threshold: float
    at_least: bool = True
    """True where a higher metric is better; False where the metric must come down to the threshold."""

    def __str__(self) -> str:
        return f"{self.metric} {'≥' if self.at_least else '≤'} {self.threshold:g}"


@dataclass(frozen=True)
class Recipe:
    """How gradient training on a task is started when the user does not say."""

    learning_rates: tuple[float, ...] = (0.003, 0.01, 0.03)
    steps: int = 1000


class Problem(NamedTuple):
    """One set of facts."""

    inputs: tuple[Tensor, ...]
    targets: Tensor
    mask: Tensor
    """How much each slot counts, as floating-point weights: 0 where slots are filled up beyond the load.

    A training batch is the same problem with a mask that counts how often each fact was drawn.
    """


class Task(Plugin):
    """Makes problems of any load up to `max_load` and scores a model's outputs on them.

    `loss` and `metrics` see one problem; the engine batches them over many models with vmap, so
    they may not branch on the values of tensors.
    """

    fact: ClassVar[str] = "fact"
    """What one fact is called: an edge, a triple, an example."""
    scoring_fields: ClassVar[frozenset[str]] = frozenset()
    """Fields that change how answers are scored but not the facts: a seed means the same data whatever they are."""

    @property
    @abstractmethod
    def criterion(self) -> Criterion:
        """When a trial holds its facts. A ClassVar will do where it does not depend on the fields."""

    @property
    def recipe(self) -> Recipe:
        """How training starts when the user does not say. A ClassVar will do here too."""
        return Recipe()

    @property
    @abstractmethod
    def signature(self) -> Signature:
        """The shape of the problems."""

    @property
    @abstractmethod
    def max_load(self) -> int:
        """The largest number of facts that a problem can have."""

    @property
    def typical_load(self) -> int:
        """The load asked for where one is needed and the user names none."""
        return self.max_load

    @abstractmethod
    def problem(self, load: int, slots: int, generator: Generator) -> Problem:
        """`load` facts drawn from `generator` alone; the same facts whatever the number of slots.

        On a lookup task with as many slots as token combinations, the facts stand in the order of
        `Lookup.grid()`: a module that defines `forward_grid` can then score them all at once.
        """

    @abstractmethod
    def loss(self, outputs: Tensor, problem: Problem) -> Tensor:
        """What training makes small: a 0-d tensor."""

    @abstractmethod
    def metrics(self, outputs: Tensor, problem: Problem) -> dict[str, Tensor]:
        """0-d scores by name: the criterion's metric and "bits" at least."""

    def facts_held(self, metrics: Mapping[str, float], load: int) -> float | None:
        """Facts held by an overloaded model, read off a trial's metrics; None: this task has no such reading."""
        return None

    def analyse(self, outputs: Tensor, problem: Problem) -> dict[str, float]:
        """What can be said of a trained model itself, on request; outside vmap.

        On a lookup task `outputs` are the logits of the whole grid of inputs, else those of the problem.
        """
        return {}

    def examine(self, problem: Problem) -> dict[str, float]:
        """What can be said of the generated data itself, for the record; outside vmap."""
        return {}
