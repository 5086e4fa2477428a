"""Rows of the store: their columns, the checksum that each carries, and reading them back unchanged."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from capbench.documents.result import Result, Trial
from capbench.store.queries import StoredRun, StoredTrial

TRIAL_COLUMNS = ("key", "task", "architecture", "load", "seed", "status", "created", "document")
RUN_COLUMNS = ("run_id", "task", "architecture", "created", "document")
TRIAL_ROW = ", ".join((*TRIAL_COLUMNS, "checksum"))
RUN_ROW = ", ".join((*RUN_COLUMNS, "checksum"))

Value = str | int | float | bytes | None


class ChangedRow(ValueError):
    """A row that is not as it was written."""


def checksum(*values: Value) -> str:
    """The checksum of a row's other columns: SQLite does not notice when their bytes change on the disk."""
    text = "\0".join(map(str, values))
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def trial_row(trial: Trial, task: str, architecture: str, created: str) -> tuple[Value, ...]:
    """A trial as a row, with its checksum."""
    return _with_checksum(
        trial.key, task, architecture, trial.load, trial.seed, trial.status.value, created, trial.model_dump_json()
    )


def run_row(result: Result, created: str) -> tuple[Value, ...]:
    """A run as a row, with its checksum."""
    return _with_checksum(result.run_id, result.task.name, result.architecture.name, created, result.model_dump_json())


def read_trial(row: Sequence[Value]) -> StoredTrial:
    """The trial of a row; raises ChangedRow where the checksum does not fit, ValidationError for no valid document."""
    _, task, architecture, _, _, _, created, document = checked(row)
    return StoredTrial(str(task), str(architecture), str(created), Trial.model_validate_json(str(document)))


def read_run(row: Sequence[Value]) -> StoredRun:
    """The run of a row; raises ChangedRow where the checksum does not fit, ValidationError for no valid document."""
    _, _, _, created, document = checked(row)
    return StoredRun(str(created), Result.model_validate_json(str(document)))


def _with_checksum(*values: Value) -> tuple[Value, ...]:
    return (*values, checksum(*values))


def checked(row: Sequence[Value]) -> list[Value]:
    """The columns of a row without its checksum; raises ChangedRow where that does not fit."""
    *values, stated = row
    if checksum(*values) != stated:
        raise ChangedRow(f"the row {str(values[0])[:40]!r} is not as it was written")
    return values
