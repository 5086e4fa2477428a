"""MLPs with written weights on look-up tasks: `folded_mlp`, ReLU(Σ_s E_s[t_s]) W, with embeddings that nobody trains.

The rungs of the hand-coding challenge of Linsefors & Bushnaq 2026, from the most training to none:

- `trained_readout`, hybrid: E is written, W is trained by Adam;
- `solved_readout`, hybrid: E is written, W is the closed-form ridge solution for one-hot answers;
- `hand_coded`: E is written, and each entry of W is a count: how often a label goes with a hidden unit, less what is
  expected if it did not depend on it. Nothing is solved or trained.

Embeddings are written without looking at the facts: random directions for the hybrids; for `hand_coded`, signs, so that
a hidden unit is the conjunction of a random half of the tokens at each place. [derived; not the authors' weights]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from pydantic import Field
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from capbench import (
    Architecture,
    CannotConstruct,
    ConstructiveSolver,
    Lookup,
    Problem,
    Solver,
    Task,
    hookimpl,
)
from capbench_plugins.adam import Adam

ARCHITECTURE = "folded_mlp"


class SolvedReadout(ConstructiveSolver):
    """folded_mlp with random embeddings, and the read-out that is nearest to one-hot answers: one linear solve.

    Success is measured, not guaranteed, but up to d_mlp facts are exact in general position.
    """

    name: ClassVar[str] = "solved_readout"
    beside_training: ClassVar[bool] = False

    ridge: float = Field(1e-9, ge=0, le=1e6, description="share of the mean squared feature that is added to it")

    def reach(self, task: Task, architecture: Architecture) -> int:
        """The task's maximum: any facts may be tried."""
        _require(task, architecture, self.name)
        return task.max_load

    def find_weights(
        self,
        task: Task,
        architecture: Architecture,
        module: nn.Module,
        problem: Problem,
        load: int,
        generator: Generator,
    ) -> dict[str, Tensor]:
        """Random embeddings, and the ridge solution for centred one-hot answers."""
        signature = _require(task, architecture, self.name)
        E = _random_embeddings(signature, _width(module), generator)
        features, answers = _features(E, signature, problem), _one_hot(problem, signature)
        centred = answers - answers.mean(dim=1, keepdim=True)
        normal = features.T @ features
        normal += self.ridge * normal.diagonal().mean() * torch.eye(len(normal), dtype=normal.dtype)
        return _named(E, torch.linalg.lstsq(normal, features.T @ centred, driver="gelsd").solution, problem)


class HandCoded(ConstructiveSolver):
    """folded_mlp with conjunctions of random sets of tokens, and a read-out that counts labels: nothing is solved.

    Success is measured, not guaranteed.
    """

    name: ClassVar[str] = "hand_coded"
    beside_training: ClassVar[bool] = False

    def reach(self, task: Task, architecture: Architecture) -> int:
        """The task's maximum: any facts may be tried."""
        _require(task, architecture, self.name)
        return task.max_load

    def find_weights(
        self,
        task: Task,
        architecture: Architecture,
        module: nn.Module,
        problem: Problem,
        load: int,
        generator: Generator,
    ) -> dict[str, Tensor]:
        """Signs as embeddings, and counts as the read-out."""
        signature = _require(task, architecture, self.name)
        offset = (signature.length - 1) / signature.length  # of all places, so that only a full match exceeds 0
        E = [
            torch.randint(2, (stop - start, _width(module)), generator=generator).double() * 2 - 1 - offset
            for start, stop in signature.spans
        ]
        features, answers = _features(E, signature, problem), _one_hot(problem, signature)
        expected = features.sum(dim=0).unsqueeze(1) * answers.mean(dim=0)  # (d_mlp, labels)
        return _named(E, features.T @ answers - expected, problem)


class TrainedReadout(Adam):
    """folded_mlp with written random embeddings, of which Adam trains the read-out alone."""

    name: ClassVar[str] = "trained_readout"
    uses_layout: ClassVar[bool] = True

    def start(
        self,
        task: Task,
        architecture: Architecture,
        module: nn.Module,
        problem: Problem,
        load: int,
        generator: Generator,
    ) -> dict[str, Tensor]:
        """The random embeddings; the read-out starts as the module has it."""
        signature = _require(task, architecture, self.name)
        E = _random_embeddings(signature, _width(module), generator)
        return {f"E.{place}": tensor.to(module.W) for place, tensor in enumerate(E)}  # type: ignore[arg-type]

    def update(
        self,
        weights: Tensor,
        gradient: Tensor,
        state: dict[str, Tensor],
        learning_rate: Tensor,
        step: Tensor,
        steps: Tensor,
    ) -> None:
        """An Adam step of the read-out; the embeddings stay."""
        parts = [(_size(shape), not name.startswith("E.")) for name, shape in self.layout]
        parts.append((weights.shape[1] - sum(size for size, _ in parts), True))  # all of them where no layout is known
        is_trained = torch.cat([torch.full((size,), trains, device=weights.device) for size, trains in parts])
        super().update(weights, gradient * is_trained, state, learning_rate, step, steps)


def _require(task: Task, architecture: Architecture, name: str) -> Lookup:
    """The signature of a supported pair; raises CannotConstruct for any other."""
    if architecture.name != ARCHITECTURE or not isinstance(task.signature, Lookup):
        raise CannotConstruct(
            f"{name} covers {ARCHITECTURE} on look-up tasks; got {architecture.name} on {task.name}: use --solver adam"
        )
    if getattr(task, "target", "token") != "token":
        raise CannotConstruct(f"{name} answers with one label; set task.target=token")
    return task.signature


def _random_embeddings(signature: Lookup, width: int, generator: Generator) -> list[Tensor]:
    return [
        torch.randn(stop - start, width, generator=generator, dtype=torch.float64) for start, stop in signature.spans
    ]


def _width(module: nn.Module) -> int:
    """The hidden width."""
    return len(module.W)  # type: ignore[arg-type]


def _features(E: Sequence[Tensor], signature: Lookup, problem: Problem) -> Tensor:
    """The hidden layer on the facts, (facts, d_mlp)."""
    tokens = problem.inputs[0][problem.mask > 0].cpu()  # (facts, length)
    parts = [
        own[tokens[:, place] - start] for place, (own, (start, _)) in enumerate(zip(E, signature.spans, strict=True))
    ]
    return F.relu(torch.stack(parts).sum(dim=0))


def _one_hot(problem: Problem, signature: Lookup) -> Tensor:
    """The answers, (facts, labels)."""
    return F.one_hot(problem.targets[problem.mask > 0].cpu(), signature.n_classes).double()


def _named(E: Sequence[Tensor], W: Tensor, problem: Problem) -> dict[str, Tensor]:
    """Weights by parameter name, in the precision of the problem."""
    return {**{f"E.{place}": own.to(problem.mask) for place, own in enumerate(E)}, "W": W.to(problem.mask)}


def _size(shape: Sequence[int]) -> int:
    """The number of elements."""
    return int(torch.Size(shape).numel())


@hookimpl
def capbench_solvers() -> list[type[Solver]]:
    """The three rungs."""
    return [TrainedReadout, SolvedReadout, HandCoded]
