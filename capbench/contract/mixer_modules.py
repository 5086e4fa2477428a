"""The modules that `Mixer` and `PairScorer` build around an author's layer.

They are part of the core: a change that alters their numbers raises ENGINE_VERSION.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from capbench.contract.signatures import Lookup, Recall

if TYPE_CHECKING:
    from capbench.contract.mixer import Mixer, Mlp, Norm

EPSILON = 1e-6
"""Added to the mean square in a normalisation."""
Parts = tuple[Tensor, ...]
"""What a layer projects each position to, each tensor (batch, length, …)."""


class Stream(nn.Module):
    """x = x + mixer(norm(x)), then x = x + mlp(norm(x)), in each block; at the end norm(x) W_U of what is read."""

    P: Tensor | None

    def __init__(self, architecture: Mixer, length: int, n_classes: int, n_reads: int = 1) -> None:
        super().__init__()
        d = architecture.d_model
        self.reads_last, self.n_reads = architecture.read == "last", n_reads
        self.P = gaussian(length, d, std=architecture.init_scale) if architecture.positions else None
        self.blocks = nn.ModuleList(Block(architecture, length, i) for i in range(architecture.n_layers))
        self.norm = make_norm(architecture.norm, d)
        self.W_U = gaussian(d, n_classes, std=1 / math.sqrt(d))

    @property
    def steps(self) -> tuple[Block, ...]:
        """The blocks, with their type."""
        return tuple(self.blocks)  # type: ignore[arg-type]

    def read(self, x: Tensor) -> Tensor:
        """(batch, length, d) vectors -> the logits of what is read."""
        if self.P is not None:
            x = x + self.P
        return self.run(x, self.steps[0].project(x))

    def run(self, x: Tensor, parts: Parts) -> Tensor:
        """The logits, from the input of the first block and its projections."""
        for block, following in pairwise(self.steps):
            x = block.transform(block.mix(x, parts))
            parts = following.project(x)
        last = self.steps[-1]
        if self.n_reads > 1:
            y = last.mix(x, parts)[:, -self.n_reads :]  # (batch, n_reads, d)
        else:
            y = last.mix_last(x, parts) if self.reads_last else last.mix(x, parts)
        return self.unembed(last.transform(y))  # from (batch, d), or (batch, positions, d)

    def unembed(self, y: Tensor) -> Tensor:
        """The logits of what the last block gives, (batch, n_classes), or (batch, n_reads, n_classes)."""
        logits: Tensor = self.norm(y if self.reads_last else y.mean(dim=1)) @ self.W_U
        return logits


class TokenModel(Stream):
    """A model of a lookup task: x_s = W_E[t_s] + P_s."""

    def __init__(self, architecture: Mixer, signature: Lookup) -> None:
        super().__init__(architecture, signature.length, signature.n_classes, signature.n_reads)
        self.signature = signature
        self.W_E = gaussian(signature.n_tokens, architecture.d_model, std=architecture.init_scale)
        if signature.length == 2:
            self.forward_grid = self.read_grid  # with two tokens, all pairs can be scored at once

    def forward(self, tokens: Tensor) -> Tensor:
        """(slots, length) tokens -> (slots, n_classes) logits."""
        if len(tokens) <= self.signature.n_tokens:
            return self.read(self.W_E[tokens])
        x, block = self.tables(), self.steps[0]  # each token is projected once per position, not in every sequence
        starts = [
            sum(len(table) for table in x[:place]) - start for place, (start, _) in enumerate(self.signature.spans)
        ]
        rows = torch.stack([t + start for t, start in zip(tokens.unbind(1), starts, strict=True)], dim=1)

        def look_up(tables: Sequence[Tensor]) -> Tensor:
            return torch.cat(list(tables)).squeeze(1)[rows]

        parts = zip(*(block.project(each) for each in x), strict=True)
        return self.run(look_up(x), tuple(look_up(part) for part in parts))

    def tables(self) -> list[Tensor]:
        """The vectors of all tokens of each position, (tokens, 1, d)."""
        x = [self.W_E[start:stop].unsqueeze(1) for start, stop in self.signature.spans]
        return x if self.P is None else [each + position for each, position in zip(x, self.P, strict=True)]

    def read_grid(self) -> Tensor:
        """The logits of every pair of tokens, (n_combinations, n_classes); each token is projected only once."""
        x = self.tables()
        block, *further = self.steps
        first, last = (block.project(each) for each in x)
        if hasattr(block.layer, "mix_pairs") and self.reads_last and not further:
            y = block.add(x[1].squeeze(1), block.layer.mix_pairs(first, last))  # (n, m, d)
            return self.unembed(block.transform(y.flatten(0, 1)))
        return self.run(pair_up(*x), tuple(pair_up(*pair) for pair in zip(first, last, strict=True)))


class VectorModel(Stream):
    """A model of a recall task: the vectors of the context, then the query, each times W_E."""

    def __init__(self, architecture: Mixer, signature: Recall) -> None:
        super().__init__(architecture, signature.n_context + 1, signature.n_classes)
        std = architecture.init_scale / math.sqrt(signature.d_input)
        self.W_E = gaussian(signature.d_input, architecture.d_model, std=std)

    def forward(self, contexts: Tensor, queries: Tensor) -> Tensor:
        """(slots or 1, n, d_input) contexts, (slots, d_input) queries -> (slots, n_classes) logits."""
        contexts, queries = contexts @ self.W_E, queries @ self.W_E  # (slots or 1, n, d), (slots, d)
        contexts = contexts.expand(len(queries), -1, -1)
        return self.read(torch.cat([contexts, queries.unsqueeze(1)], dim=1))


class Block(nn.Module):
    """One layer and, if asked for, one MLP."""

    layer: Any  # an author's module, with or without the parts that make it faster

    def __init__(self, architecture: Mixer, length: int, layer: int) -> None:
        super().__init__()
        d = architecture.d_model
        self.residual = architecture.residual
        self.norm, self.layer = make_norm(architecture.norm, d), architecture.mixer_at(layer, d, length)
        self.has_mlp = architecture.mlp != "none"
        if self.has_mlp:
            self.mlp_norm = make_norm(architecture.norm, d)
            self.mlp = PositionMlp(d, architecture.d_mlp, architecture.mlp)

    def project(self, x: Tensor) -> Parts:
        """The part of the layer that treats each position alone; just the normalised input where it has none."""
        x = self.norm(x)
        return tuple(self.layer.project(x)) if hasattr(self.layer, "project") else (x,)

    def mix(self, x: Tensor, parts: Parts) -> Tensor:
        """The rest of the layer at every position, (batch, length, d)."""
        mix = self.layer.mix if hasattr(self.layer, "project") else self.layer
        return self.add(x, mix(*parts))

    def mix_last(self, x: Tensor, parts: Parts) -> Tensor:
        """The rest of the layer at the last position, (batch, d)."""
        if hasattr(self.layer, "mix_last"):
            return self.add(x[:, -1], self.layer.mix_last(*parts))
        return self.mix(x, parts)[:, -1]

    def transform(self, x: Tensor) -> Tensor:
        """The MLP at each position given."""
        return self.add(x, self.mlp(self.mlp_norm(x))) if self.has_mlp else x

    def add(self, x: Tensor, y: Tensor) -> Tensor:
        """The residual connection."""
        return x + y if self.residual else y


class PositionMlp(nn.Module):
    """f(x W_1 + b_1) W_2 + b_2 with f = GELU or ReLU; gated, (f(x W_gate) * (x W_1 + b_1)) W_2 + b_2.

    Gated with f = SiLU it is SwiGLU, and without f bilinear (Shazeer 2020, arXiv 2002.05202).
    """

    def __init__(self, d: int, d_mlp: int, kind: Mlp) -> None:
        super().__init__()
        self.kind = kind
        self.W_1, self.b_1 = gaussian(d, d_mlp, std=1 / math.sqrt(d)), nn.Parameter(torch.zeros(d_mlp))
        self.W_2, self.b_2 = gaussian(d_mlp, d, std=1 / math.sqrt(d_mlp)), nn.Parameter(torch.zeros(d))
        if kind in ("swiglu", "bilinear"):
            self.W_gate = gaussian(d, d_mlp, std=1 / math.sqrt(d))

    def forward(self, x: Tensor) -> Tensor:
        """(…, d) vectors -> the same shape."""
        hidden = x @ self.W_1 + self.b_1  # (…, d_mlp)
        if self.kind == "gelu":
            hidden = F.gelu(hidden)
        elif self.kind == "relu":
            hidden = F.relu(hidden)
        else:
            gate = x @ self.W_gate
            hidden = hidden * (F.silu(gate) if self.kind == "swiglu" else gate)
        return hidden @ self.W_2 + self.b_2


class RmsNorm(nn.Module):
    """g * x / √(mean x² + ε) (Zhang & Sennrich 2019, arXiv 1910.07467)."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.g = nn.Parameter(torch.ones(d))

    def forward(self, x: Tensor) -> Tensor:
        """(…, d) vectors -> the same shape."""
        return self.g * x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + EPSILON)


