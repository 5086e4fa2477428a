"""Recall: which value stood beside a key earlier in the same sequence?

Associative recall from the context, as in Arora et al., "Zoology", arXiv 2312.04927, and Poli et al., "Mechanistic
Design and Scaling of Hybrid Architectures", arXiv 2403.17844, with one query per sequence.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from pydantic import Field, model_validator
from torch import Generator, Tensor
from torch.nn import functional as F

from capbench import Criterion, LoadOutOfRange, Lookup, Problem, Recipe, Task, hookimpl


@dataclass(frozen=True)
class HeldOut(Lookup):
    """A lookup of sequences, of which so many are scored whatever the load, and far too many exist to list."""

    has_slots: ClassVar[bool] = False

    n_sequences: int = 1

    @property
    def n_combinations(self) -> int:
        """0: they are not counted, so that no grid of them is ever made."""
        return 0

    def input_shapes(self, slots: int) -> list[tuple[int, ...]]:
        """The tokens of the sequences that are scored."""
        return [(self.n_sequences, self.length)]


class ContextRecall(Task):
    """Read pairs of keys and values, then a key: answer with its value. A fact is one pair of the context.

    Every training step sees new sequences; those that are scored are drawn apart, so weights cannot hold the answers.
    Sequences begin with filler up to the length of those with `n_pairs` pairs, so that all loads train together.
    """

    name: ClassVar[str] = "recall"
    fact: ClassVar[str] = "pair"
    is_fresh: ClassVar[bool] = True
    scoring_fields: ClassVar[frozenset[str]] = frozenset({"batch"})
    criterion: ClassVar[Criterion] = Criterion("accuracy", 0.99)
    recipe: ClassVar[Recipe] = Recipe(learning_rates=(0.001, 0.003, 0.01), steps=4000)
    presets: ClassVar = {"smoke": {"n_pairs": 4, "n_keys": 8, "n_values": 4, "batch": 32, "n_held_out": 128}}

    n_pairs: int = Field(16, ge=1, le=256, description="the largest load that a search may try; decides the length")
    n_keys: int = Field(32, ge=1, le=1024, description="keys; those of a sequence are distinct")
    n_values: int = Field(16, ge=2, le=1024, description="values; pairs may share one")
    tokens_per_pair: Literal[1, 2] = Field(
        2, description="2: a key, then its value; 1: one token is both, so that one layer of a recurrence can bind them"
    )
    noise: int = Field(0, ge=0, le=256, description="meaningless tokens among the pairs, at random places")
    batch: int = Field(64, ge=1, le=4096, description="new sequences that each training step sees")
    n_held_out: int = Field(256, ge=1, le=65536, description="sequences that are scored")

    @model_validator(mode="after")
    def _keys_suffice(self) -> ContextRecall:
        if self.n_keys < self.n_pairs:
            raise ValueError(
                f"the keys of a sequence are distinct: n_keys must be at least n_pairs, got {self.n_keys} < "
                f"{self.n_pairs}; raise n_keys"
            )
        return self

    @property
    def signature(self) -> HeldOut:
        """A sequence that ends with a key in, logits of the values out."""
        n_pair_tokens = self.n_values if self.tokens_per_pair == 2 else self.n_keys * self.n_values
        n_tokens = self.n_keys + n_pair_tokens + 2  # filler and noise
        length = self.n_pairs * self.tokens_per_pair + self.noise + 1
        ranges = (*[(0, n_tokens)] * (length - 1), (0, self.n_keys))
        return HeldOut(n_tokens, length, self.n_values, ranges, self.n_held_out)

    @property
    def max_load(self) -> int:
        """`n_pairs`."""
        return self.n_pairs

    def problem(self, load: int, slots: int, generator: Generator) -> Problem:
        """The sequences that are scored, with `load` pairs each."""
        if not 1 <= load <= self.max_load:
            raise LoadOutOfRange(f"recall has 1 to {self.max_load} pairs, got {load}; raise n_pairs")
        return self._draw(load, self.n_held_out, generator)

    def fresh(self, load: int, generator: Generator) -> Problem:
        """New sequences for one step."""
        return self._draw(load, self.batch, generator)

    def loss(self, outputs: Tensor, problem: Problem) -> Tensor:
        """Mean cross-entropy of the values."""
        return _mean(self._cross_entropy(outputs, problem), problem)

    def metrics(self, outputs: Tensor, problem: Problem) -> dict[str, Tensor]:
        """Share of right answers, and the bits about a sequence's values that the model carries to its end.

        Any pair may be asked for, so each of `load` values counts: log2 n_values less the cross-entropy in bits.
        """
        is_right = (outputs.argmax(dim=-1) == problem.targets).to(outputs.dtype)
        load = problem.mask.mean()
        saved = math.log2(self.n_values) - _mean(self._cross_entropy(outputs, problem), problem) / math.log(2)
        return {"accuracy": _mean(is_right, problem), "context_bits": (load * saved).clamp(min=0.0)}

    def _cross_entropy(self, outputs: Tensor, problem: Problem) -> Tensor:
        """That of each sequence's answer in nats."""
        return F.cross_entropy(outputs, problem.targets, reduction="none")

    def _draw(self, load: int, n: int, generator: Generator) -> Problem:
        """`n` sequences; the mask is the number of pairs of each."""
        keys = torch.rand(n, self.n_keys, generator=generator).argsort(dim=1)[:, :load]
        values = torch.randint(self.n_values, (n, load), generator=generator)
        asked = torch.randint(load, (n, 1), generator=generator)
        places = self._places(load, n, generator)  # of pairs, then of noise
        signature = self.signature
        tokens = torch.full((n, signature.length), signature.n_tokens - 2)
        tokens.scatter_(1, places[:, load:], signature.n_tokens - 1)
        for i, part in enumerate(self._pair_tokens(keys, values)):
            tokens.scatter_(1, places[:, :load] + i, part)
        tokens[:, -1:] = keys.gather(1, asked)
        return Problem((tokens,), values.gather(1, asked)[:, 0], torch.full((n,), float(load)))

    def _pair_tokens(self, keys: Tensor, values: Tensor) -> tuple[Tensor, ...]:
        """The tokens of each pair, one after the other."""
        if self.tokens_per_pair == 1:
            return (self.n_keys + keys * self.n_values + values,)
        return keys, self.n_keys + values

    def _places(self, load: int, n: int, generator: Generator) -> Tensor:
        """Where each pair and each noise token starts, in random order, up to the query."""
        units = load + self.noise
        order = torch.rand(n, units, generator=generator).argsort(dim=1)
        sizes = torch.where(order < load, self.tokens_per_pair, 1)
        starts = sizes.cumsum(dim=1) - sizes + (self.n_pairs - load) * self.tokens_per_pair
        return torch.empty_like(starts).scatter_(1, order, starts)


def _mean(values: Tensor, problem: Problem) -> Tensor:
    """Mean over the sequences."""
    return (values * problem.mask).sum() / problem.mask.sum()


@hookimpl
def capbench_tasks() -> list[type[Task]]:
    """Recall from the context."""
    return [ContextRecall]
