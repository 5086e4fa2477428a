"""Measured cells: documents of records and of the store, with the task and the architecture that they state."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from pydantic import JsonValue

from capbench.contract.architecture import Architecture
from capbench.contract.task import Task
from capbench.documents.result import Result, Trial, TrialStatus
from capbench.documents.strict_json import read_result
from capbench.documents.text import number
from capbench.errors import BadDocument, UserError
from capbench.measure.theory import measured_values
from capbench.registry.registry import Registry
from capbench.registry.settings import configure
from capbench.store.queries import StoreQuery
from capbench.store.store import Store, existing_store
from capbench.studies.records import FOR_THEORIES, NON_RECORD_FILES, PUBLISHED

MOST_BEYOND = 10
"""Multiple of a task's largest load beyond which a stated load is no measurement; bounds are not evaluated there."""


@dataclass(frozen=True)
class RecordedCell:
    """One result, with the load at which bounds are evaluated and what was measured there."""

    result: Result
    largest_held: int | None
    """The largest load that any trial held; None where none did."""

    @cached_property
    def at(self) -> tuple[int, dict[str, float]]:
        """The load, which is the capacity or was given, and the measured values by quantity."""
        result = self.result
        values = {**result.data, **result.metrics, "bits_per_parameter": result.bits_per_parameter}
        return measured_values(result.capacity, result.protocol.at, values, self.largest_held)

    @property
    def load(self) -> int:
        """The load at which bounds are evaluated."""
        return self.at[0]

    @property
    def measured(self) -> dict[str, float]:
        """What was measured there, by quantity."""
        return self.at[1]

    @property
    def label(self) -> str:
        """The pair, the size and the run."""
        result = self.result
        pair = f"{result.task.name} × {result.architecture.name}"
        return f"{pair}, {number(result.n_parameters)} parameters, run {result.run_id}"

    @property
    def is_held(self) -> bool:
        """Whether any trial held its facts, so that a size is known to be enough for them."""
        return self.largest_held is not None

    @property
    def is_estimated(self) -> bool:
        """Whether the capacity is known from both sides."""
        return self.result.capacity.status == "estimated"

    @property
    def series(self) -> str:
        """What cells of one series share: all but their sizes, which are whole numbers, and fields of the training."""
        result = self.result
        task = {name: value for name, value in result.task.params.items() if not _is_whole(value)}
        arch = {name: value for name, value in result.architecture.params.items() if isinstance(value, str | bool)}
        fields = [f"task.{n}={v}" for n, v in task.items()] + [f"arch.{n}={v}" for n, v in arch.items()]
        names = (result.task.name, result.architecture.name, result.solver.name, result.protocol.name)
        return " ".join([*names, result.capacity.kind, str(result.protocol.criterion), *fields])


def largest_held(trials: Iterable[Trial]) -> int | None:
    """The largest load that any of the trials held; None where none did."""
    return max((trial.load for trial in trials if trial.status is TrialStatus.HELD), default=None)


@dataclass(frozen=True)
class MeasuredCell(RecordedCell):
    """A result with the task and the architecture on which a bound is evaluated again."""

    task: Task
    architecture: Architecture
    created: str | None = None
    """When the store got it, in UTC; None for a record file, which has no date."""


def measured_results(records: Path | None) -> Iterator[tuple[Result, str | None]]:
    """The records of a folder; without one, those of leaderboard/ where it is, and the runs of the store."""
    if records is not None:
        yield from record_results(records)
        return
    for folder in (PUBLISHED, FOR_THEORIES):
        if folder.is_dir():
            yield from record_results(folder)
    store = existing_store()
    if store is not None:
        yield from store_results(store)


def record_results(folder: Path) -> Iterator[tuple[Result, None]]:
    """The result of every record file in a folder and its subfolders."""
    if not folder.is_dir():
        raise BadDocument(f"{folder}: must be a folder of records; `capbench suite NAME --out {folder}` writes one")
    for path in sorted(folder.rglob("*.json")):
        if path.name not in NON_RECORD_FILES:
            yield read_result(path), None


def store_results(store: Store) -> Iterator[tuple[Result, str]]:
    """Every run of the store with its date."""
    return ((run.result, run.created) for run in store.find_runs(StoreQuery()))


def read_cells(
    results: Iterable[tuple[Result, str | None]],
    registry: Registry,
    task: str | None = None,
    architecture: str | None = None,
) -> tuple[list[MeasuredCell], list[str]]:
    """The cells of a task and an architecture, each run once, and why others cannot be judged here."""
    cells: dict[str, MeasuredCell] = {}
    left_out: dict[str, str] = {}
    for result, created in results:
        if task not in (None, result.task.name) or architecture not in (None, result.architecture.name):
            continue
        try:
            cells.setdefault(result.run_id, _cell(result, registry, created))
        except UserError as error:
            left_out[result.run_id] = f"run {result.run_id}: {error}"
    return list(cells.values()), list(left_out.values())


def _cell(result: Result, registry: Registry, created: str | None) -> MeasuredCell:
    """A result with its plugins as it states them: their fields decide, not the version of their code."""
    if result.capacity.kind != "largest_load" and result.protocol.at is None:
        raise BadDocument("protocol.at: a result that is no capacity states its load; got none")
    task = configure(registry.task(result.task.name), result.protocol.preset, result.task.params).plugin
    stated = result.architecture
    architecture = configure(registry.architecture(stated.name), result.protocol.preset, stated.params).plugin
    cell = MeasuredCell(result, largest_held(result.trials), task, architecture, created)
    if cell.load > MOST_BEYOND * task.max_load:
        raise BadDocument(f"its load is {cell.load:,}, and the task has {task.max_load:,} facts at most")
    return cell


def _is_whole(value: JsonValue) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
