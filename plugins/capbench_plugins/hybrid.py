"""A hybrid: layers of sliding-window attention and of linear attention by turns."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field
from torch import nn

from capbench import Architecture, Signature, hookimpl
from capbench_plugins.heads import HeadMixer
from capbench_plugins.linear_mixer import Feature, LinearHeads, state_of_head
from capbench_plugins.sliding_window import WindowHeads


class Hybrid(HeadMixer):
    """Based: exact attention nearby, linear attention far away (Arora et al. 2024, arXiv 2402.18668).

    A window comes first, so that the linear layer after it can bind a value to the token before it. The paper's layers
    of short convolutions are left out.
    """

    name: ClassVar[str] = "hybrid"
    family: ClassVar[str] = "recurrence"

    n_layers: int = Field(2, ge=2, le=64, description="layers: window, linear, window, …")
    window: int = Field(4, ge=2, le=4096, description="positions that a position of a window layer sees")
    feature: Feature = Field("taylor", description="of the linear layers, as in linear_mixer")

    def mixer_at(self, layer: int, d_model: int, length: int) -> nn.Module:
        """Windows at even numbers, linear attention at odd ones."""
        heads = (d_model, self.n_heads, self.d_qk, self.d_vo)
        return LinearHeads(*heads, self.feature) if layer % 2 else WindowHeads(*heads, self.window)

    def mixer(self, d_model: int, length: int) -> nn.Module:
        """The first layer."""
        return self.mixer_at(0, d_model, length)

    def state_size(self, signature: Signature, length: int) -> int | None:
        """Keys and values of the windows, and the matrices of the linear layers."""
        if self.read != "last":
            return None
        windows = -(-self.n_layers // 2) * min(self.window, length) * (self.d_qk + self.d_vo)
        linear = self.n_layers // 2 * state_of_head(self.feature, self.d_qk, self.d_vo)
        return self.n_heads * (windows + linear)


@hookimpl
def capbench_architectures() -> list[type[Architecture]]:
    """The hybrid."""
    return [Hybrid]
