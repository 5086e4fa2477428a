"""Submissions: write a stored run as a record file, save the verdict on a record, remove a record."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from capbench.documents.result import Result
from capbench.documents.strict_json import read_result
from capbench.errors import BadSetting
from capbench_leaderboard.ranking.board import file_digest
from capbench_leaderboard.ranking.record_status import RecordCheck, Removal, add_check, add_removal, today
from capbench_leaderboard.slugs import slug

if TYPE_CHECKING:
    from capbench.registry.registry import Registry
    from capbench.studies.verify.verify import Verification


def record_file_name(result: Result) -> str:
    """File name of a record: architecture, parameters, run."""
    return f"{slug(result.architecture.name)}-{result.n_parameters}-{slug(result.run_id)}.json"


def record_path(result: Result) -> str:
    """Path of a run's record, relative to the folder of records."""
    suite = slug(result.suite.name) if result.suite else "submitted"
    return f"{suite}/{slug(result.task.name)}/{record_file_name(result)}"


def as_suite_record(result: Result, suite: str | None, registry: Registry) -> Result:
    """The run as a record of a suite, or of the one that it states; raises if the suite has no such run."""
    from capbench.studies.suite import load_suite
    from capbench.studies.verify.suite_cell import find_cell, stated_suite

    found = stated_suite(result.suite, suite) if result.suite else load_suite(suite or "")
    return result.model_copy(update={"suite": find_cell(result, found, registry)})


def write_submission(result: Result, path: Path) -> None:
    """Writes the whole document: trials, protocol, plugins with their code hashes, environment and command."""
    text = json.dumps(result.model_dump(mode="json"), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise BadSetting(f"--out needs a file it can write, got {str(path)!r}: {error}") from error


def save_verdict(path: Path, records: Path, verification: Verification, by: str) -> Path:
    """Saves the verdict in verified.json beside the records."""
    check = RecordCheck(
        record=path_in_records(path, records),
        digest=file_digest(path),
        verdict=verification.verdict.value,
        n_sampled=verification.n_sampled,
        n_trials=verification.n_trials,
        tolerance=verification.tolerance,
        date=today(),
        by=by,
    )
    return add_check(records, check)


def remove_record(path: Path, records: Path, reason: str) -> Removal:
    """Deletes a record; removed.json keeps its path, run and the reason."""
    removal = Removal(
        record=path_in_records(path, records), run_id=read_result(path).run_id, reason=reason, date=today()
    )
    add_removal(records, removal)
    path.unlink()
    return removal


def path_in_records(path: Path, records: Path) -> str:
    """A record's path, relative to the folder of records; raises if it is outside."""
    try:
        return path.resolve().relative_to(records.resolve()).as_posix()
    except ValueError:
        raise BadSetting(f"a record must be in the folder --records {str(records)!r}, got {str(path)!r}") from None
