"""Submissions: a run leaves the store as a record file, and a record file is checked before it is believed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from capbench.errors import BadSetting
from capbench.reading import read_result
from capbench.results import Result
from capbench_leaderboard.address import slug
from capbench_leaderboard.board import file_digest
from capbench_leaderboard.standing import Check, Removal, add_check, add_removal, today

if TYPE_CHECKING:
    from capbench.recheck import Recheck
    from capbench.registry import Registry


def file_name(result: Result) -> str:
    """What a record file is called: architecture, parameters, run."""
    return f"{slug(result.architecture.name)}-{result.n_parameters}-{slug(result.run_id)}.json"


def place(result: Result) -> str:
    """Where under the records a run belongs."""
    suite = slug(result.suite.name) if result.suite else "submitted"
    return f"{suite}/{slug(result.task.name)}/{file_name(result)}"


def in_suite(result: Result, suite: str, registry: Registry) -> Result:
    """The run as a record of a suite; refused where the suite does not ask for it."""
    from capbench.suite import load_suite
    from capbench.suite_place import find_place

    return result.model_copy(update={"suite": find_place(result, load_suite(suite), registry)})


def write_submission(result: Result, path: Path) -> None:
    """The whole document: trials, protocol, plugins with their code hashes, environment and command."""
    text = json.dumps(result.model_dump(mode="json"), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise BadSetting(f"--out needs a file it can write, got {str(path)!r}: {error}") from error


def mark(path: Path, records: Path, found: Recheck, by: str) -> Path:
    """Notes the verdict beside the records."""
    check = Check(
        record=record_name(path, records),
        digest=file_digest(path),
        verdict=found.verdict.value,
        n_sampled=found.n_sampled,
        n_trials=found.n_trials,
        tolerance=found.tolerance,
        date=today(),
        by=by,
    )
    return add_check(records, check)


def remove(path: Path, records: Path, reason: str) -> Removal:
    """Takes a record down: the file goes, the log keeps what it was and why."""
    removal = Removal(record=record_name(path, records), run_id=read_result(path).run_id, reason=reason, date=today())
    add_removal(records, removal)
    path.unlink()
    return removal


def record_name(path: Path, records: Path) -> str:
    """A record's path as the board knows it, from the folder of records."""
    try:
        return path.resolve().relative_to(records.resolve()).as_posix()
    except ValueError:
        raise BadSetting(f"a record lies in the folder --records {str(records)!r}, got {str(path)!r}") from None
