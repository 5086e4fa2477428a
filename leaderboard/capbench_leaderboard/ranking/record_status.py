"""What happened to records after publication: checks (verified.json) and removals (removed.json)."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel

from capbench.documents.result import Record
from capbench.documents.strict_json import read_document
from capbench.errors import BadSetting
from capbench.studies.records import REMOVED, VERIFIED

M = TypeVar("M", bound=BaseModel)


class RecordCheck(Record):
    """The outcome of `verify` on a record. The digest ties it to the bytes that were checked."""

    record: str
    digest: str
    verdict: str
    n_sampled: int
    n_trials: int
    tolerance: str
    date: str
    by: str = ""

    @property
    def has_passed(self) -> bool:
        """Whether the record was verified."""
        return self.verdict == "verified"


class Removal(Record):
    """A record that was removed from the board."""

    record: str
    run_id: str
    reason: str
    date: str


class CheckLog(Record):
    """The content of verified.json."""

    checks: tuple[RecordCheck, ...] = ()


class RemovalLog(Record):
    """The content of removed.json."""

    removals: tuple[Removal, ...] = ()


def read_checks(folder: Path) -> CheckLog:
    """The checks of a folder of records; empty if there is no such file."""
    return _read(folder / VERIFIED, CheckLog)


def read_removals(folder: Path) -> RemovalLog:
    """The removals from a folder of records; empty if there is no such file."""
    return _read(folder / REMOVED, RemovalLog)


def add_check(folder: Path, check: RecordCheck) -> Path:
    """Saves a check and replaces an earlier one of the same record."""
    others = [each for each in read_checks(folder).checks if each.record != check.record]
    checks = CheckLog(checks=tuple(sorted([*others, check], key=lambda each: each.record)))
    return _write(folder / VERIFIED, checks)


def add_removal(folder: Path, removal: Removal) -> Path:
    """Saves a removal; earlier ones are kept."""
    removals = RemovalLog(removals=(*read_removals(folder).removals, removal))
    return _write(folder / REMOVED, removals)


def today() -> str:
    """The UTC date of a check or a removal."""
    return datetime.now(UTC).date().isoformat()


def _read(path: Path, model: type[M]) -> M:
    return read_document(path, model) if path.exists() else model()


def _write(path: Path, content: BaseModel) -> Path:
    text = json.dumps(content.model_dump(mode="json"), indent=1, ensure_ascii=False) + "\n"
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise BadSetting(f"{path} must be a file that can be written: {error}; choose --records") from error
    return path
