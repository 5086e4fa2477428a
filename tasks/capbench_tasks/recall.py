"""Recall: which value stood beside a key earlier in the same sequence?

Associative recall from the context, as in Arora et al., "Zoology", arXiv 2312.04927, and Poli et al., "Mechanistic
Design and Scaling of Hybrid Architectures", arXiv 2403.17844; docs/theory.md says how the definitions differ.
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

GAP_POWER = 0.01
"""a of `gaps=power`: the pair r places back is asked for with a weight of a r^(a - 1) [code of Zoology]."""


@dataclass(frozen=True)
class HeldOut(Lookup):
    """A lookup of sequences, of which so many are scored whatever the load, and far too many exist to list."""

    has_slots: ClassVar[bool] = False

    n_sequences: int = 1
    n_asked: int = 1
    """How many of the last positions are read."""

    @property
    def n_combinations(self) -> int:
        """0: they are not counted, so that no grid of them is ever made."""
        return 0

    @property
    def n_reads(self) -> int:
        """As many of the last positions as the task asks about."""
        return self.n_asked

    def input_shapes(self, slots: int) -> list[tuple[int, ...]]:
        """The tokens of the sequences that are scored."""
        return [(self.n_sequences, self.length)]


class ContextRecall(Task):
    """Read pairs of keys and values, then keys: answer each with its value. A fact is one pair of the context.

    Every training step sees new sequences; those that are scored are drawn apart, so weights cannot hold the answers.
    Sequences begin with filler up to the length of those with `n_pairs` pairs, so that all loads train together.
    """

    name: ClassVar[str] = "recall"
    fact: ClassVar[str] = "pair"
    is_fresh: ClassVar[bool] = True
    scoring_fields: ClassVar[frozenset[str]] = frozenset({"batch"})
    criterion: ClassVar[Criterion] = Criterion("accuracy", 0.99)
    recipe: ClassVar[Recipe] = Recipe(learning_rates=(0.003, 0.01, 0.03), steps=1000)
    presets: ClassVar = {"smoke": {"n_pairs": 4, "n_keys": 8, "n_values": 4, "batch": 32, "n_held_out": 128}}

    n_pairs: int = Field(16, ge=1, le=256, description="the largest load that a search may try; decides the length")
    n_keys: int = Field(16, ge=1, le=1024, description="keys; those of a sequence are distinct")
    n_values: int = Field(4, ge=2, le=1024, description="values; pairs may share one")
    tokens_per_pair: Literal[1, 2] = Field(
        1,
        description="1: a token is key and value, so that one layer can bind them; 2: a key, then its value",
    )
    tokens_per_key: Literal[1, 2] = Field(
        1, description="2: fuzzy keys, spelled with two of √n_keys letters; a pair then has three tokens"
    )
    noise: int = Field(0, ge=0, le=256, description="meaningless tokens among the pairs, at random places")
    n_queries: int = Field(
        1, ge=1, le=256, description="keys asked for at the end of a sequence: every pair once before one is repeated"
    )
    gaps: Literal["uniform", "power"] = Field(
        "uniform", description="which pairs are asked for: any alike, or by a power law of how many pairs back they are"
    )
    recent: int = Field(0, ge=0, le=256, description="ask only for so many of the last pairs; 0: for all")
    batch: int = Field(64, ge=1, le=4096, description="new sequences that each training step sees")
    n_held_out: int = Field(2048, ge=1, le=65536, description="sequences that are scored")

    @model_validator(mode="after")
    def _keys_suffice(self) -> ContextRecall:
        if self.n_keys < self.n_pairs:
            raise ValueError(
                f"the keys of a sequence are distinct: n_keys must be at least n_pairs, got {self.n_keys} < "
                f"{self.n_pairs}; raise n_keys"
            )
        if self.tokens_per_key > self.tokens_per_pair:
            raise ValueError("keys of two tokens do not fit pairs of one: set tokens_per_pair=2 or tokens_per_key=1")
        return self

    @property
    def signature(self) -> HeldOut:
        """A sequence that ends with keys in, logits of the values out: at the last position, or at the queries."""
        n_tokens = self.n_letters + self._n_pair_tokens + 2  # filler and noise
        n_asked = self.n_queries * self.tokens_per_key
        n_before = self.n_pairs * self._pair_length + self.noise
        ranges = (*[(0, n_tokens)] * n_before, *[(0, self.n_letters)] * n_asked)
        n_reads = n_asked if self.n_queries > 1 else 1
        return HeldOut(n_tokens, n_before + n_asked, self.n_values, ranges, self.n_held_out, n_reads)

    @property
    def max_load(self) -> int:
        """`n_pairs`."""
        return self.n_pairs

    @property
    def n_letters(self) -> int:
        """Tokens that keys are spelled with: one per key, or the fewest whose pairs suffice."""
        return self.n_keys if self.tokens_per_key == 1 else math.isqrt(self.n_keys - 1) + 1

    def n_asked_for(self, load: int) -> int:
        """How many of the pairs of a sequence may be asked for."""
        return min(load, self.recent or load)

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
        return self._cross_entropy(outputs, problem)

    def metrics(self, outputs: Tensor, problem: Problem) -> dict[str, Tensor]:
        """Share of right answers, and the bits about a sequence's values that the model carries to its end.

        Any pair may be asked for, so each of their values counts: log2 n_values less the cross-entropy in bits. The
        bits are left out where some pairs are asked for more often than others.
        """
        outputs = self._at_queries(outputs)
        accuracy = {"accuracy": (outputs.argmax(dim=-1) == problem.targets).to(outputs.dtype).mean()}
        if self.gaps != "uniform":
            return accuracy
        saved = math.log2(self.n_values) - self._cross_entropy(outputs, problem) / math.log(2)
        return {**accuracy, "context_bits": (problem.mask.mean() * saved).clamp(min=0.0)}

    def _at_queries(self, outputs: Tensor) -> Tensor:
        """The logits at the last token of each query, from those of all that are read."""
        is_spelled = outputs.dim() == 3 and outputs.shape[1] > self.n_queries
        return outputs[:, 1::2] if is_spelled else outputs

    def _cross_entropy(self, outputs: Tensor, problem: Problem) -> Tensor:
        """The mean over all answers, in nats."""
        logits = self._at_queries(outputs).reshape(-1, self.n_values)  # (sequences * queries, values)
        return F.cross_entropy(logits, problem.targets.reshape(-1))

    def _draw(self, load: int, n: int, generator: Generator) -> Problem:
        """`n` sequences; the mask is the number of pairs of each that may be asked for."""
        keys = torch.rand(n, self.n_keys, generator=generator).argsort(dim=1)[:, :load]
        values = torch.randint(self.n_values, (n, load), generator=generator)
        places = self._places(load, n, generator)  # of pairs, then of noise
        asked = self._asked(places[:, :load], generator)  # (n, n_queries)
        signature = self.signature
        tokens = torch.full((n, signature.length), signature.n_tokens - 2)
        tokens.scatter_(1, places[:, load:], signature.n_tokens - 1)
        for i, part in enumerate(self._pair_tokens(keys, values)):
            tokens.scatter_(1, places[:, :load] + i, part)
        queries = torch.stack(self._spelled(keys.gather(1, asked)), dim=2)  # (n, n_queries, tokens_per_key)
        tokens[:, -queries[0].numel() :] = queries.flatten(1)
        targets = values.gather(1, asked)
        mask = torch.full((n,), float(self.n_asked_for(load)))
        return Problem((tokens,), targets if self.n_queries > 1 else targets[:, 0], mask)

    def _asked(self, places: Tensor, generator: Generator) -> Tensor:
        """Which pairs are asked for, (n, n_queries): drawn without replacement, and again where there are too few."""
        n, load = places.shape
        n_asked_for = self.n_asked_for(load)
        places_back = places.argsort(dim=1, descending=True)[:, :n_asked_for]  # pairs, the last one first
        weights = torch.arange(1, n_asked_for + 1) ** (GAP_POWER - 1 if self.gaps == "power" else 0.0)
        # The largest of u^(1 / weight) are a draw by weight without replacement (Efraimidis & Spirakis 2006).
        order = (torch.rand(n, n_asked_for, generator=generator).log() / weights).argsort(dim=1, descending=True)
        return places_back.gather(1, order[:, torch.arange(self.n_queries) % n_asked_for])

    @property
    def _n_pair_tokens(self) -> int:
        """Tokens that end a pair: values, or pairs of a key and a value."""
        return self.n_values if self.tokens_per_pair == 2 else self.n_keys * self.n_values

    @property
    def _pair_length(self) -> int:
        """Tokens of a pair in the sequence."""
        return self.tokens_per_pair + self.tokens_per_key - 1

    def _spelled(self, keys: Tensor) -> tuple[Tensor, ...]:
        """The tokens of each key, one after the other."""
        if self.tokens_per_key == 1:
            return (keys,)
        return keys // self.n_letters, keys % self.n_letters

    def _pair_tokens(self, keys: Tensor, values: Tensor) -> tuple[Tensor, ...]:
        """The tokens of each pair, one after the other."""
        if self.tokens_per_pair == 1:
            return (self.n_letters + keys * self.n_values + values,)
        return *self._spelled(keys), self.n_letters + values

    def _places(self, load: int, n: int, generator: Generator) -> Tensor:
        """Where each pair and each noise token starts, in random order, up to the queries."""
        units = load + self.noise
        order = torch.rand(n, units, generator=generator).argsort(dim=1)
        sizes = torch.where(order < load, self._pair_length, 1)
        starts = sizes.cumsum(dim=1) - sizes + (self.n_pairs - load) * self._pair_length
        return torch.empty_like(starts).scatter_(1, order, starts)


@hookimpl
def capbench_tasks() -> list[type[Task]]:
    """Recall from the context."""
    return [ContextRecall]
