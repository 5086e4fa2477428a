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
    FACTS,
    Architecture,
    Bound,
    BoundValue,
    Criterion,
    Heads,
    Kind,
    LoadOutOfRange,
    Lookup,
    NotApplicable,
    Pedigree,
    Problem,
    Recipe,
    Task,
    hookimpl,
)
from capbench_tasks.sequence_encoder import fit_encoder, kl_to_logits

PAPER = "Dana, Pydi & Chevaleyre 2025, Memorization in Attention-only Transformers, arXiv 2411.10115"


class Bigrams(Task):
    """Recall what follows a pair of tokens: one token, or a distribution over all. A fact is one pair's answer.

    The mask of a problem is the prior: what each fact weighs in the loss and the scores, `load` in
    all. The targets are (slots,) tokens or (slots, n_tokens) distributions; where a reference
    encoder is asked for, one more column holds its KL on each fact, so that the excess can be scored.
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
        "token", description="token: one next token a pair, drawn uniformly; distribution: a full one over all tokens"
    )
    prior: Literal["uniform", "power"] = Field(
        "uniform", description="what pairs weigh in loss and scores: all the same, or as a power of their rank"
    )
    prior_exponent: float = Field(
        1.0, gt=0, le=4, description="on prior=power, the r-th most frequent pair weighs r^-exponent"
    )
    temperature: float = Field(
        0.5, ge=0.01, le=100, description="distributions are softmax(g / temperature), g standard Gaussian; low: peaked"
    )
    d_encoder: int = Field(
        8,
        ge=0,
        description="width of the sequence encoder whose KL excess_kl is counted from, fitted to each data set; "
        "0: none, and the criterion is kl itself",
    )
    kl_threshold: float = Field(
        0.05, gt=0, description="distributions count as held at an excess_kl (kl, without an encoder) of this many nats"
    )

    @property
    def criterion(self) -> Criterion:
        """Nearly all answers right; or distributions nearly as well told as by the encoder."""
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
        """`load` distinct pairs with their answers: in grid order where the slots are the whole grid, else first."""
        if not 1 <= load <= self.max_load:
            raise LoadOutOfRange(f"{self.n_tokens} tokens have 1 to {self.max_load} pairs, got a load of {load}")
        order = torch.randperm(self.max_load, generator=generator)  # the facts first, the most frequent leading
        weights = self._prior(load)
        answers = self._answers(weights, generator)
        is_grid = slots == self.max_load
        pairs = torch.arange(slots) if is_grid else order[:slots]
        place = order[:load] if is_grid else torch.arange(load)
        targets, mask = answers.new_zeros(slots, *answers.shape[1:]), weights.new_zeros(slots)
        targets[place], mask[place] = answers, weights
        tokens = torch.stack([pairs // self.n_tokens, pairs % self.n_tokens], dim=1)  # (slots, 2)
        return Problem((tokens,), targets, mask)

    def loss(self, outputs: Tensor, problem: Problem) -> Tensor:
        """Cross-entropy (token) or KL (distribution), averaged over the prior."""
        lost = self._cross_entropy(outputs, problem) if self.target == "token" else self._kl(outputs, problem)
        return _mean(lost, problem)

    def metrics(self, outputs: Tensor, problem: Problem) -> dict[str, Tensor]:
        """The share of right answers, or the KL and its excess over the encoder's, by the prior; and the bits held."""
        bits = self._bits(outputs, problem)
        if self.target == "token":
            right = (outputs.argmax(dim=-1) == problem.targets).to(outputs.dtype)
            return {"accuracy": _mean(right, problem), "bits": bits}
        kl = self._kl(outputs, problem)
        if not self.d_encoder:
            return {"kl": _mean(kl, problem), "bits": bits}
        excess = kl - problem.targets[:, self.n_tokens]
        return {"kl": _mean(kl, problem), "excess_kl": _mean(excess, problem), "bits": bits}

    def facts_held(self, metrics: Mapping[str, float], load: int) -> float | None:
        """Associations that explain the accuracy if all others are guessed: T0 (acc - 1/N) / (1 - 1/N) [derived]."""
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
        """What each fact weighs, the most frequent first; `load` in all."""
        rank = torch.arange(1, load + 1, dtype=torch.float64)
        weights = rank ** -(self.prior_exponent if self.prior == "power" else 0.0)
        return (weights * (load / weights.sum())).float()

    def _answers(self, weights: Tensor, generator: Generator) -> Tensor:
        """One answer a fact: (facts,) tokens, or (facts, n_tokens) distributions with the encoder's KL beside them."""
        load, n = len(weights), self.n_tokens
        if self.target == "token":
            return torch.randint(n, (load,), generator=generator)
        distributions = torch.softmax(torch.randn(load, n, generator=generator) / self.temperature, dim=1)
        if not self.d_encoder:
            return distributions
        reference = fit_encoder(distributions, weights, self.d_encoder).kl.float()
        return torch.cat([distributions, reference.unsqueeze(1)], dim=1)  # (facts, n_tokens + 1)

    def _cross_entropy(self, outputs: Tensor, problem: Problem) -> Tensor:
        """Nats to code a sample of each fact's answer with the model, (slots,)."""
        if self.target == "token":
            return F.cross_entropy(outputs, problem.targets, reduction="none")
        return -(problem.targets[:, : self.n_tokens] * F.log_softmax(outputs, dim=-1)).sum(dim=-1)

    def _kl(self, outputs: Tensor, problem: Problem) -> Tensor:
        """KL(target ‖ model) of each fact in nats, (slots,)."""
        return kl_to_logits(problem.targets[:, : self.n_tokens], outputs)

    def _bits(self, outputs: Tensor, problem: Problem) -> Tensor:
        """Bits saved when each fact's answer is sampled once and coded with the model instead of uniformly.

        The sum over facts, each counted once whatever the prior, of log2 N minus the expected code
        length, which is the cross-entropy in bits; not below 0. For a single right token it is the
        information held about it; for a distribution it cannot exceed log2 N minus the entropy.
        """
        saved = math.log2(self.n_tokens) - self._cross_entropy(outputs, problem) / math.log(2)
        return torch.where(problem.mask > 0, saved, 0.0).sum().clamp(min=0.0)


