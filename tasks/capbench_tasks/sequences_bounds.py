"""What Mahdavi, Liao & Thrampoulidis 2024 prove about one attention layer on labelled sequences."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from capbench import FACTS, Architecture, Bound, BoundValue, Heads, Kind, NotApplicable, Pedigree, Task, hookimpl
from capbench_tasks.sequences import Sequences

HEAD_OUTPUT_RANK = "head_output_rank"
"""Analysis of a trained model: the numerical rank of Z, the stacked outputs of the heads."""


def _attention_of(task: Task, architecture: Architecture) -> tuple[Sequences, Heads]:
    """The task and its single layer of heads, to which both bounds apply."""
    if not isinstance(task, Sequences):
        raise NotApplicable("it is about labelled sequences, of contexts and queries")
    heads = architecture.heads(task.signature)
    if heads is None:
        raise NotApplicable(f"{architecture.name} does not have the heads that the theorem counts")
    if heads.n_layers != 1:
        raise NotApplicable(f"it is about one attention layer; {architecture.name} has {heads.n_layers}")
    return task, heads


class Examples(Bound):
    """Examples for which weights always exist, whatever the labels."""

    name: ClassVar[str] = "mahdavi2024.examples"
    kind: ClassVar[Kind] = Kind.LOWER
    statement: ClassVar[str] = (
        "one attention layer without skip can recall any labels of H(min(n, d_h) - 1) + 1 examples whose queries "
        "have Kruskal rank n or more and whose contexts have rank n"
    )
    formula: ClassVar[str] = "T >= H (min(n, d_h) - 1) + 1; n is the Kruskal rank of the queries where that is lower"
    citation: ClassVar[str] = (
        "Mahdavi, Liao, Thrampoulidis 2024, Memorization Capacity of Multi-Head Attention in Transformers, "
        "arXiv 2306.02010, Theorem 1"
    )
    pedigree: ClassVar[Pedigree] = Pedigree.PAPER

    def evaluate(self, task: Task, architecture: Architecture, load: int | None) -> BoundValue:
        """The number of examples guaranteed; d_h is the query/key width of a head."""
        return self.evaluate_on(task, architecture, load, {})

    def evaluate_on(
        self, task: Task, architecture: Architecture, load: int | None, data: Mapping[str, float]
    ) -> BoundValue:
        """The same for data whose assumptions were tested: a lower Kruskal rank of the queries takes the place of n."""
        sequences, heads = _attention_of(task, architecture)
        if data.get("context_rank_share", 1.0) < 1:
            raise NotApplicable("the theorem needs contexts of rank n; some of these have a lower one")
        if heads.has_skip:
            raise NotApplicable("the theorem's layer has no skip connection")
        if heads.d_model <= sequences.n_context:
            raise NotApplicable(
                f"the theorem needs n < d, but {architecture.name} attends to {sequences.n_context} vectors "
                f"of width {heads.d_model}"
            )
        if sequences.n_classes > 2 and heads.d_vo < 2:
            raise NotApplicable(
                f"values of width 1 carry a scalar or two classes, not {sequences.n_classes} [derived]; set arch.d_vo=2"
            )
        n = int(data.get("query_kruskal_rank", sequences.query_rank or sequences.n_context))
        note = f"the queries have Kruskal rank {n}, below n" if n < sequences.n_context else ""
        rank = max(1, min(n, sequences.n_context, heads.d_qk))
        notes = (note, _value_width_note(sequences, heads))
        return BoundValue(heads.n_heads * (rank - 1) + 1, FACTS, "; ".join(each for each in notes if each))


def _value_width_note(task: Sequences, heads: Heads) -> str:
    """Why the guarantee holds even where the values are narrower than the logits [derived]."""
    if heads.d_vo >= min(task.n_classes, heads.d_model):
        return ""
    return f"for labels read by argmax, for which d_vo = 2 is enough [derived]; here d_vo = {heads.d_vo}"


class SharedContextRank(Bound):
    """The rank of the head outputs on a shared context: weights sum to one, so every head but one loses a dimension."""

    name: ClassVar[str] = "mahdavi2024.shared_context_rank"
    kind: ClassVar[Kind] = Kind.UPPER
    statement: ClassVar[str] = (
        "on one shared context the stacked outputs Z of the heads have rank H(n - 1) + 1 at most: a limit for "
        "attention that was set without the labels, not for a trained model"
    )
    formula: ClassVar[str] = "rank(Z) <= H (n - 1) + 1"
    citation: ClassVar[str] = (
        "Mahdavi, Liao, Thrampoulidis 2024, Memorization Capacity of Multi-Head Attention in Transformers, "
        "arXiv 2306.02010, Proposition 2"
    )
    pedigree: ClassVar[Pedigree] = Pedigree.PAPER

    def evaluate(self, task: Task, architecture: Architecture, load: int | None) -> BoundValue:
        """The rank, which is not a number of facts; `--analyse` measures it."""
        sequences, heads = _attention_of(task, architecture)
        if not sequences.shared_context:
            raise NotApplicable("every example has a context of its own; set task.shared_context=true")
        rank = heads.n_heads * (sequences.n_context - 1) + 1
        return BoundValue(
            rank,
            HEAD_OUTPUT_RANK,
            "limits attention set without the labels, not a trained model [derived]",
        )


@hookimpl
def capbench_bounds() -> list[type[Bound]]:
    """The bounds of Mahdavi et al. 2024."""
    return [Examples, SharedContextRank]
