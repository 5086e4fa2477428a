"""Bits per parameter: what trained language models were found to store, as a reference value for other models."""

from __future__ import annotations

from typing import ClassVar

from capbench import Architecture, Bound, BoundValue, Kind, NotApplicable, Pedigree, Task, hookimpl


class BitsPerParameter(Bound):
    """An empirical reference value, not a theorem: a model may store less or more."""

    name: ClassVar[str] = "bits.per_parameter"
    kind: ClassVar[Kind] = Kind.LAW
    statement: ClassVar[str] = "trained language models were found to store about 2 bits of knowledge per parameter"
    formula: ClassVar[str] = "bits ≈ 2 · parameters"
    citation: ClassVar[str] = (
        "Allen-Zhu & Li 2024, Physics of Language Models: Part 3.3, arXiv 2404.05405; "
        "cf. Morris et al. 2025, arXiv 2505.24832"
    )
    pedigree: ClassVar[Pedigree] = Pedigree.PAPER

    def evaluate(self, task: Task, architecture: Architecture, load: int | None) -> BoundValue:
        """2, for every architecture and every task whose facts are in the weights."""
        if task.is_fresh:
            raise NotApplicable("the facts are in the context, not in the parameters")
        return BoundValue(
            2.0, "bits_per_parameter", "empirical, on language models; Morris et al. find 3.6 on random strings"
        )


@hookimpl
def capbench_bounds() -> list[type[Bound]]:
    """The reference value."""
    return [BitsPerParameter]
