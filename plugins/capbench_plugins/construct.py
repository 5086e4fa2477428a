"""The constructive solver: explicit weights from a theorem, for the same modules that are trained."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Protocol

from torch import Generator, Tensor, nn

from capbench import Architecture, CannotConstruct, ConstructiveSolver, Heads, Problem, Solver, Task, hookimpl
from capbench_plugins import construct_bigrams, construct_rgr, construct_sequences


class Construction(Protocol):
    """The explicit weights for one pair of task and architecture; each `construct_*` module is one."""

    def reach(self, task: Task, heads: Heads) -> int:
        """The largest load it is made for; raises CannotConstruct for sizes that it does not cover."""

    def weights(
        self, task: Task, heads: Heads, module: nn.Module, problem: Problem, generator: Generator
    ) -> dict[str, Tensor]:
        """Weights by parameter name, in float64 on the CPU."""


CONSTRUCTIONS: Mapping[tuple[str, str], Construction] = {
    ("sequences", "mha"): construct_sequences,
    ("bigrams", "aot"): construct_bigrams,
    ("rgr", "mha"): construct_rgr,
}


class Construct(ConstructiveSolver):
    """Explicit weights: saturated attention on sequences, an exact fit on bigrams, signatures on rgr.

    It covers mha on sequences, exact at H(min(n, d_h) - 1) + 1 examples (idea: Mahdavi et al. 2024, arXiv 2306.02010;
    algebra derived); aot on bigrams, exact at H d_h + d associations (Dana et al. 2025, arXiv 2411.10115; derived); and
    mha on rgr, where success is measured, not guaranteed (derived in the spirit of Adler 2025, arXiv 2509.22840).
    """

    name: ClassVar[str] = "construct"
    dtype: ClassVar[str] = "float64"

    def reach(self, task: Task, architecture: Architecture) -> int:
        """The load that the theorem guarantees at these sizes; on rgr, where success is measured, the largest load."""
        construction, heads = _find_construction(task, architecture)
        return construction.reach(task, heads)

    def find_weights(
        self,
        task: Task,
        architecture: Architecture,
        module: nn.Module,
        problem: Problem,
        load: int,
        generator: Generator,
    ) -> dict[str, Tensor]:
        """Weights that hold the problem's facts, in its precision and on its device."""
        construction, heads = _find_construction(task, architecture)
        most = construction.reach(task, heads)
        if load > most:
            raise CannotConstruct(
                f"construct holds at most {most} {task.fact}s of {task.name} in {architecture.name} at these sizes, "
                f"got {load}; lower the load or raise arch.n_heads"
            )
        found = construction.weights(task, heads, module, problem, generator)
        return {name: found[name].to(problem.mask) for name, _ in module.named_parameters()}


def _find_construction(task: Task, architecture: Architecture) -> tuple[Construction, Heads]:
    """The construction for a pair, and the heads of the architecture."""
    construction = CONSTRUCTIONS.get((task.name, architecture.name))
    if construction is None:
        known = ", ".join(f"{arch} on {name}" for name, arch in CONSTRUCTIONS)
        raise CannotConstruct(f"construct covers {known}; got {architecture.name} on {task.name}: use --solver adam")
    heads = architecture.heads(task.signature)
    if heads is None or getattr(architecture, "readout", "max") != "max":
        raise CannotConstruct(
            f"construct covers plain {architecture.name} only; leave arch.readout and arch.shared_maps unset"
        )
    return construction, heads


@hookimpl
def capbench_solvers() -> list[type[Solver]]:
    """The constructive solver."""
    return [Construct]
