"""Gated MLPs: two linear maps of the input, multiplied."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from capbench import Architecture, Signature, hookimpl
from capbench_plugins.attention import gaussian
from capbench_plugins.concatenated import MOST_HIDDEN, Concatenated, Network, input_map

Gate = Literal["swiglu", "bilinear"]


class GatedMlp(Concatenated):
    """An MLP whose hidden units are products: SwiGLU, or bilinear (Shazeer 2020, arXiv 2002.05202)."""

    name: ClassVar[str] = "gated_mlp"
    family: ClassVar[str] = "mlp"

    d_mlp: int = Field(48, ge=1, le=MOST_HIDDEN, description="hidden width")
    gate: Gate = Field("swiglu", description="swiglu: SiLU of one map times the other; bilinear: their product")

    def network(self, d_in: int, d_out: int) -> Network:
        """One gated hidden layer."""
        return GatedNetwork(d_in, self.d_mlp, d_out, self.gate)

    def shape_grid(self, signature: Signature) -> dict[str, Sequence[Any]]:
        """Any hidden width."""
        return {"d_mlp": range(1, MOST_HIDDEN + 1)}


class GatedNetwork(Network):
    """(f(x W_gate + b_gate) * (x W + b)) W_out + b_out, with f = SiLU or none; W_in is [W_gate, W]."""

    def __init__(self, d_in: int, d_mlp: int, d_out: int, gate: Gate) -> None:
        super().__init__()
        self.gate = gate
        self.W_in, self.b_in = input_map(d_in, 2 * d_mlp), nn.Parameter(torch.zeros(2 * d_mlp))
        self.W_out, self.b_out = gaussian(d_mlp, d_out, std=1 / math.sqrt(d_mlp)), nn.Parameter(torch.zeros(d_out))

    def rest(self, z: Tensor) -> Tensor:
        """(…, 2 d_mlp) first products -> (…, d_out)."""
        gate, value = (z + self.b_in).chunk(2, dim=-1)
        hidden = (F.silu(gate) if self.gate == "swiglu" else gate) * value  # (…, d_mlp)
        return hidden @ self.W_out + self.b_out


@hookimpl
def capbench_architectures() -> list[type[Architecture]]:
    """Gated MLPs."""
    return [GatedMlp]
