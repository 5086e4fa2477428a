"""Bigrams: which token follows a pair of tokens, or with which probability?

Dana, Pydi & Chevaleyre, "Memorization in Attention-only Transformers", arXiv 2411.10115 (AISTATS 2025).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Generator, Tensor
from torch.nn import functional as F

from capbench import (
    Criterion,
    LoadOutOfRange,
    Lookup,
    Problem,
    Recipe,
    Task,
    hookimpl,
)
from capbench_tasks.sequence_encoder import fit_encoder_kl, kl_to_logits


class Bigrams(Task):
    """Recall what follows a pair of tokens: one token, or a distribution over all. A fact is one pair's answer.

    The mask of a problem is the prior: the weight of each fact in the loss and the metrics, summing to
    `load`. The targets are (slots,) tokens or (slots, n_tokens) distributions; with a reference
    encoder, one more column holds its KL on each fact, from which excess_kl is counted.
    """

    name: ClassVar[str] = "bigrams"
    fact: ClassVar[str] = "association"
    scoring_fields: ClassVar[frozenset[str]] = frozenset({"d_encoder", "kl_threshold"})
    recipe: ClassVar[Recipe] = Recipe(learning_rates=(0.003, 0.01, 0.03), steps=1000)
    presets: ClassVar = {
        "smoke": {"n_tokens": 12},
        "paper": {"n_tokens": 50},
    }

    n_tokens: int = Field(32, ge=2, le=2048, description="N: tokens; there are N^2 pairs")
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
    d_encoder: int = Field(
        8,
        ge=0,
        description="width of the sequence encoder, fitted to each data set, whose KL is subtracted in excess_kl; "
        "0: none, and the criterion is kl itself",
    )
    kl_threshold: float = Field(
        0.05, gt=0, description="distributions count as held at an excess_kl (kl, without an encoder) of this many nats"
    )

    @property
    def criterion(self) -> Criterion:
        """Nearly all tokens right, or a KL close to that of the encoder."""
        if self.target == "token":
            return Criterion("accuracy", 0.99)
        return Criterion("excess_kl" if self.d_encoder else "kl", self.kl_threshold, at_least=False)

    @property
    def signature(self) -> Lookup:
        """Two tokens in, logits of the next one out."""
        return Lookup(self.n_tokens, length=2, n_classes=self.n_tokens)

    @property
    def max_load(self) -> int:
        """Every pair of tokens."""
        return self.n_tokens**2

    def problem(self, load: int, slots: int, generator: Generator) -> Problem:
        """`load` distinct pairs with their answers: in grid order if the slots are the whole grid, else first."""
        if not 1 <= load <= self.max_load:
            raise LoadOutOfRange(f"{self.n_tokens} tokens have 1 to {self.max_load} pairs, got a load of {load}")
        order = torch.randperm(
            self.max_load, generator=generator
        )  # the facts come first, the most frequent ones leading
        weights = self._prior(load)
        answers = self._answers(weights, generator)
        is_grid = slots == self.max_load
        pairs = torch.arange(slots) if is_grid else order[:slots]
        slot = order[:load] if is_grid else torch.arange(load)  # (load,)
        targets, mask = answers.new_zeros(slots, *answers.shape[1:]), weights.new_zeros(slots)
        targets[slot], mask[slot] = answers, weights
        tokens = torch.stack([pairs // self.n_tokens, pairs % self.n_tokens], dim=1)  # (slots, 2)
        return Problem((tokens,), targets, mask)

    def loss(self, outputs: Tensor, problem: Problem) -> Tensor:
        """Mean cross-entropy (token) or KL (distribution) under the prior."""
        losses = self._cross_entropy(outputs, problem) if self.target == "token" else self._kl(outputs, problem)
        return _mean(losses, problem)

    def metrics(self, outputs: Tensor, problem: Problem) -> dict[str, Tensor]:
        """Accuracy, or the KL and its excess over that of the encoder, weighted by the prior; and the bits stored."""
        bits = self._bits(outputs, problem)
        if self.target == "token":
            is_right = (outputs.argmax(dim=-1) == problem.targets).to(outputs.dtype)
            return {"accuracy": _mean(is_right, problem), "bits": bits}
        kl = self._kl(outputs, problem)
        if not self.d_encoder:
            return {"kl": _mean(kl, problem), "bits": bits}
        excess = kl - problem.targets[:, self.n_tokens]
        return {"kl": _mean(kl, problem), "excess_kl": _mean(excess, problem), "bits": bits}

    def facts_held(self, metrics: Mapping[str, float], load: int) -> float | None:
        """Associations known if all others are guessed: T0 (acc - 1/N) / (1 - 1/N) [derived]."""
        if self.target != "token" or self.prior != "uniform" or "accuracy" not in metrics:
            return None
        chance = 1 / self.n_tokens
        return max(0.0, load * (metrics["accuracy"] - chance) / (1 - chance))

    def examine(self, problem: Problem) -> dict[str, float]:
        """The fitted KL of the best sequence encoder, an upper estimate of what its width allows."""
        if self.target == "token" or not self.d_encoder:
            return {}
        return {"best_encoder_kl": float(_mean(problem.targets[:, self.n_tokens], problem))}

    def _prior(self, load: int) -> Tensor:
        """The weight of each fact, the most frequent first; they sum to `load`."""
        rank = torch.arange(1, load + 1, dtype=torch.float64)
        weights = rank ** -(self.prior_exponent if self.prior == "power" else 0.0)
        return (weights * (load / weights.sum())).float()

    def _answers(self, weights: Tensor, generator: Generator) -> Tensor:
        """Each fact's answer: (facts,) tokens, or (facts, n_tokens) distributions plus a column of the encoder's KL."""
        load, n = len(weights), self.n_tokens
        if self.target == "token":
            return torch.randint(n, (load,), generator=generator)
        distributions = torch.softmax(torch.randn(load, n, generator=generator) / self.temperature, dim=1)
        if not self.d_encoder:
            return distributions
        reference = fit_encoder_kl(distributions, weights, self.d_encoder).float()  # (facts,)
        return torch.cat([distributions, reference.unsqueeze(1)], dim=1)  # (facts, n_tokens + 1)

    def _cross_entropy(self, outputs: Tensor, problem: Problem) -> Tensor:
        """Cross-entropy of each fact's answer under the model in nats, (slots,)."""
        if self.target == "token":
            return F.cross_entropy(outputs, problem.targets, reduction="none")
        return -(problem.targets[:, : self.n_tokens] * F.log_softmax(outputs, dim=-1)).sum(dim=-1)

    def _kl(self, outputs: Tensor, problem: Problem) -> Tensor:
        """KL(target ‖ model) of each fact in nats, (slots,)."""
        return kl_to_logits(problem.targets[:, : self.n_tokens], outputs)

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
