"""Tasks: problems of a given load, and how a model's outputs on them are scored."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from pydantic import ConfigDict

from capbench.contract.plugin import Plugin
from capbench.contract.signatures import Lookup, Relation
from capbench.errors import LoadOutOfRange

if TYPE_CHECKING:
    from torch import Generator, Tensor

    from capbench.contract.architecture import Architecture
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


class Facts(NamedTuple):
    """Just the facts of a problem: one row per fact, without padding."""

    inputs: tuple[Tensor, ...]
    targets: Tensor
    weights: Tensor | None = None
    """The weight of each fact in the mask; 1 by default."""


class Task(Plugin):
    """Makes problems of any load up to `max_load` and scores a model's outputs on them.

    A task implements `facts`, or `problem` where it wants to arrange the slots itself.

    `loss` and `metrics` see one problem; the engine batches them over many models with vmap, so they may not branch
    on the values of tensors.
    """

    fact: ClassVar[str] = "fact"
    """What one fact is called: an edge, a triple, an example."""
    scoring_fields: ClassVar[frozenset[str]] = frozenset()
    """Fields that change the scoring but not the facts: the data of a seed do not depend on them."""
    is_fresh: ClassVar[bool] = False
    """Whether facts are in the context: each step then trains on new examples, and `problem` is only scored."""

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

    def facts(self, load: int, generator: Generator) -> Facts:
        """`load` facts drawn from `generator` alone; the engine pads them, masks the padding and orders the grid.

        A shared context has one row. On a relation task inputs and targets have the shapes of the items.
        """
        raise NotImplementedError(f"{self.name} must define facts(load, generator), or problem")

    def follow(self, architecture: Architecture) -> dict[str, Any]:
        """Values for fields that the user left open and that follow the architecture; none by default."""
        return {}

    def problem(self, load: int, slots: int, generator: Generator) -> Problem:
        """`load` facts drawn from `generator` alone; the same facts for any number of slots.

        On a lookup task with as many slots as token combinations, the facts are in the order of `Lookup.grid()`: a
        module that defines `forward_grid` can then compute all outputs at once.
        """
        if not 1 <= load <= self.max_load:
            raise LoadOutOfRange(f"{self.name} has 1 to {self.max_load} {self.fact}s, got {load}")
        return _arranged(self.facts(load, generator), self.signature, slots)

    def fresh(self, load: int, generator: Generator) -> Problem:
        """What one step trains on where the task `is_fresh`, drawn from `generator` alone; always of equal shapes."""
        raise NotImplementedError(f"{self.name} must define fresh(load, generator), because it says is_fresh")

    @abstractmethod
    def loss(self, outputs: Tensor, problem: Problem) -> Tensor:
        """What training minimises: a 0-d tensor."""

    @abstractmethod
    def metrics(self, outputs: Tensor, problem: Problem) -> dict[str, Tensor]:
        """0-d scores by name: at least the criterion's metric; "bits", those stored, where they can be counted."""

    def handicapped(self, outputs: Tensor, problem: Problem, share: float) -> Tensor | None:
        """The outputs with every right answer set back by a share of the logit scale; None where none can be.

        The scale is the largest output in size that is scored; of class logits, after each row's mean is taken off.
        Covers labels that index the outputs, and relations, where a score says yes above 0. Called outside vmap.
        """
        import torch

        is_scored = problem.mask > 0
        if isinstance(self.signature, Relation):
            shift = 2 * problem.targets - 1
            sizes = outputs.abs() * (is_scored if outputs.dim() == is_scored.dim() else 1)
        elif problem.targets.is_floating_point():
            return None
        else:
            shift = torch.nn.functional.one_hot(problem.targets, outputs.shape[-1]).to(outputs)
            sizes = (outputs - outputs.mean(dim=-1, keepdim=True)).abs() * is_scored.unsqueeze(-1)
        return outputs - share * sizes.max() * shift

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


def _arranged(facts: Facts, signature: Signature, slots: int) -> Problem:
    """The facts in slots: in grid order if the slots are the whole grid, else first, then padding with a mask of 0."""
    import torch

    targets = facts.targets
    if not signature.has_slots:
        return Problem(facts.inputs, targets, torch.ones(targets.shape) if facts.weights is None else facts.weights)
    weights = torch.ones(len(targets)) if facts.weights is None else facts.weights
    slot, inputs = torch.arange(len(targets)), facts.inputs  # the slot of each fact
    if isinstance(signature, Lookup) and slots == signature.n_combinations:
        inputs, slot = (signature.grid(),), signature.rows(facts.inputs[0])
    else:
        source = torch.arange(slots) * (torch.arange(slots) < len(targets))  # padding repeats the first fact
        shapes = signature.input_shapes(slots)
        inputs = tuple(x[source] if s[0] == slots else x for x, s in zip(inputs, shapes, strict=True))
    padded = targets.new_zeros(slots, *targets.shape[1:]).index_copy(0, slot, targets)
    return Problem(inputs, padded, weights.new_zeros(slots).index_copy(0, slot, weights))
