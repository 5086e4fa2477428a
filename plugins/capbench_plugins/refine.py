"""Adam that starts from explicitly constructed weights instead of random ones."""

from __future__ import annotations

import math
from typing import ClassVar

from pydantic import Field
from torch import Generator, Tensor, nn

from capbench import Architecture, Problem, Solver, Task, hookimpl
from capbench_plugins.adam import Adam
from capbench_plugins.construct import Construct


class Refine(Adam):
    """Adam from the weights of `construct`: what training adds to a construction, and whether it stays there.

    Beyond the load that the construction is made for, the start holds the first facts, and the others are left to
    training.
    """

    name: ClassVar[str] = "refine"

    noise: float = Field(
        0.01, ge=0, le=10, description="share of the random initial weights that is added to the constructed ones"
    )
    sharpness: float = Field(
        8.0,
        gt=0,
        le=1e6,
        description="factor on the scores of a relation at the start: at 1 the constructed margins are so small "
        "in the loss that training moves away from them",
    )

    def start(
        self,
        task: Task,
        architecture: Architecture,
        module: nn.Module,
        problem: Problem,
        load: int,
        generator: Generator,
    ) -> dict[str, Tensor]:
        """The constructed weights plus some noise, because weights that are exactly zero might get no gradient."""
        construct = Construct()
        most = construct.reach(task, architecture)
        if load > most:
            problem, load = _keep_first_facts(problem, most), most
        found = construct.find_weights(task, architecture, module, problem, load, generator)
        drawn = dict(module.named_parameters())
        weights = {name: weight + self.noise * drawn[name].detach() for name, weight in found.items()}
        if "log_scale" in weights:
            weights["log_scale"] = weights["log_scale"] + math.log(self.sharpness)
        return weights


def _keep_first_facts(problem: Problem, n_facts: int) -> Problem:
    """The problem with all but the first `n_facts` facts masked out."""
    return problem._replace(mask=problem.mask * (problem.mask.cumsum(0) <= n_facts))


@hookimpl
def capbench_solvers() -> list[type[Solver]]:
    """Training that starts from a construction."""
    return [Refine]
