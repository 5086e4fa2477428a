"""What a run would take: trials, groups, memory and time, estimated before anything is trained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from capbench.contract.solver import GradientSolver
from capbench.documents.result import Result
from capbench.engine.lane_program import program_groups
from capbench.engine.memory import memory_need
from capbench.engine.trials import TrialGroup, TrialSpec, group_trials
from capbench.measure.estimate.search import next_trials
from capbench.measure.request import Request
from capbench.measure.run import search_plan
from capbench.measure.session import setup_of, wants_compiled
from capbench.registry.registry import Registry
from capbench.store.queries import StoreQuery
from capbench.store.store import Store
from capbench.studies.jobs import GROWTH, Job


@dataclass(frozen=True)
class RunEstimate:
    """What a run takes, as far as that is known before it is made."""

    run: str
    """Its task and architecture, or its point of a sweep."""
    n_parameters: int
    n_first: int
    """Trials of the first round, at all learning rates; all of them where the load is given."""
    n_groups: int
    """Groups in which those are trained."""
    most_trials: int
    """Trials at the leading learning rate at most, or all of them where the load is given."""
    steps: int
    bytes_per_lane: int | None
    """Memory that one model takes while it trains; 0 where nothing is trained, None where a step fails."""
    is_compiled: bool
    seconds: float | None
    """By the runs of this task in the store; None where there is none."""


def estimate_run(job: Job, registry: Registry, store: Store | None) -> RunEstimate:
    """The estimate of one run; trains nothing and writes nothing."""
    request, protocol = job.request, job.request.protocol
    groups = first_groups(request, registry)
    n_first = sum(len(group.trials) for group in groups)
    largest = max(groups, key=lambda group: group.slots)
    is_trained = isinstance(request.solver.plugin, GradientSolver)
    return RunEstimate(
        run=job.label,
        n_parameters=request.n_parameters,
        n_first=n_first,
        n_groups=len(groups),
        most_trials=(protocol.budget or n_first) if protocol.mode in ("capacity", "minimize") else n_first,
        steps=protocol.steps,
        bytes_per_lane=_bytes_per_lane(largest) if is_trained else 0,
        is_compiled=wants_compiled(request),
        seconds=_seconds(request, store) if store else None,
    )


def _bytes_per_lane(group: TrialGroup) -> int | None:
    try:
        return memory_need(group.setup, group.slots).per_lane
    except Exception:  # noqa: BLE001 - the plugin border: the run itself records what a step raises
        return None


def first_groups(request: Request, registry: Registry) -> list[TrialGroup]:
    """The trial groups of the first round."""
    protocol, rates = request.protocol, request.protocol.learning_rates or (None,)
    if protocol.mode in ("capacity", "minimize"):
        wanted = next_trials([], search_plan(request, registry))
    else:
        wanted = [(protocol.at or 1, seed) for seed in range(protocol.seeds)]
    work = [
        (setup_of(request, at), TrialSpec(protocol.at if protocol.parameter and protocol.at else at, seed, rate))
        for at, seed in wanted
        for rate in rates
    ]
    groups = group_trials(work)
    return program_groups(groups) if wants_compiled(request) else groups


def _seconds(request: Request, store: Store) -> float | None:
    """The median time of stored runs of the task in this mode, scaled by parameters; None where there is none."""
    runs = store.find_runs(StoreQuery(task=request.task.plugin.name))
    found = [_scaled(run.result, request) for run in runs if _is_alike(run.result, request)]
    return median(found) if found else None


def _is_alike(result: Result, request: Request) -> bool:
    is_trained = result.timing.trials_trained > 0 and result.timing.trials_reused == 0
    mine = request.protocol
    return is_trained and (result.protocol.mode, result.protocol.preset) == (mine.mode, mine.preset)


def _scaled(result: Result, request: Request) -> float:
    growth: float = (request.n_parameters / result.n_parameters) ** GROWTH
    return result.timing.wall_seconds * growth * request.protocol.steps / result.protocol.steps


def total_seconds(estimates: Sequence[RunEstimate]) -> float | None:
    """The time of several runs; None where that of one is not known."""
    known = [each.seconds for each in estimates if each.seconds is not None]
    return sum(known) if len(known) == len(estimates) else None
