"""Planning and running a suite: its cells, those that are missing with the reason, its shards, and its records."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from capbench.contract.shapes import is_near
from capbench.contract.signatures import Lookup
from capbench.documents.result import MissingRecord, Result, SuiteCell
from capbench.errors import BadSetting, UnknownName, UnsupportedSignature, UserError
from capbench.executors.target import ComputeTarget
from capbench.measure.options import RunOptions
from capbench.measure.request import Request, build_request
from capbench.registry.registry import Registry
from capbench.store.store import Store
from capbench.studies.jobs import Job, StudyListener, run_jobs
from capbench.studies.records import CellName, RecordFolder
from capbench.studies.suite import Rule, Suite

SHARD = re.compile(r"(\d+)/(\d+)")


@dataclass(frozen=True)
class PlannedCell:
    """A cell of a suite and the request that measures it."""

    cell: SuiteCell
    request: Request

    @property
    def task(self) -> str:
        """Name of its task."""
        return self.request.task.plugin.name

    @property
    def architecture(self) -> str:
        """Name of its architecture."""
        return self.request.architecture.plugin.name

    @property
    def name(self) -> CellName:
        """Task, architecture and tier."""
        return self.task, self.architecture, self.cell.tier

    def settled_to(self, share: float | None) -> PlannedCell:
        """The same cell with its capacity settled to a share, or not at all."""
        options = self.request.options
        if options.settle == share:
            return self
        return replace(self, request=replace(self.request, options=options.replaced(settle=share)))


@dataclass(frozen=True)
class SuitePlan:
    """The cells to run, and those that cannot be run with the reason."""

    cells: tuple[PlannedCell, ...]
    missing: tuple[MissingRecord, ...]

    @property
    def largest_jobs(self) -> list[Job]:
        """The job of the largest tier of each pair."""
        by_pair = {(cell.task, cell.architecture): cell for cell in self.cells}  # small tiers come first
        return [_job(cell) for cell in by_pair.values()]

    def shard(self, part: int, parts: int) -> SuitePlan:
        """One of several equal parts: every n-th cell, because neighbours cost about the same."""
        return SuitePlan(self.cells[part - 1 :: parts], self.missing)

    def settled_to(self, share: float | None) -> SuitePlan:
        """The same plan with capacities settled to another share than the suite's, or not at all."""
        return SuitePlan(tuple(cell.settled_to(share) for cell in self.cells), self.missing)


def make_plan(
    suite: Suite,
    registry: Registry,
    tasks: Collection[str] = (),
    architectures: Collection[str] = (),
    target: ComputeTarget = ComputeTarget(),  # noqa: B008 - frozen
) -> SuitePlan:
    """Every cell of a suite, small tiers first; pairs that do not fit at all have no cell.

    It depends on the suite and the plugins only: machines with the same plugins have the same plan.
    """
    chosen_tasks = _chosen("task", suite.tasks or sorted(registry.tasks), tasks)
    chosen = _chosen("architecture", suite.architectures or sorted(registry.architectures), architectures)
    names = [(task, name, tier) for tier in sorted(suite.tiers) for task in chosen_tasks for name in chosen]
    checked = _Checked(registry)
    found = [_plan_cell(suite, checked, *name, target) for name in names]
    return SuitePlan(
        tuple(each for each in found if isinstance(each, PlannedCell)),
        tuple(each for each in found if isinstance(each, MissingRecord)),
    )


def parse_shard(text: str) -> tuple[int, int]:
    """`3/16`: the third of sixteen parts."""
    match = SHARD.fullmatch(text)
    part, parts = (int(match[1]), int(match[2])) if match else (0, 0)
    if not 1 <= part <= parts:
        raise BadSetting(f"--shard takes PART/PARTS such as 3/16, from 1/16 to 16/16, got {text!r}")
    return part, parts


def _chosen(kind: str, all_names: Sequence[str], only: Collection[str]) -> list[str]:
    for name in only:
        if name not in all_names:
            raise UnknownName.among(f"{kind} of this suite", name, all_names, ", ".join(all_names))
    return [name for name in all_names if not only or name in only]


@dataclass
class _Checked:
    """The requests of a plan that were built without a size: a pair has the same at every tier."""

    registry: Registry
    found: dict[RunOptions, Exception | None] = field(default_factory=dict)

    def check(self, options: RunOptions) -> None:
        """Raises what building the request raises."""
        if options not in self.found:
            try:
                build_request(options, self.registry)
                self.found[options] = None
            except Exception as error:  # noqa: BLE001 - the plugin border: raised again at every tier
                self.found[options] = error
        failure = self.found[options]
        if failure is not None:
            raise failure


