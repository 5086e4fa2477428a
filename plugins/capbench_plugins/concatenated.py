"""Networks on all inputs side by side: embeddings of all tokens, a context and its query, or two items."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

from pydantic import Field
from torch import Tensor, nn

from capbench import Architecture, Lookup, Recall, Signature, find_shapes
from capbench_plugins.attention import gaussian

MOST_WIDTH, MOST_HIDDEN = 4096, 65536


class Concatenated(Architecture):
    """A network without positions or attention; a subclass gives the network."""

    d_model: int = Field(10, ge=1, le=MOST_WIDTH, description="width of the token embeddings, on lookup tasks")
    init_scale: float = Field(1.0, gt=0, description="standard deviation of the initial embeddings, on lookup tasks")

    @abstractmethod
    def network(self, d_in: int, d_out: int) -> Network:
        """A fresh network on vectors of width d_in."""

    @abstractmethod
    def shape_grid(self, signature: Signature) -> dict[str, Sequence[Any]]:
        """The values of each field but d_model that `shapes` chooses from."""

    def build(self, signature: Signature) -> nn.Module:
        """The module for any of the three signatures."""
        if isinstance(signature, Lookup):
            network = self.network(signature.length * self.d_model, signature.n_classes)
            return TokenNetwork(signature, self.d_model, self.init_scale, network)
        if isinstance(signature, Recall):
            d_in = (signature.n_context + 1) * signature.d_input
            return RecallNetwork(self.network(d_in, signature.n_classes))
        return RelationNetwork(self.network(2 * signature.d_item, 1))

    def shapes(self, signature: Signature, n_parameters: int) -> Sequence[Architecture]:
        """The network's own, on embeddings of several widths up to the number of tokens, at several initial scales."""
        grid = self.shape_grid(signature)
        if isinstance(signature, Lookup):
            grid["d_model"] = range(1, min(signature.n_tokens, MOST_WIDTH) + 1)
            grid["init_scale"] = (1.0, 0.5)
        return find_shapes(self, signature, n_parameters, grid)


class Network(nn.Module):
    """A network whose first layer is a sum over coordinates, so that what many inputs share is computed once."""

    W_in: Tensor

    def first(self, x: Tensor, start: int) -> Tensor:
        """What the coordinates of the input from `start` on add to the first layer: x W_in by default."""
        return x @ self.W_in[start : start + x.shape[-1]]

    @abstractmethod
    def rest(self, z: Tensor) -> Tensor:
        """All that follows the first layer, (…, d_out)."""


class TokenNetwork(nn.Module):
    """Logits of a network on [W_E[t_1], …, W_E[t_S]]."""

    def __init__(self, signature: Lookup, d: int, init_scale: float, network: Network) -> None:
        super().__init__()
        self.signature, self.network = signature, network
        self.W_E = gaussian(signature.n_tokens, d, std=init_scale)
        if signature.length == 2:
            self.forward_grid = self.read_grid  # with two tokens, all pairs can be scored at once

    def forward(self, tokens: Tensor) -> Tensor:
        """(slots, length) tokens -> (slots, n_classes) logits."""
        return self.network.rest(self.network.first(self.W_E[tokens].flatten(1), 0))

    def read_grid(self) -> Tensor:
        """The logits of every pair of tokens, (n_combinations, n_classes); tokens are projected once per position."""
        d = self.W_E.shape[1]
        first, last = (
            self.network.first(self.W_E[start:stop], place * d)
            for place, (start, stop) in enumerate(self.signature.spans)
        )
        return self.network.rest((first.unsqueeze(1) + last).flatten(0, 1))


class RecallNetwork(nn.Module):
    """Logits of a network on [E_1, …, E_n, e]: a context, flattened, and its query."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.network = network

    def forward(self, contexts: Tensor, queries: Tensor) -> Tensor:
        """(slots or 1, n, d) contexts, (slots, d) queries -> (slots, n_classes) logits."""
        context = contexts.flatten(1)  # (slots or 1, n * d)
        return self.network.rest(self.network.first(context, 0) + self.network.first(queries, context.shape[1]))


class RelationNetwork(nn.Module):
    """Score of a network on [x_i, x_j] for every ordered pair of items."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.network = network

    def forward(self, items: Tensor, contexts: Tensor | None = None) -> Tensor:
        """(items, d) vectors -> (items, items) scores, positive where an edge is predicted."""
        sources, targets = self.network.first(items, 0), self.network.first(items, items.shape[1])
        return self.network.rest(sources.unsqueeze(1) + targets).squeeze(-1)


def input_map(d_in: int, width: int) -> nn.Parameter:
    """Initial weights of a first layer."""
    return gaussian(d_in, width, std=1 / math.sqrt(d_in))
