"""Solvers: how a model's weights are found, by gradients or by construction."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar, Self

from pydantic import PrivateAttr

from capbench.contract.plugin import Plugin

if TYPE_CHECKING:
    from torch import Generator, Tensor, nn

    from capbench.contract.architecture import Architecture
    from capbench.contract.task import Problem, Task


Layout = tuple[tuple[str, tuple[int, ...]], ...]
"""The name and the shape of each trained parameter, in the order in which they follow each other in a lane's row."""


class Solver(Plugin):
    """Base of both kinds of solver."""

    dtype: ClassVar[str] = "float32"
    """The default precision."""


class GradientSolver(Solver):
    """An optimiser over a stack of models: every tensor has a leading axis of lanes, one per model.

    The weights of a lane are one flat row, so that an update is a few operations for any module. A lane must not
    depend on the values of another. A solver that treats matrices differently sets `uses_layout` and reads `layout`.
    """

    uses_layout: ClassVar[bool] = False
    """Whether it needs to know which weights form which parameter."""
    _layout: Layout = PrivateAttr(default=())

    @property
    def layout(self) -> Layout:
        """The names and shapes of the parameters; empty unless `uses_layout` is set and the model is known."""
        return self._layout

    def with_layout(self, layout: Layout) -> Self:
        """The same solver for weights of that layout; called by the engine."""
        shown = self.model_copy()
        shown._layout = layout
        return shown

    def learning_rates(self, proposed: tuple[float, ...]) -> tuple[float, ...]:
        """The learning rates to try, given those that the task and the architecture propose, which are for Adam.

        Asked where neither --lr nor a protocol says.
        """
        return proposed

    def start(
        self,
        task: Task,
        architecture: Architecture,
        module: nn.Module,
        problem: Problem,
        load: int,
        generator: Generator,
    ) -> dict[str, Tensor]:
        """Initial weights of one model by parameter name; those not named stay as they are in `module`.

        Called outside vmap, on the CPU; random only through `generator`, which is seeded per trial. Raises
        CannotConstruct for a pair or sizes that it does not know.
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
        steps: Tensor,
    ) -> None:
        """Changes `weights` and `state` in place, with a (lanes, 1) base learning rate.

        `step`, which counts from 0, and `steps`, the number of steps in all, are 0-d tensors: use them in torch
        operations but do not branch on them, so that one compiled program serves every step of every length of
        training.
        """


class ConstructiveSolver(Solver):
    """Computes weights by a theorem's construction instead of training."""

    dtype: ClassVar[str] = "float64"
    beside_training: ClassVar[bool] = True
    """Whether its capacity is also measured next to that of every training run on a pair that it covers."""

    @abstractmethod
    def reach(self, task: Task, architecture: Architecture) -> int:
        """The largest load it can construct; raises CannotConstruct for a pair or sizes that it does not know."""

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
        """Weights for `module` by parameter name, in the precision of the problem and the shapes of the module."""
