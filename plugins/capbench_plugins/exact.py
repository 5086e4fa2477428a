"""The exact solver: weights that hold the facts if any weights do, by linear programming."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import numpy.typing as npt
import torch
from scipy.optimize import linprog
from torch import Generator, Tensor, nn

from capbench import Architecture, CannotConstruct, ConstructiveSolver, Problem, Solver, Task, hookimpl

PAIR = ("dichotomies", "perceptron")

Floats = npt.NDArray[np.float64]


class Exact(ConstructiveSolver):
    """The hyperplane with the widest margin, by a linear programme: a load is held exactly if it can be held.

    It covers perceptron on dichotomies. It maximises t with y_i x_i·w >= t for every point and every weight between
    -1 and 1 (scipy's HiGHS). Where no hyperplane separates the points, the widest margin is 0 and the weights are 0.
    """

    name: ClassVar[str] = "exact"

    def reach(self, task: Task, architecture: Architecture) -> int:
        """The task's maximum: any points may be tried."""
        if (task.name, architecture.name) != PAIR:
            raise CannotConstruct(
                f"exact covers {PAIR[1]} on {PAIR[0]}; got {architecture.name} on {task.name}: use --solver adam"
            )
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
        """The weights of the widest margin; all 0 where no hyperplane separates the points."""
        self.reach(task, architecture)
        is_point = problem.mask > 0
        signed = problem.inputs[-1][is_point] * problem.targets[is_point].unsqueeze(1)  # (points, d)
        w = widest_margin(signed.double().cpu().numpy())
        ((name, _),) = module.named_parameters()
        return {name: torch.from_numpy(w).to(problem.mask)}


def widest_margin(signed: Floats) -> Floats:
    """The w in [-1, 1]^d with the largest min_i w·z_i over the rows z_i; 0 where that minimum cannot be positive."""
    n_points, d = signed.shape
    found = linprog(
        c=np.append(np.zeros(d), -1.0),  # the variables are w and t; t is maximised
        A_ub=np.column_stack([-signed, np.ones(n_points)]),  # t - w·z_i <= 0
        b_ub=np.zeros(n_points),
        bounds=[(-1.0, 1.0)] * d + [(0.0, None)],
        method="highs",
    )
    if found.x is None:
        raise CannotConstruct(f"HiGHS did not solve the linear programme: {found.message}")
    w = np.asarray(found.x[:d], dtype=np.float64)
    return w if (signed @ w > 0).all() else np.zeros(d)


@hookimpl
def capbench_solvers() -> list[type[Solver]]:
    """The linear programme."""
    return [Exact]