class ThresholdedScores(nn.Module):
    """exp(log_scale) (scores - threshold): an edge is predicted where it is positive."""

    def __init__(self, scorer: nn.Module) -> None:
        super().__init__()
        self.scorer = scorer
        self.log_scale = nn.Parameter(torch.zeros(()))
        self.threshold = nn.Parameter(torch.full((), 0.5))

    def forward(self, items: Tensor, contexts: Tensor | None = None) -> Tensor:
        """(items, d) vectors -> (items, items) scores, positive where an edge is predicted."""
        scores: Tensor = self.scorer(items)
        return self.log_scale.exp() * (scores - self.threshold)


def make_norm(kind: Norm, d: int) -> nn.Module:
    """The normalisation of that name."""
    if kind == "none":
        return nn.Identity()
    return RmsNorm(d) if kind == "rms" else nn.LayerNorm(d, eps=EPSILON)


def gaussian(*shape: int, std: float) -> nn.Parameter:
    """Weights drawn with mean 0 and the given standard deviation."""
    return nn.Parameter(torch.randn(*shape) * std)


def pair_up(first: Tensor, last: Tensor) -> Tensor:
    """(n, 1, …) and (m, 1, …) tensors -> every pair of them, (n m, 2, …), the last changing fastest."""
    shape = (len(first), len(last), *first.shape[2:])
    return torch.stack([first.expand(shape), last.transpose(0, 1).expand(shape)], dim=2).flatten(0, 1)
