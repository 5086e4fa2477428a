"""A Kolmogorov-Arnold network: learned functions of one variable on the edges, sums at the nodes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from capbench import Architecture, Signature, hookimpl
from capbench_plugins.attention import gaussian
from capbench_plugins.concatenated import MOST_HIDDEN, Concatenated, Network

RANGE = 2.0
"""Splines cover -RANGE to RANGE; beyond, an edge is the SiLU alone."""


class Kan(Concatenated):
    """Kolmogorov-Arnold network of two layers with cubic splines (Liu et al. 2024, arXiv 2404.19756)."""

    name: ClassVar[str] = "kan"
    family: ClassVar[str] = "mlp"

    d_mlp: int = Field(8, ge=1, le=MOST_HIDDEN, description="hidden width")
    n_intervals: int = Field(4, ge=1, le=64, description="intervals of a spline, which has three more coefficients")

    def network(self, d_in: int, d_out: int) -> Network:
        """Two layers of splines."""
        return Splines(d_in, self.d_mlp, d_out, self.n_intervals)

    def shape_grid(self, signature: Signature) -> dict[str, Sequence[Any]]:
        """Any hidden width, with coarse or fine splines."""
        return {"d_mlp": range(1, MOST_HIDDEN + 1), "n_intervals": (2, 4, 8)}


class Splines(Network):
    """z_j = Σ_i φ_ij(x_i), then Σ_j ψ_jk(z_j), with φ(x) = w SiLU(x) + Σ_b c_b B_b(x) and B cubic B-splines."""

    def __init__(self, d_in: int, d_mlp: int, d_out: int, n_intervals: int) -> None:
        super().__init__()
        self.n_basis = n_intervals + 3
        self.W_in = self.coefficients(d_in, d_mlp)
        self.W_out = self.coefficients(d_mlp, d_out)

    def coefficients(self, d_in: int, d_out: int) -> nn.Parameter:
        """Initial w and c of every edge, (d_in, 1 + n_basis, d_out)."""
        return gaussian(d_in, 1 + self.n_basis, d_out, std=1 / math.sqrt(d_in))

    def first(self, x: Tensor, start: int) -> Tensor:
        """What the coordinates from `start` on add to the hidden nodes."""
        return self.layer(x, self.W_in[start : start + x.shape[-1]])

    def rest(self, z: Tensor) -> Tensor:
        """(…, d_mlp) hidden nodes -> (…, d_out)."""
        return self.layer(z, self.W_out)

    def layer(self, x: Tensor, W: Tensor) -> Tensor:
        """Σ_i φ_ij(x_i) for every j."""
        features = torch.cat([F.silu(x).unsqueeze(-1), self.basis(x)], dim=-1)  # (…, d_in, 1 + n_basis)
        return features.flatten(-2) @ W.flatten(0, 1)

    def basis(self, x: Tensor) -> Tensor:
        """The cubic B-splines at x, (…, n_basis): B(u) = Σ_j (-1)^j C(4, j) max(u - j, 0)³ / 6 on 0 <= u <= 4."""
        n_intervals = self.n_basis - 3
        places = torch.arange(self.n_basis, device=x.device, dtype=x.dtype)
        u = (x.unsqueeze(-1) + RANGE) * n_intervals / (2 * RANGE) - places + 3
        u = u.clamp(0, 4)
        first, second, third, fourth = (F.relu(u - j).pow(3) for j in range(4))  # (…, n_basis) each
        return (first - 4 * second + 6 * third - 4 * fourth) / 6


@hookimpl
def capbench_architectures() -> list[type[Architecture]]:
    """The Kolmogorov-Arnold network."""
    return [Kan]
