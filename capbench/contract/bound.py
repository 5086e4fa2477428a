"""Bounds: named theorems, each a function of a task, an architecture and a load."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, ClassVar

from capbench.contract.plugin import Plugin

if TYPE_CHECKING:
    from capbench.contract.architecture import Architecture
    from capbench.contract.task import Task


class Kind(StrEnum):
    """What a bound states. The kinds are never mixed in one column."""

    LOWER = "lower"
    """Guaranteed: weights exist that hold this many facts. Training that reaches fewer has an optimisation gap."""
    UPPER = "upper"
    """Impossible beyond: a measurement above it (below it, for a parameter value such as D_K) is an error."""
    LAW = "law"
    """Order of growth with an unknown constant: fitted, never shown as a share of a bound."""
    EXACT = "exact"
    """Known at every load: half of the trials hold at the value. Only an `ExactBound` has this kind."""


class Pedigree(StrEnum):
    """The source of a formula."""

    PAPER = "paper"
    """Stated in the paper cited."""
    CODE = "code"
    """Read in the authors' published code."""
    DERIVED = "derived"
    """Derived for capbench; not to be attributed to the paper."""
    PROTOCOL = "protocol"
    """Chosen by capbench where the paper's choice is not known."""


FACTS = "facts"
"""The quantity of bounds on the load; other quantities are D_K or the name of a metric."""
D_K = "D_K"
"""The quantity of bounds on the total query/key width, of which less is better."""


@dataclass(frozen=True)
class BoundValue:
    """The value of a bound, and the quantity it bounds."""

    value: float
    quantity: str = FACTS
    note: str = ""
    """Assumptions of the value that the statement does not give."""


@dataclass(frozen=True)
class CalibrationCell:
    """A run of `capbench calibrate`: a task, an architecture and a solver whose capacity a bound gives."""

    name: str
    """What the table calls it: "perceptron d=16, trained"."""
    task: str
    architecture: str
    solver: str = "adam"
    settings: tuple[str, ...] = ()
    """Fields as --set takes them: "task.d_input=16"."""


class Bound(Plugin):
    """A theorem; its fields, if any, are its constants."""

    kind: ClassVar[Kind]
    statement: ClassVar[str]
    """The theorem in one sentence."""
    formula: ClassVar[str]
    citation: ClassVar[str]
    """Authors, year, arXiv number and theorem; for a derived bound, what it was derived from."""
    pedigree: ClassVar[Pedigree]
    lower_is_better: ClassVar[bool | None] = None
    """Whether less of the bounded quantity is better (a width, an error), so that an upper bound is a floor.

    None: true for D_K and for the metric of a criterion that must come down, false otherwise.
    """
    calibration: ClassVar[tuple[CalibrationCell, ...]] = ()
    """The runs of `capbench calibrate` that are compared with it."""

    @abstractmethod
    def evaluate(self, task: Task, architecture: Architecture, load: int | None) -> BoundValue:
        """The bound for this pair, at `load` facts where it depends on them; raises NotApplicable with the reason."""

    def evaluate_on(
        self, task: Task, architecture: Architecture, load: int | None, data: Mapping[str, float]
    ) -> BoundValue:
        """The bound on data that were measured (`Task.examine`, `analyse`), by name; by default as without them."""
        return self.evaluate(task, architecture, load)


class ExactBound(Bound):
    """The whole success curve of a pair, which `capbench calibrate` measures the ruler by.

    `evaluate` gives the capacity: the load at which half of the trials hold.
    """

    kind: ClassVar[Kind] = Kind.EXACT

    @abstractmethod
    def success(self, task: Task, architecture: Architecture, load: int) -> float:
        """Probability that the best weights hold `load` random facts; raises NotApplicable as `evaluate` does."""
