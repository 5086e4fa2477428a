"""The hooks a plugin may implement: specifications only. Each returns classes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    from capbench.contract.architecture import Architecture
    from capbench.contract.bound import Bound
    from capbench.contract.solver import Solver
    from capbench.contract.task import Task

hookspec = pluggy.HookspecMarker("capbench")
hookimpl = pluggy.HookimplMarker("capbench")


@hookspec
def capbench_tasks() -> list[type[Task]]:  # type: ignore[empty-body]
    """The task classes this plugin provides."""


@hookspec
def capbench_architectures() -> list[type[Architecture]]:  # type: ignore[empty-body]
    """The architecture classes this plugin provides."""


@hookspec
def capbench_bounds() -> list[type[Bound]]:  # type: ignore[empty-body]
    """The bound classes this plugin provides."""


@hookspec
def capbench_solvers() -> list[type[Solver]]:  # type: ignore[empty-body]
    """The solver classes this plugin provides."""
