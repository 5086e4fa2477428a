"""A Hyena-style layer: a long convolution between two gates, without attention and without a state."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

from pydantic import Field
from torch import Tensor, nn

from capbench import Architecture, Mixer, Signature, hookimpl
from capbench_plugins.attention import gaussian
from capbench_plugins.heads import Layer
from capbench_plugins.recurrence import convolve

MOST_WIDTH = 4096


class Hyena(Mixer):
    """Hyena operator of order 2 (Poli et al. 2023, arXiv 2302.10866), with a filter that is learned directly.

    The paper computes its filter from the position, for long sequences; these are short. As in the authors' code,
    order 2 has one long convolution, between its two gates.
    """

    name: ClassVar[str] = "hyena"
    family: ClassVar[str] = "recurrence"

    d_inner: int = Field(16, ge=1, le=MOST_WIDTH, description="channels of the convolution")
    d_conv: int = Field(3, ge=1, le=64, description="taps of the short convolutions; no more than positions are used")

    def mixer(self, d_model: int, length: int) -> nn.Module:
        """A layer of such channels."""
        return HyenaOperator(d_model, self.d_inner, min(self.d_conv, length), length)

    def state_size(self, signature: Signature, length: int) -> int | None:
        """What the long convolution looks back at in each layer, and what the short ones do."""
        window = 3 * (min(self.d_conv, length) - 1)
        return self.n_layers * self.d_inner * (length + window) if self.read == "last" else None

    def shape_grid(self, signature: Signature) -> dict[str, Sequence[Any]]:
        """Any number of channels, on streams of several widths."""
        grid = super().shape_grid(signature)
        widths = range(1, MOST_WIDTH + 1)
        return {"d_inner": widths, **grid, "d_model": range(4, 129)}


class HyenaOperator(Layer):
    """y = (x_1 * (h ⋆ (x_2 * v))) W_O, with x_1, x_2 and v from short convolutions of linear maps of x."""

    def __init__(self, d: int, d_inner: int, n_taps: int, length: int) -> None:
        super().__init__()
        self.W_in = gaussian(d, 3 * d_inner, std=1 / math.sqrt(d))
        self.c = gaussian(n_taps, 3 * d_inner, std=1 / math.sqrt(n_taps))
        self.h = gaussian(length, d_inner, std=1 / math.sqrt(length))
        self.W_O = gaussian(d_inner, d, std=1 / math.sqrt(d_inner))

    def project(self, x: Tensor) -> tuple[Tensor, ...]:
        """The three maps at once, (batch, length, 3 d_inner)."""
        return (x @ self.W_in,)

    def mix(self, *parts: Tensor) -> Tensor:
        """The convolutions and the gates."""
        first, second, v = convolve(parts[0], self.c).chunk(3, dim=-1)  # (batch, length, d_inner) each
        return first * convolve(second * v, self.h) @ self.W_O


@hookimpl
def capbench_architectures() -> list[type[Architecture]]:
    """The Hyena-style convolution."""
    return [Hyena]
