"""Architectures: one ordinary torch module for one model; the engine trains many."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from capbench.contract.plugin import Plugin

if TYPE_CHECKING:
    from torch import nn

    from capbench.contract.signatures import Signature
    from capbench.contract.task import Problem


@dataclass(frozen=True)
class Heads:
    """The sizes of a model's attention as the theorems count them, over all layers and heads."""

    n_heads: int
    d_model: int
    d_qk: int
    d_vo: int
    n_layers: int = 1
    has_skip: bool = False
    """Whether the layer's input is added to its output."""
    has_positions: bool = False
    """Whether the model knows the position of a token."""
    has_unembedding: bool = False
    """Whether one matrix reads all logits from a stream of width d_model."""

    @property
    def d_qk_total(self) -> int:
        """The papers' D_K: query/key width summed over the heads."""
        return self.n_heads * self.d_qk


class Architecture(Plugin):
    """Builds a module for a signature."""

    family: ClassVar[str] = "other"
    """The group under which `capbench list` shows it."""

    @abstractmethod
    def build(self, signature: Signature) -> nn.Module:
        """A freshly initialised module; raises UnsupportedSignature with the reason.

        Draw initial weights as usual from torch's default generator: the engine seeds it for each model. A module for
        lookup tasks may define `forward_grid()`, which takes no tokens and returns the logits of `Lookup.grid()`,
        (n_combinations, n_classes): a fast path that must equal `forward` on that grid.
        """

    def learning_rates(self, proposed: tuple[float, ...]) -> tuple[float, ...]:
        """The learning rates to try, given those that the task proposes.

        Asked where neither --lr nor a protocol says.
        """
        return proposed

    def widths(self, signature: Signature) -> tuple[str, ...]:
        """The fields that an equal-parameter comparison may change, the finest-grained last; none by default."""
        return ()

    def shapes(self, signature: Signature, n_parameters: int) -> Sequence[Mapping[str, Any] | Architecture]:
        """Configurations within 5 % of a parameter count, of which the best is measured; none by default.

        Field values or instances, the most ordinary first, without widths that cannot help; `find_shapes` finds them.
        Without any, the fields that `widths` names are changed one at a time.
        """
        return ()

    def heads(self, signature: Signature) -> Heads | None:
        """The sizes of the attention heads, for theorems about them; None where the model is not pure attention."""
        return None

    def state_size(self, signature: Signature, length: int) -> int | None:
        """Elements that the model carries from token to token after `length` tokens; None where that is not defined.

        It decides no trial and is left out of the code hash, so `build` must not use it.
        """
        return None

    def analyse(self, module: nn.Module, problem: Problem) -> dict[str, float]:
        """Measurements inside one trained model, made on request and outside vmap; none by default."""
        return {}
