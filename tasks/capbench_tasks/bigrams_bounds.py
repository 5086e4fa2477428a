"""What Dana, Pydi & Chevaleyre 2025 prove about attention-only transformers on bigrams."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from capbench import FACTS, Architecture, Bound, BoundValue, Heads, Kind, NotApplicable, Pedigree, Task, hookimpl
from capbench_tasks.bigrams import Bigrams

PAPER = "Dana, Pydi & Chevaleyre 2025, Memorization in Attention-only Transformers, arXiv 2411.10115"
FIT_SLACK = 0.02
"""How far a fitted encoder may be above the infimum, as a share of its KL; a finer fit lowered it by .5 %
at most, over 24 tables of 10 to 20 tokens at d = 2 to 6."""


def _bigrams(task: Task) -> Bigrams:
    if not isinstance(task, Bigrams):
        raise NotApplicable("it is about bigrams")
    return task


def _heads(task: Bigrams, architecture: Architecture) -> Heads:
    heads = architecture.heads(task.signature)
    if heads is None:
        raise NotApplicable(f"{architecture.name} does not have the heads that the theorem counts")
    return heads


def _associations(task: Bigrams, architecture: Architecture) -> int:
    """The pairs with one right next token that a one-layer attention-only transformer can hold."""
    if task.target != "token":
        raise NotApplicable("it is about pairs with one right next token; target is 'distribution'")
    return _pairs_held(task, architecture)


def _pairs_held(task: Bigrams, architecture: Architecture) -> int:
    """H·d_h + d for a one-layer attention-only transformer; widths beyond the number of tokens add nothing."""
    heads = _heads(task, architecture)
    if heads.n_layers != 1 or not (heads.has_skip and heads.has_positions):
        raise NotApplicable("it is about one attention layer with a skip connection and positions")
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
        """H·d_h + d, but no more than there are pairs."""
        bigrams = _bigrams(task)
        held = _associations(bigrams, architecture)
        if held > bigrams.max_load:
            return BoundValue(bigrams.max_load, FACTS, f"all pairs; the formula gives {held}")
        return BoundValue(held, FACTS, "d_h is the value width; d counts up to N, d_h up to d [derived]")


class Accuracy(Bound):
    """Accuracy if the associations held are right and the rest are guessed."""

    name: ClassVar[str] = "dana2025.accuracy"
    kind: ClassVar[Kind] = Kind.LOWER
    statement: ClassVar[str] = (
        "of T0 associations under a uniform prior, H·d_h + d are held and the others are right by chance"
    )
    formula: ClassVar[str] = "accuracy >= 1/N + (1 - 1/N) min(1, (H·d_h + d) / T0)"
    citation: ClassVar[str] = f"{PAPER}, Corollary 2"
    pedigree: ClassVar[Pedigree] = Pedigree.PAPER

    def evaluate(self, task: Task, architecture: Architecture, load: int | None) -> BoundValue:
        """At `load` associations, or at all pairs."""
        bigrams = _bigrams(task)
        held = _associations(bigrams, architecture)
        if bigrams.prior != "uniform":
            raise NotApplicable("it is about a uniform prior over the pairs; prior is 'power'")
        n_facts, chance = load or bigrams.max_load, 1 / bigrams.n_tokens
        value = chance + (1 - chance) * min(1.0, held / n_facts)
        return BoundValue(value, "accuracy", f"at T0 = {n_facts}; the min is capbench's")


class BestEncoderKl(Bound):
    """The lowest KL that a narrow unembedding allows, whatever precedes it."""

    name: ClassVar[str] = "dana2025.best_encoder_kl"
    kind: ClassVar[Kind] = Kind.UPPER
    statement: ClassVar[str] = (
        "no model that unembeds d dimensions has a lower KL than the best logit table of rank d, "
        "which is 0 if d >= N - 1, and for single right tokens if d >= 2"
    )
    formula: ClassVar[str] = "KL(model) >= inf over W, E of KL(softmax W·E(t))"
    citation: ClassVar[str] = f"{PAPER}, Propositions 1-3"
    pedigree: ClassVar[Pedigree] = Pedigree.PAPER
    lower_is_better: ClassVar[bool | None] = True

    def evaluate(self, task: Task, architecture: Architecture, load: int | None) -> BoundValue:
        """A floor on kl, given only where it is known without a fit: there it is 0."""
        bigrams = _bigrams(task)
        d = _unembedded_width(bigrams, architecture)
        if d >= bigrams.n_tokens - 1:
            return BoundValue(0.0, "kl", f"d = {d} is enough for any table over {bigrams.n_tokens} tokens")
        if bigrams.target == "token" and d >= 2:
            return BoundValue(0.0, "kl", "single right tokens need no more than d = 2")
        if load is not None and load <= d:
            return BoundValue(0.0, "kl", f"{load} facts are no more than d = {d} [derived]")
        raise NotApplicable(
            f"fitted to each data set: a run on distributions with task.d_encoder of at least d = {d} has the floor; "
            f"it is {bigrams.d_encoder}"
        )

    def evaluate_on(
        self, task: Task, architecture: Architecture, load: int | None, data: Mapping[str, float]
    ) -> BoundValue:
        """The KL of the encoder that was fitted to the data, less what its fit may be above the infimum."""
        bigrams = _bigrams(task)
        d = _unembedded_width(bigrams, architecture)
        if "best_encoder_kl" not in data or (bigrams.d_encoder or 0) < d:
            return self.evaluate(task, architecture, load)
        floor = (1 - FIT_SLACK) * data["best_encoder_kl"]
        return BoundValue(floor, "kl", f"fitted numerically at d = {bigrams.d_encoder}, less {FIT_SLACK:.0%}")


class ExcessKl(Bound):
    """How far a model that covers only the most frequent pairs lies above the best encoder."""

    name: ClassVar[str] = "dana2025.excess_kl"
    kind: ClassVar[Kind] = Kind.LAW
    statement: ClassVar[str] = (
        "with H·d_h + d of at least T_ε pairs, which carry all but ε of the prior, some weights have a KL of at most "
        "that of the best encoder plus C·ε·‖WE‖"
    )
    formula: ClassVar[str] = "KL(model) <= KL(best encoder) + C·ε·‖WE‖ + γ, for any γ > 0"
    citation: ClassVar[str] = f"{PAPER}, Theorem 1"
    pedigree: ClassVar[Pedigree] = Pedigree.PAPER
    lower_is_better: ClassVar[bool | None] = True

    def evaluate(self, task: Task, architecture: Architecture, load: int | None) -> BoundValue:
        """ε alone: ‖WE‖ is that of the encoder that a run on distributions fits to its data."""
        bigrams = _bigrams(task)
        held = _pairs_held(bigrams, architecture)
        share = bigrams.mass_beyond(held, load or bigrams.max_load)
        return BoundValue(share, "excess_kl", f"per unit of ‖WE‖: ε beyond the {held} most frequent pairs, constant 1")

    def evaluate_on(
        self, task: Task, architecture: Architecture, load: int | None, data: Mapping[str, float]
    ) -> BoundValue:
        """ε·‖WE‖ with the constant set to 1; ‖WE‖ is the largest norm of a pair's logits [derived]."""
        if "encoder_norm" not in data:
            return self.evaluate(task, architecture, load)
        bigrams = _bigrams(task)
        held = _pairs_held(bigrams, architecture)
        share = bigrams.mass_beyond(held, load or bigrams.max_load)
        return BoundValue(
            share * data["encoder_norm"],
            "excess_kl",
            f"ε = {share:.3g} beyond the {held} most frequent pairs, ‖WE‖ = {data['encoder_norm']:.3g}, constant 1",
        )


def _unembedded_width(task: Bigrams, architecture: Architecture) -> int:
    """d, where one matrix reads the logits from d dimensions."""
    heads = _heads(task, architecture)
    if not heads.has_unembedding:
        raise NotApplicable(f"{architecture.name} does not read its logits from a stream of width d")
    return heads.d_model


@hookimpl
def capbench_bounds() -> list[type[Bound]]:
    """The bounds of Dana et al. 2025."""
    return [Associations, Accuracy, BestEncoderKl, ExcessKl]
