"""Bigrams: which token follows a pair of tokens, or with which probability?

Dana, Pydi & Chevaleyre, "Memorization in Attention-only Transformers", arXiv 2411.10115 (AISTATS 2025).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
from pydantic import Field, model_validator
from torch import Generator, Tensor
from torch.nn import functional as F

from capbench import (
    Architecture,
    Criterion,
    LoadOutOfRange,
    Lookup,
    Problem,
    Recipe,
    Task,
    hookimpl,
)
from capbench_tasks.sequence_encoder import fit_encoder, kl_to_logits

MOST_CONTEXTS = 1 << 22
"""Contexts are drawn from a permutation of all of them."""


class Bigrams(Task):
    """Recall what follows a pair of tokens: one token, or a distribution over all. A fact is one pair's answer.

    With `length` above 2 a context has more tokens: n-grams.

    The mask of a problem is the prior: the weight of each fact in the loss and the metrics, summing to
    `load`. The targets are (slots,) tokens or (slots, n_tokens) distributions; with a reference
    encoder, two more columns hold its KL on each fact, from which excess_kl is counted, and its norm.
    """

    name: ClassVar[str] = "bigrams"
    fact: ClassVar[str] = "association"
    scoring_fields: ClassVar[frozenset[str]] = frozenset({"d_encoder", "kl_threshold", "objective"})
    recipe: ClassVar[Recipe] = Recipe(learning_rates=(0.003, 0.01, 0.03), steps=1000)
    later_fields: ClassVar = {"length": 2}
    presets: ClassVar = {
        "smoke": {"n_tokens": 12},
        "paper": {"n_tokens": 50},
    }

    n_tokens: int = Field(32, ge=2, le=2048, description="N: tokens; there are N^S contexts")
    length: int = Field(
        2, ge=2, le=16, description="S: tokens of a context: 2 for pairs, more for n-grams; N^S up to 2^22"
    )
    target: Literal["token", "distribution"] = Field(
        "token",
        description="token: one next token per pair, drawn uniformly; distribution: one over all tokens per pair",
    )
    prior: Literal["uniform", "power"] = Field(
        "uniform", description="weight of a pair in loss and metrics: the same for all, or a power of its rank"
    )
    prior_exponent: float = Field(
        1.0, gt=0, le=4, description="for prior=power, the r-th most frequent pair has weight r^-exponent"
    )
    temperature: float = Field(
        0.5, ge=0.01, le=100, description="distributions are softmax(g / temperature), g standard Gaussian; low: peaked"
    )
    d_encoder: int | None = Field(
        None,
        ge=0,
        description="width of the sequence encoder, fitted to each data set, whose KL is subtracted in excess_kl; left "
        "open: the width that the architecture unembeds, if it is fixed; 0: none, and the criterion is kl itself",
    )
    objective: Literal["kl", "total_variation", "squared_error"] = Field(
        "kl", description="what training on distributions minimises; all three are measured"
    )
    kl_threshold: float = Field(
        0.05, gt=0, description="distributions count as held at an excess_kl (kl, without an encoder) of this many nats"
    )

    @model_validator(mode="after")
    def _contexts_can_be_drawn(self) -> Bigrams:
        if self.n_tokens**self.length > MOST_CONTEXTS:
            raise ValueError(
                f"n_tokens^length must be at most {MOST_CONTEXTS}, got {self.n_tokens}^{self.length}; lower one of them"
            )
        return self

    @property
    def criterion(self) -> Criterion:
        """Nearly all tokens right, or a KL close to that of the encoder."""
        if self.target == "token":
            return Criterion("accuracy", 0.99)
        return Criterion("excess_kl" if self.d_encoder else "kl", self.kl_threshold, at_least=False)

    @property
    def signature(self) -> Lookup:
        """The tokens of a context in, logits of the next one out."""
        return Lookup(self.n_tokens, self.length, n_classes=self.n_tokens)

    @property
    def max_load(self) -> int:
        """Every context: for pairs, N²."""
        return self.signature.n_combinations

    def follow(self, architecture: Architecture) -> dict[str, int]:
        """The encoder's width, where distributions are asked for and it was left open."""
        heads = architecture.heads(self.signature)
        if self.target == "token" or self.d_encoder is not None or heads is None or not heads.has_unembedding:
            return {}
        return {"d_encoder": heads.d_model}

    def problem(self, load: int, slots: int, generator: Generator) -> Problem:
        """`load` distinct contexts with their answers: in grid order if the slots are the whole grid, else first."""
        if not 1 <= load <= self.max_load:
            raise LoadOutOfRange(f"{self.n_tokens} tokens have 1 to {self.max_load} contexts, got a load of {load}")
        order = torch.randperm(
            self.max_load, generator=generator
        )  # the facts come first, the most frequent ones leading
        weights = self._prior(load)
        answers = self._answers(weights, generator)
        is_grid = slots == self.max_load
        contexts = torch.arange(slots) if is_grid else order[:slots]
        slot = order[:load] if is_grid else torch.arange(load)  # (load,)
        targets, mask = answers.new_zeros(slots, *answers.shape[1:]), weights.new_zeros(slots)
        targets[slot], mask[slot] = answers, weights
        place_values = self.n_tokens ** torch.arange(self.length - 1, -1, -1)
        tokens = contexts.unsqueeze(1) // place_values % self.n_tokens  # (slots, length)
        return Problem((tokens,), targets, mask)

    def loss(self, outputs: Tensor, problem: Problem) -> Tensor:
        """Mean cross-entropy (token) or the chosen distance (distribution) under the prior."""
        if self.target == "token":
            return _mean(self._cross_entropy(outputs, problem), problem)
        return _mean(self._distances(outputs, problem)[self.objective], problem)

    def metrics(self, outputs: Tensor, problem: Problem) -> dict[str, Tensor]:
        """Accuracy, or distances of distributions and the excess KL, weighted by the prior; and the bits stored."""
        bits = self._bits(outputs, problem)
        if self.target == "token":
            is_right = (outputs.argmax(dim=-1) == problem.targets).to(outputs.dtype)
            return {"accuracy": _mean(is_right, problem), "bits": bits}
        distances = self._distances(outputs, problem)
        found = {name: _mean(values, problem) for name, values in distances.items()}
        if self.d_encoder:
            found["excess_kl"] = _mean(distances["kl"] - problem.targets[:, self.n_tokens], problem)
        return {**found, "bits": bits}

    def facts_held(self, metrics: Mapping[str, float], load: int) -> float | None:
        """Associations known if all others are guessed: T0 (acc - 1/N) / (1 - 1/N) [derived]."""
        if self.target != "token" or self.prior != "uniform" or "accuracy" not in metrics:
            return None
        chance = 1 / self.n_tokens
        return max(0.0, load * (metrics["accuracy"] - chance) / (1 - chance))

    def examine(self, problem: Problem) -> dict[str, float]:
        """The fitted KL of the best sequence encoder, an upper estimate of what its width allows, and its norm."""
        if self.target == "token" or not self.d_encoder:
            return {}
        kl, norms = problem.targets[:, self.n_tokens :].unbind(dim=1)  # (slots,) each
        largest = norms[problem.mask > 0].max()
        return {"best_encoder_kl": float(_mean(kl, problem)), "encoder_norm": float(largest)}

    def mass_beyond(self, n_facts: int, load: int) -> float:
        """Share of the prior that lies on all but the `n_facts` most frequent of `load` facts."""
        return float(self._prior(load)[n_facts:].double().sum()) / load

    def _prior(self, load: int) -> Tensor:
        """The weight of each fact, the most frequent first; they sum to `load`."""
        rank = torch.arange(1, load + 1, dtype=torch.float64)
        weights = rank ** -(self.prior_exponent if self.prior == "power" else 0.0)
        return (weights * (load / weights.sum())).float()

    def _answers(self, weights: Tensor, generator: Generator) -> Tensor:
        """Each fact's answer: (facts,) tokens, or (facts, n_tokens) distributions and two columns on the encoder."""
        load, n = len(weights), self.n_tokens
        if self.target == "token":
            return torch.randint(n, (load,), generator=generator)
        distributions = torch.softmax(torch.randn(load, n, generator=generator) / self.temperature, dim=1)
        if not self.d_encoder:
            return distributions
        columns = torch.stack(fit_encoder(distributions, weights, self.d_encoder), dim=1).float()  # (facts, 2)
        return torch.cat([distributions, columns], dim=1)  # (facts, n_tokens + 2)

    def _cross_entropy(self, outputs: Tensor, problem: Problem) -> Tensor:
        """Cross-entropy of each fact's answer under the model in nats, (slots,)."""
        if self.target == "token":
            return F.cross_entropy(outputs, problem.targets, reduction="none")
        return -(problem.targets[:, : self.n_tokens] * F.log_softmax(outputs, dim=-1)).sum(dim=-1)

    def _distances(self, outputs: Tensor, problem: Problem) -> dict[str, Tensor]:
        """Between each fact's distribution and the model's, (slots,): KL in nats, total variation, squared error."""
        targets = problem.targets[:, : self.n_tokens]
        gap = outputs.softmax(dim=-1) - targets  # (slots, n_tokens)
        return {
            "kl": kl_to_logits(targets, outputs),
            "total_variation": gap.abs().sum(dim=-1) / 2,
            "squared_error": gap.square().sum(dim=-1),
        }

    def _bits(self, outputs: Tensor, problem: Problem) -> Tensor:
        """Bits saved by coding one sample of each fact's answer with the model rather than uniformly.

        The sum over facts, each counted once whatever the prior, of log2 N minus the cross-entropy in
        bits; at least 0. For a single right token it is the information stored about it; for a
        distribution it cannot exceed log2 N minus the entropy.
        """
        saved = math.log2(self.n_tokens) - self._cross_entropy(outputs, problem) / math.log(2)
        return torch.where(problem.mask > 0, saved, 0.0).sum().clamp(min=0.0)


def _mean(values: Tensor, problem: Problem) -> Tensor:
    """Mean over the facts, weighted by the prior."""
    return (problem.mask * values).sum() / problem.mask.sum()


@hookimpl
def capbench_tasks() -> list[type[Task]]:
    """Bigrams."""
    return [Bigrams]
