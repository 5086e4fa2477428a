"""How many next-token distributions a transformer can hold: the order of growth of Madden et al. 2024."""

from __future__ import annotations

from typing import ClassVar

import torch

from capbench import FACTS, Architecture, Bound, BoundValue, Kind, NotApplicable, Pedigree, Task, hookimpl
from capbench_tasks.bigrams import Bigrams


class NextTokenLaw(Bound):
    """How the contexts whose distributions can be held grow with the parameters."""

    name: ClassVar[str] = "madden2024.next_token"
    kind: ClassVar[Kind] = Kind.LAW
    statement: ClassVar[str] = (
        "the contexts for which a decoder-only transformer can hold arbitrary next-token distributions grow as its "
        "parameters over the size of the vocabulary less one; upper and lower bounds agree up to a constant"
    )
    formula: ClassVar[str] = "n = Θ(parameters / (N - 1))"
    citation: ClassVar[str] = (
        "Madden, Fox & Thrampoulidis 2024, Next-token prediction capacity: general upper bounds and a lower bound for "
        "transformers, arXiv 2405.13718"
    )
    pedigree: ClassVar[Pedigree] = Pedigree.PAPER

    def evaluate(self, task: Task, architecture: Architecture, load: int | None) -> BoundValue:
        """Parameters over N - 1, with the constant set to 1."""
        if not isinstance(task, Bigrams) or task.target != "distribution":
            raise NotApplicable("it is about next-token distributions: bigrams with target=distribution")
        if architecture.name != "transformer" or getattr(architecture, "n_layers", 1) != 1:
            raise NotApplicable(f"it is about one layer of attention and an MLP; {architecture.name} is another model")
        n_parameters = _count(architecture, task)
        return BoundValue(
            n_parameters / (task.n_tokens - 1), FACTS, f"{n_parameters} parameters, constant 1; for exact distributions"
        )


def _count(architecture: Architecture, task: Bigrams) -> int:
    """Trained parameters; building draws initial weights, which nobody is to notice."""
    with torch.random.fork_rng(devices=[]):
        module = architecture.build(task.signature)
    return sum(p.numel() for p in module.parameters() if p.requires_grad)


@hookimpl
def capbench_bounds() -> list[type[Bound]]:
    """The law."""
    return [NextTokenLaw]
