"""Architectures: one ordinary torch module for one model; the engine trains many."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

from capbench.plugin import Plugin

if TYPE_CHECKING:
    from torch import nn

    from capbench.signatures import Signature
    from capbench.task import Problem


@dataclass(frozen=True)
class Heads:
    """The attention of a model as the theorems count it, all its layers and heads together."""

    n_heads: int
    d_model: int
    d_qk: int
    d_vo: int
    n_layers: int = 1
    has_skip: bool = False
    """Whether the layer's input is added to its output."""
    has_positions: bool = False
    """Whether a token's place is known to the model."""

    @property
    def d_qk_total(self) -> int:
        """The papers' D_K: query/key width summed over the heads."""
        return self.n_heads * self.d_qk


class Architecture(Plugin):
    """Builds a module for a signature."""

    @abstractmethod
    def build(self, signature: Signature) -> nn.Module:
        """A freshly initialised module; raises UnsupportedSignature with the reason.

        Draw initial weights as usual from torch's default generator: the engine seeds it for each
        model in a scope of its own. A module for lookup tasks may define `forward_grid()`, which
        takes no tokens and returns the logits of `Lookup.grid()`, (n_combinations, n_classes):
        a fast path that must equal `forward` on that grid.
        """

    def widths(self, signature: Signature) -> tuple[str, ...]:
        """The fields that an equal-parameter comparison may change, the finest-grained last; none by default."""
        return ()

    def heads(self, signature: Signature) -> Heads | None:
        """The shape of the attention heads, for the theorems that speak of them; None: not pure attention."""
        return None

    def analyse(self, module: nn.Module, problem: Problem) -> dict[str, float]:
        """What can be said of the inside of one of its trained models, on request; outside vmap.

        Empty where there is nothing to say on this task.
        """
        return {}
