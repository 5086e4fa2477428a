"""Calibration: systems whose capacity is known, measured like any other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from capbench.contract.bound import Bound, CalibrationCell, ExactBound
from capbench.contract.solver import ConstructiveSolver
from capbench.documents.result import Record, Result
from capbench.errors import UnknownName
from capbench.measure.options import RunOptions
from capbench.measure.request import Request, build_request
from capbench.registry.registry import Registry
from capbench.store.store import Store
from capbench.studies.jobs import FinishedJob, Job, StudyListener, in_order, run_jobs

CI_WIDTH = 0.02
"""Wanted half-width of the interval: one unit of the smallest tables and perceptrons, where less would be false."""
BUDGET = 600
"""Trials per system at most: enough for about ± 2 % on the curve of a perceptron in 16 dimensions."""


class CalibrationRow(Record):
    """One system as --json prints it."""

    name: str
    exact: float | None
    """The known capacity; null where only a law is known."""
    measured: float | None
    """The measured capacity; null where the run failed."""
    ci_low: float | None
    ci_high: float | None


@dataclass(frozen=True)
class PlannedSystem:
    """A cell of a bound before it is measured."""

    cell: CalibrationCell
    bound: Bound
    request: Request

    @property
    def expected(self) -> float:
        """The capacity that the bound gives."""
        return self.bound.evaluate(self.request.task.plugin, self.request.architecture.plugin, None).value


@dataclass(frozen=True)
class System(PlannedSystem):
    """A cell beside what was measured, or the reason why nothing was."""

    result: Result | None
    reason: str = ""

    @property
    def is_exact(self) -> bool:
        """Whether its capacity is known exactly, not only as a law."""
        return isinstance(self.bound, ExactBound)

    @property
    def is_trained(self) -> bool:
        """Whether its weights are trained, so that they may be worse than the best ones."""
        return not isinstance(self.request.solver.plugin, ConstructiveSolver)

    @property
    def interval(self) -> tuple[float | None, float | None]:
        """The ends of the measured interval; None where an end is open."""
        return (self.result.capacity.ci_low, self.result.capacity.ci_high) if self.result else (None, None)

    @property
    def is_within(self) -> bool:
        """Whether the expected capacity is inside the measured interval."""
        low, high = self.interval
        return low is not None and high is not None and low <= self.expected <= high

    def success(self, load: int) -> float | None:
        """The exact probability that a load is held; None where only a law is known."""
        if not isinstance(self.bound, ExactBound):
            return None
        return self.bound.success(self.request.task.plugin, self.request.architecture.plugin, load)

    def row(self) -> CalibrationRow:
        """The system as --json prints it."""
        low, high = self.interval
        return CalibrationRow(
            name=self.cell.name,
            exact=self.expected if self.is_exact else None,
            measured=self.result.capacity.estimate if self.result else None,
            ci_low=low,
            ci_high=high,
        )


def plan_cells(registry: Registry, names: Sequence[str], options: RunOptions) -> list[PlannedSystem]:
    """The calibration cells of all bounds, or of those named: exact ones first, then laws."""
    known = {name: provided.cls for name, provided in registry.bounds.items() if provided.cls.calibration}
    for name in names:
        if name not in known:
            raise UnknownName.among("bound to calibrate by", name, known, ", ".join(known))
    bounds = sorted(
        (known[name]() for name in (names or known)), key=lambda bound: (not isinstance(bound, ExactBound), bound.name)
    )
    return [
        PlannedSystem(cell, bound, build_request(_options_of(cell, options), registry))
        for bound in bounds
        for cell in bound.calibration
    ]


def calibrate(
    cells: Sequence[PlannedSystem], registry: Registry, store: Store, listener: StudyListener
) -> list[System]:
    """Measures every cell; one that cannot be run has the reason instead of a result."""
    jobs = [Job(planned.cell.name, planned.request) for planned in cells]
    finished = in_order(run_jobs(jobs, registry, store, listener))
    return [_system(planned, job) for planned, job in zip(cells, finished, strict=True)]


def _system(planned: PlannedSystem, job: FinishedJob) -> System:
    return System(planned.cell, planned.bound, planned.request, job.result, job.reason)


def _options_of(cell: CalibrationCell, options: RunOptions) -> RunOptions:
    return options.replaced(task=cell.task, arch=cell.architecture, solver=cell.solver, set=cell.settings)