def _mean(values: Tensor, problem: Problem) -> Tensor:
    """Mean over the facts, weighted by the prior."""
    return (problem.mask * values).sum() / problem.mask.sum()


def _bigrams(task: Task) -> Bigrams:
    if not isinstance(task, Bigrams):
        raise NotApplicable("it speaks of bigrams")
    return task


def _heads(task: Bigrams, architecture: Architecture) -> Heads:
    heads = architecture.heads(task.signature)
    if heads is None:
        raise NotApplicable(f"{architecture.name} does not have the heads that the theorem counts")
    return heads


def _associations(task: Bigrams, architecture: Architecture) -> int:
    """H·d_h + d of a one-layer attention-only transformer with a skip; widths beyond the tokens' rank do not count."""
    heads = _heads(task, architecture)
    if task.target != "token":
        raise NotApplicable("it speaks of pairs with one right next token; target is 'distribution'")
    if heads.n_layers != 1 or not (heads.has_skip and heads.has_positions):
        raise NotApplicable("it speaks of one attention layer with a skip connection and positions")
    if heads.d_model < 2:
        raise NotApplicable("at d = 1 only two tokens can ever have the largest logit")
    d = min(heads.d_model, task.n_tokens)
    return heads.n_heads * min(heads.d_vo, d) + d


