"""Solvers: how a model's weights are found, by gradients or by construction."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar

from capbench.plugin import Plugin

if TYPE_CHECKING:
    from torch import Generator, Tensor, nn

    from capbench.architecture import Architecture
    from capbench.task import Problem, Task


class Solver(Plugin):
    """Base of both kinds of solver."""

    dtype: ClassVar[str] = "float32"
    """The precision it works in unless the user says otherwise."""


class GradientSolver(Solver):
    """An optimiser over a stack of models: every tensor has a leading axis of lanes, one a model.

    The weights of a lane are one flat row, so that an update is a handful of operations whatever
    the module looks like. A lane must never see another lane's values.
    """

    def start(
        self,
        task: Task,
        architecture: Architecture,
        module: nn.Module,
        problem: Problem,
        load: int,
        generator: Generator,
    ) -> dict[str, Tensor]:
        """Where training of one model starts: weights by parameter name; those not named stay as `module` has them.

        Outside vmap, on the CPU, from `generator` alone, which has a seed of the trial's own. Raises CannotConstruct
        for a pair or sizes that it does not know.
        """
        return {}

    @abstractmethod
    def init(self, weights: Tensor) -> dict[str, Tensor]:
        """The optimiser's state for (lanes, n_parameters) weights, each tensor with a leading axis of lanes."""

    @abstractmethod
    def update(
        self,
        weights: Tensor,
        gradient: Tensor,
        state: dict[str, Tensor],
        learning_rate: Tensor,
        step: Tensor,
        steps: int,
    ) -> None:
        """Changes `weights` and `state` in place, with a (lanes, 1) base learning rate.

        `step` counts from 0 and is a 0-d tensor: do arithmetic with it, by torch's functions, but no branches, so
        that one compiled program serves every step.
        """


class ConstructiveSolver(Solver):
    """Writes weights down from a theorem instead of training."""

    dtype: ClassVar[str] = "float64"

    @abstractmethod
    def reach(self, task: Task, architecture: Architecture) -> int:
        """The largest load it is made for; raises CannotConstruct for a pair or sizes that it does not know."""

    @abstractmethod
    def find_weights(
        self,
        task: Task,
        architecture: Architecture,
        module: nn.Module,
        problem: Problem,
        load: int,
        generator: Generator,
    ) -> dict[str, Tensor]:
        """Weights for `module` by parameter name, in the precision of the problem; same shapes as the module's."""
