"""A pure MLP: no attention; all inputs are concatenated into one vector."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from capbench import Architecture, Lookup, Recall, Signature, find_shapes, hookimpl
from capbench_plugins.attention import uniform

MOST_WIDTH, MOST_HIDDEN = 4096, 65536


class Mlp(Architecture):
    """MLP with GELU on concatenated embeddings, on a context and its query, or on a pair of items."""

    name: ClassVar[str] = "mlp"
    family: ClassVar[str] = "mlp"

    d_model: int = Field(10, ge=1, le=MOST_WIDTH, description="width of the token embeddings, on lookup tasks")
    d_mlp: int = Field(64, ge=1, le=MOST_HIDDEN, description="hidden width")
    n_layers: int = Field(1, ge=1, le=64, description="hidden layers")

    def build(self, signature: Signature) -> nn.Module:
        """The module for any of the three signatures."""
        if isinstance(signature, Lookup):
            return TokenMlp(signature, self.d_model, self.d_mlp, self.n_layers)
        if isinstance(signature, Recall):
            return RecallMlp(signature, self.d_mlp, self.n_layers)
        return RelationMlp(signature.d_item, self.d_mlp, self.n_layers)

    def widths(self, signature: Signature) -> tuple[str, ...]:
        """Width of the embeddings, if any, then of the hidden layers."""
        return ("d_model", "d_mlp") if isinstance(signature, Lookup) else ("d_mlp",)

    def shapes(self, signature: Signature, n_parameters: int) -> Sequence[Mlp]:
        """One or two hidden layers, on embeddings of several widths up to the number of tokens."""
        grid: dict[str, Sequence[Any]] = {"d_mlp": range(1, MOST_HIDDEN + 1), "n_layers": (1, 2)}
        if isinstance(signature, Lookup):
            grid["d_model"] = range(1, min(signature.n_tokens, MOST_WIDTH) + 1)
        return find_shapes(self, signature, n_parameters, grid)


class HiddenLayers(nn.Module):
    """All of the MLP after the first matrix product: z -> GELU(… GELU(z + b) W …) W_out + b_out.

    The caller computes the first product in parts, so that what many inputs share is projected only once.
    """

    def __init__(self, d_in: int, d_mlp: int, d_out: int, n_layers: int) -> None:
        super().__init__()
        limit = 1 / math.sqrt(d_mlp)
        self.b = uniform(d_mlp, limit=1 / math.sqrt(d_in))
        self.inner = nn.ModuleList(nn.Linear(d_mlp, d_mlp) for _ in range(n_layers - 1))
        self.W_out, self.b_out = uniform(d_mlp, d_out, limit=limit), uniform(d_out, limit=limit)

    def forward(self, z: Tensor) -> Tensor:
        """(…, d_mlp) first products -> (…, d_out)."""
        hidden = F.gelu(z + self.b)
        for layer in self.inner:
            hidden = F.gelu(layer(hidden))
        return hidden @ self.W_out + self.b_out


class TokenMlp(nn.Module):
    """Logits of an MLP on [W_E[t_1], …, W_E[t_S]]; W_1[s] is the part of the first layer that reads position s."""

    def __init__(self, signature: Lookup, d: int, d_mlp: int, n_layers: int) -> None:
        super().__init__()
        d_in = signature.length * d
        self.signature = signature
        self.W_E = uniform(signature.n_tokens, d, limit=1.0)
        self.W_1 = uniform(signature.length, d, d_mlp, limit=1 / math.sqrt(d_in))
        self.rest = HiddenLayers(d_in, d_mlp, signature.n_classes, n_layers)
        if signature.length == 2:
            self.forward_grid = self.read_grid

    def forward(self, tokens: Tensor) -> Tensor:
        """(slots, length) tokens -> (slots, n_classes) logits."""
        x = self.W_E[tokens].flatten(1)  # (slots, length * d)
        logits: Tensor = self.rest(x @ self.W_1.flatten(0, 1))
        return logits

    def read_grid(self) -> Tensor:
        """The logits of every pair of tokens, (n_combinations, n_classes); tokens are projected once per position."""
        first, last = (
            self.W_E[start:stop] @ W for (start, stop), W in zip(self.signature.spans, self.W_1, strict=True)
        )
        z = (first.unsqueeze(1) + last).flatten(0, 1)  # (first * last, d_mlp)
        logits: Tensor = self.rest(z)
        return logits


class RecallMlp(nn.Module):
    """Logits of an MLP on [E_1, …, E_n, e]: a context, flattened, and its query."""

    def __init__(self, signature: Recall, d_mlp: int, n_layers: int) -> None:
        super().__init__()
        d_context, d = signature.n_context * signature.d_input, signature.d_input
        limit = 1 / math.sqrt(d_context + d)
        self.W_context = uniform(d_context, d_mlp, limit=limit)
        self.W_query = uniform(d, d_mlp, limit=limit)
        self.rest = HiddenLayers(d_context + d, d_mlp, signature.n_classes, n_layers)

    def forward(self, contexts: Tensor, queries: Tensor) -> Tensor:
        """(slots or 1, n, d) contexts, (slots, d) queries -> (slots, n_classes) logits."""
        logits: Tensor = self.rest(contexts.flatten(1) @ self.W_context + queries @ self.W_query)
        return logits


class RelationMlp(nn.Module):
    """Score of an MLP on [x_i, x_j] for every ordered pair of items."""

    def __init__(self, d_item: int, d_mlp: int, n_layers: int) -> None:
        super().__init__()
        limit = 1 / math.sqrt(d_item)  # the item vectors have norm 1
        self.W_source, self.W_target = uniform(d_item, d_mlp, limit=limit), uniform(d_item, d_mlp, limit=limit)
        self.rest = HiddenLayers(2 * d_item, d_mlp, 1, n_layers)

    def forward(self, items: Tensor, contexts: Tensor | None = None) -> Tensor:
        """(items, d) vectors -> (items, items) scores, positive where an edge is predicted."""
        pairs = (items @ self.W_source).unsqueeze(1) + items @ self.W_target  # (items, items, d_mlp)
        scores: Tensor = self.rest(pairs).squeeze(-1)
        return scores


@hookimpl
def capbench_architectures() -> list[type[Architecture]]:
    """The MLP."""
    return [Mlp]
