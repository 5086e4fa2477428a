"""How many pairs a state can carry to the end of a sequence: by counting, by construction, and by a law of noise."""

from __future__ import annotations

import math
from typing import ClassVar

from pydantic import Field

from capbench import Architecture, Bound, BoundValue, Kind, NotApplicable, Pedigree, Task, hookimpl
from capbench_tasks.recall import ContextRecall


def _recall(task: Task) -> ContextRecall:
    """The task, if it is recall from a context."""
    if not isinstance(task, ContextRecall):
        raise NotApplicable("it is about recall from a context")
    return task


class StateCounting(Bound):
    """How many values a state of so many bits can tell apart."""

    name: ClassVar[str] = "state.counting"
    kind: ClassVar[Kind] = Kind.UPPER
    statement: ClassVar[str] = (
        "what is answered at the end of a sequence passed through the state, which holds no more bits than its elements"
    )
    formula: ClassVar[str] = "n ≤ s b / (log2 V - h(e) - e log2(V - 1)), s elements of b bits, e the share of errors"
    citation: ClassVar[str] = (
        "derived from Fano's inequality (Cover & Thomas 2005, doi 10.1002/047174882X, Theorem 2.10.1)"
    )
    pedigree: ClassVar[Pedigree] = Pedigree.DERIVED

    bits_per_element: float = Field(32.0, gt=0, description="bits of an element of the state: 32 in float32")

    def evaluate(self, task: Task, architecture: Architecture, load: int | None) -> BoundValue:
        """The bits of the state over the least bits that an answer takes at the criterion's accuracy."""
        recall = _recall(task)
        if recall.recent or recall.gaps != "uniform":
            raise NotApplicable("it counts pairs that are asked for alike")
        size = architecture.state_size(recall.signature, recall.signature.length)
        if size is None:
            raise NotApplicable(f"{architecture.name} does not say how large its state is")
        needed = bits_per_answer(recall.n_values, 1 - recall.criterion.threshold)
        if needed <= 0:
            raise NotApplicable("so few right answers can be guessed")
        return BoundValue(
            size * self.bits_per_element / needed, note="errors on all sequences, not only on those drawn"
        )


def bits_per_answer(n_values: int, errors: float) -> float:
    """The least information about a uniform value that lets it be told with this share of errors, by Fano."""
    uncertain = -sum(p * math.log2(p) for p in (errors, 1 - errors) if p > 0)
    return math.log2(n_values) - uncertain - errors * math.log2(n_values - 1)


class OrthogonalKeys(Bound):
    """A delta rule whose key space has an axis for every key."""

    name: ClassVar[str] = "delta_rule.orthogonal_keys"
    kind: ClassVar[Kind] = Kind.LOWER
    statement: ClassVar[str] = (
        "where keys have an axis each, what is written for one does not change what is read for another"
    )
    formula: ClassVar[str] = "n = K if d_qk ≥ K, d_vo ≥ V and d_model ≥ K + V, with pairs of one token"
    citation: ClassVar[str] = "derived from the delta rule of Schlag et al. 2021, arXiv 2102.11174"
    pedigree: ClassVar[Pedigree] = Pedigree.DERIVED

    def evaluate(self, task: Task, architecture: Architecture, load: int | None) -> BoundValue:
        """All pairs that a sequence may have."""
        recall, fields = _recall(task), dict(architecture)
        if architecture.name != "deltanet":
            raise NotApplicable(f"it is about the delta rule; {architecture.name} is another model")
        if recall.tokens_per_pair != 1:
            raise NotApplicable("one layer binds only what one token brings; it needs task.tokens_per_pair=1")
        if fields["norm"] != "none" or fields["read"] != "last":
            raise NotApplicable("its weights are for models without norm that read the last position")
        K, V = recall.n_keys, recall.n_values
        if fields["d_qk"] < K or fields["d_vo"] < V or fields["d_model"] < K + V:
            raise NotApplicable(f"it needs d_qk ≥ {K}, d_vo ≥ {V} and d_model ≥ {K + V}")
        return BoundValue(float(recall.max_load))


class KeyWidthLaw(Bound):
    """Pairs in the order of the width of the keys; a subclass says for which rule.

    With pairs of two tokens, one layer brings keys and values together and the next one binds them.
    """

    kind: ClassVar[Kind] = Kind.LAW
    pedigree: ClassVar[Pedigree] = Pedigree.PAPER
    architectures: ClassVar[tuple[str, ...]]

    def evaluate(self, task: Task, architecture: Architecture, load: int | None) -> BoundValue:
        """The width of a head's keys, after the feature map where there is one."""
        recall, fields = _recall(task), dict(architecture)
        if architecture.name not in self.architectures:
            raise NotApplicable(f"it is about {' and '.join(self.architectures)}; {architecture.name} is another model")
        if recall.tokens_per_pair == 2 and fields.get("n_layers", 1) < 2:
            raise NotApplicable("one layer binds only what one token brings; it needs arch.n_layers=2")
        d = fields["d_qk"]
        width = (d + 1) * (d + 2) // 2 if fields.get("feature") == "taylor" else d
        return BoundValue(float(width), note="of one head; for random keys")


class LinearAttentionNoise(KeyWidthLaw):
    """Linear attention adds all pairs up: each is read with noise from the others."""

    name: ClassVar[str] = "zhong2025.linear_attention"
    statement: ClassVar[str] = "n random pairs added up in one state are read with a noise-to-signal ratio of n / d_qk"
    formula: ClassVar[str] = "n ~ d_qk"
    citation: ClassVar[str] = "Zhong et al. 2025, arXiv 2505.19488, retrieval SNR of linear attention"
    architectures: ClassVar[tuple[str, ...]] = ("linear_attention", "linear_mixer", "gla")


class DeltaRuleWidth(KeyWidthLaw):
    """The delta rule takes out what its state holds for a key before it writes."""

    name: ClassVar[str] = "zhong2025.delta_rule"
    statement: ClassVar[str] = "the delta rule keeps nearly all pairs while they are fewer than the dimensions of a key"
    formula: ClassVar[str] = "n ~ d_qk"
    citation: ClassVar[str] = "Zhong et al. 2025, arXiv 2505.19488, memory update by the delta rule"
    architectures: ClassVar[tuple[str, ...]] = ("deltanet", "gated_deltanet")


@hookimpl
def capbench_bounds() -> list[type[Bound]]:
    """A count, a construction and two laws."""
    return [StateCounting, OrthogonalKeys, LinearAttentionNoise, DeltaRuleWidth]