def _plan_cell(
    suite: Suite, checked: _Checked, task: str, architecture: str, tier: int, target: ComputeTarget
) -> PlannedCell | MissingRecord | None:
    """A cell of the suite: with its request, or missing with the reason; none where the pair does not fit."""
    rules = [rule for rule in suite.rules if rule.applies_to(task, architecture, tier)]
    options = _options(suite, rules, task, architecture).replaced(**asdict(target))
    missing = MissingRecord(task=task, architecture=architecture, tier=tier, reason="")
    try:
        checked.check(options)
    except UnsupportedSignature:
        return None
    except UserError as error:
        raise type(error)(f"suite {suite.name}, {task} × {architecture} at {tier:,}: {error}") from error
    except Exception as error:  # noqa: BLE001 - the plugin border: a pair that raises is missing, with the reason
        return missing.model_copy(update={"reason": f"{type(error).__name__}: {error}"})
    for reason in (rule.skip for rule in rules if rule.skip):
        return missing.model_copy(update={"reason": f"left out: {reason}"})
    try:
        request = _request_at(suite, options, checked.registry, tier)
    except UserError as error:
        return missing.model_copy(update={"reason": str(error)})
    except Exception as error:  # noqa: BLE001 - the plugin border
        return missing.model_copy(update={"reason": f"{type(error).__name__}: {error}"})
    share = suite.settle_share
    cell = SuiteCell(name=suite.name, version=suite.version, tier=tier, unit=suite.unit, settle=share)
    return PlannedCell(cell, request)


def _request_at(suite: Suite, options: RunOptions, registry: Registry, tier: int) -> Request:
    """The request at a tier: the best shape of so many parameters, or the shape that rules set, of such a state."""
    if suite.unit == "parameters":
        return build_request(options.replaced(params=str(tier)), registry)
    request = build_request(options, registry)
    signature, name = request.task.plugin.signature, request.architecture.plugin.name
    if not isinstance(signature, Lookup):
        raise BadSetting(f"{request.task.plugin.name} has no sequences, through which a state could be carried")
    size = request.architecture.plugin.state_size(signature, signature.length)
    if size is None:
        raise BadSetting(f"{name} does not say how large its state is")
    if not is_near(size, tier):
        raise BadSetting(
            f"the suite sets no shape of {name} with a state within 5% of {tier:,}: it has {size:,} elements"
        )
    return request


def _options(suite: Suite, rules: Sequence[Rule], task: str, architecture: str) -> RunOptions:
    """The options of a cell's run: the suite's, changed by the rules that apply to it."""
    options = RunOptions(task=task, arch=architecture, **{**_declared(suite), "settle": suite.settle_share})
    for rule in rules:
        given = {name: value for name, value in _declared(rule).items() if value}
        options = options.replaced(**{**given, "set": (*options.set, *rule.set)})
    return options


def _declared(part: Suite | Rule) -> dict[str, Any]:
    """The fields of a suite or a rule that are options of a run."""
    return part.model_dump(include=set(RunOptions.model_fields))


def run_plan(
    plan: SuitePlan, registry: Registry, store: Store, folder: RecordFolder, listener: StudyListener
) -> tuple[list[Result], list[MissingRecord]]:
    """Runs a plan and writes each record at once; returns the records and the missing cells with the reason."""
    jobs = [_job(cell) for cell in plan.cells]
    results: dict[int, Result] = {}
    missing = list(plan.missing)
    covered = {(row.task, row.architecture, row.tier) for row in missing}
    folder.write_missing(missing, covered)
    for finished in run_jobs(jobs, registry, store, listener):
        planned = plan.cells[finished.index]
        covered.add(planned.name)
        if finished.result is None:
            task, architecture, tier = planned.name
            reason = f"failed: {finished.reason}"
            missing.append(MissingRecord(task=task, architecture=architecture, tier=tier, reason=reason))
        else:
            results[finished.index] = folder.write(finished.result, planned.cell, store)
        folder.write_missing(missing, covered)
    return [results[index] for index in sorted(results)], missing


def _job(planned: PlannedCell) -> Job:
    return Job(f"{planned.task} × {planned.architecture} at {planned.cell.tier:,}", planned.request)
