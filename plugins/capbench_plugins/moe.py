"""A mixture of experts: a router sends each input to a few of many MLPs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.nn import functional as F

from capbench import Architecture, Signature, hookimpl
from capbench_plugins.attention import gaussian
from capbench_plugins.concatenated import MOST_HIDDEN, Concatenated, Network, input_map
from capbench_plugins.top_k import top_k_mask


class Moe(Concatenated):
    """Mixture of experts with top-k routing (Shazeer et al. 2017, arXiv 1701.06538; Fedus et al. 2021, 2101.03961).

    Every expert is computed for every input, and all but the best k are dropped: the parameters count, not the time.
    The gates of two or more experts sum to one, as in the first paper; that of one is its softmax over all experts, as
    in the second. There is no noise and no term that balances the experts.
    """

    name: ClassVar[str] = "moe"
    family: ClassVar[str] = "mlp"

    n_experts: int = Field(4, ge=2, le=1024, description="number of experts")
    top_k: int = Field(1, ge=1, le=1024, description="experts that an input is sent to")
    d_mlp: int = Field(16, ge=1, le=MOST_HIDDEN, description="hidden width of an expert")

    @model_validator(mode="after")
    def _experts_suffice(self) -> Moe:
        if self.top_k > self.n_experts:
            raise ValueError(f"top_k must be at most n_experts, got {self.top_k} of {self.n_experts}; lower top_k")
        return self

    def network(self, d_in: int, d_out: int) -> Network:
        """A router and its experts."""
        return Experts(d_in, self.n_experts, self.top_k, self.d_mlp, d_out)

    def shape_grid(self, signature: Signature) -> dict[str, Sequence[Any]]:
        """Few or many experts of any width."""
        return {"d_mlp": range(1, MOST_HIDDEN + 1), "n_experts": (2, 4, 8, 16)}


class Experts(Network):
    """Σ over the k best experts e of g_e GELU(x W_e + b_e) W_out_e; W_in is [W_r, W_1, W_2, …].

    With p = softmax(x W_r), g_e = p_e for k = 1, and p_e over the sum of the k best for k > 1.
    """

    def __init__(self, d_in: int, n_experts: int, top_k: int, d_mlp: int, d_out: int) -> None:
        super().__init__()
        self.n_experts, self.top_k = n_experts, top_k
        self.W_in = input_map(d_in, n_experts * (1 + d_mlp))
        self.b = nn.Parameter(torch.zeros(n_experts, d_mlp))
        self.W_out = gaussian(n_experts, d_mlp, d_out, std=1 / math.sqrt(d_mlp))
        self.b_out = nn.Parameter(torch.zeros(d_out))

    def rest(self, z: Tensor) -> Tensor:
        """(…, n_experts (1 + d_mlp)) first products -> (…, d_out)."""
        scores = z[..., : self.n_experts]
        gates = scores.softmax(dim=-1) * top_k_mask(scores, self.top_k)  # (…, n_experts)
        if self.top_k > 1:
            gates = gates / gates.sum(dim=-1, keepdim=True)
        hidden = F.gelu(
            z[..., self.n_experts :].reshape(*z.shape[:-1], *self.b.shape) + self.b
        )  # (…, n_experts, d_mlp)
        return (gates.unsqueeze(-1) * hidden).flatten(-2) @ self.W_out.flatten(0, 1) + self.b_out


@hookimpl
def capbench_architectures() -> list[type[Architecture]]:
    """The mixture of experts."""
    return [Moe]