class Associations(Bound):
    """Pairs whose next token one attention layer can always hold."""

    name: ClassVar[str] = "dana2025.associations"
    kind: ClassVar[Kind] = Kind.LOWER
    statement: ClassVar[str] = (
        "a one-layer attention-only transformer has weights that hold H·d_h + d associations, at any context length"
    )
    formula: ClassVar[str] = "T0 = H·d_h + d"
    citation: ClassVar[str] = f"{PAPER}, Theorem 1 and Table 1; Corollary 1 at d = 2"
    pedigree: ClassVar[Pedigree] = Pedigree.PAPER

    def evaluate(self, task: Task, architecture: Architecture, load: int | None) -> BoundValue:
        """Never more than the pairs that exist."""
        bigrams = _bigrams(task)
        held = _associations(bigrams, architecture)
        if held > bigrams.max_load:
            return BoundValue(bigrams.max_load, FACTS, f"all pairs; the formula gives {held}")
        return BoundValue(held, FACTS, "d_h is the value width; d counts up to N, d_h up to d [derived]")


class Accuracy(Bound):
    """What guessing the rest adds to the associations held."""

    name: ClassVar[str] = "dana2025.accuracy"
    kind: ClassVar[Kind] = Kind.LOWER
    statement: ClassVar[str] = (
        "of T0 associations under a uniform prior, H·d_h + d are held and the others are right by chance"
    )
    formula: ClassVar[str] = "accuracy >= 1/N + (1 - 1/N) min(1, (H·d_h + d) / T0)"
    citation: ClassVar[str] = f"{PAPER}, Corollary 2"
    pedigree: ClassVar[Pedigree] = Pedigree.PAPER

    def evaluate(self, task: Task, architecture: Architecture, load: int | None) -> BoundValue:
        """At `load` associations, or at the whole table."""
        bigrams = _bigrams(task)
        held = _associations(bigrams, architecture)
        if bigrams.prior != "uniform":
            raise NotApplicable("it speaks of a uniform prior over the pairs; prior is 'power'")
        n_facts, chance = load or bigrams.max_load, 1 / bigrams.n_tokens
        value = chance + (1 - chance) * min(1.0, held / n_facts)
        return BoundValue(value, "accuracy", f"at T0 = {n_facts}; the min is capbench's")


class BestEncoderKl(Bound):
    """The KL that a narrow unembedding leaves, whatever stands before it."""

    name: ClassVar[str] = "dana2025.best_encoder_kl"
    kind: ClassVar[Kind] = Kind.UPPER
    statement: ClassVar[str] = (
        "no model that unembeds d dimensions has a lower KL than the best logit table of rank d, "
        "which is 0 if d >= N - 1, and for single right tokens if d >= 2"
    )
    formula: ClassVar[str] = "KL(model) >= inf over W, E of KL(softmax W·E(t))"
    citation: ClassVar[str] = f"{PAPER}, Propositions 1-3"
    pedigree: ClassVar[Pedigree] = Pedigree.PAPER

    def evaluate(self, task: Task, architecture: Architecture, load: int | None) -> BoundValue:
        """A floor on kl, given only where it is known without a fit: there it is 0."""
        bigrams = _bigrams(task)
        d = _heads(bigrams, architecture).d_model
        if d >= bigrams.n_tokens - 1:
            return BoundValue(0.0, "kl", f"d = {d} is enough for any table over {bigrams.n_tokens} tokens")
        if bigrams.target == "token" and d >= 2:
            return BoundValue(0.0, "kl", "single right tokens need no more than d = 2")
        if load is not None and load <= d:
            return BoundValue(0.0, "kl", f"{load} facts are no more than d = {d} [derived]")
        raise NotApplicable(
            f"fitted to each data set, from above: see best_encoder_kl in the trials' data, "
            f"fitted at d_encoder = {bigrams.d_encoder}; this architecture has d = {d}"
        )


@hookimpl
def capbench_tasks() -> list[type[Task]]:
    """Bigrams."""
    return [Bigrams]


@hookimpl
def capbench_bounds() -> list[type[Bound]]:
    """What is known of its capacity."""
    return [Associations, Accuracy, BestEncoderKl]
