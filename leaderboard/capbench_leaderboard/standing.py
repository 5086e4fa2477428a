"""What was said about records after they were published: who checked them, and which were taken down, and why."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel

from capbench.errors import BadSetting
from capbench.reading import read_document
from capbench.results import Record

VERIFIED = "verified.json"
REMOVED = "removed.json"

M = TypeVar("M", bound=BaseModel)


class Check(Record):
    """A record that somebody ran `verify` on. The digest ties it to the bytes that were checked."""

    record: str
    digest: str
    verdict: str
    n_sampled: int
    n_trials: int
    tolerance: str
    date: str
    by: str = ""

    @property
    def is_good(self) -> bool:
        """Whether the record was found right."""
        return self.verdict == "verified"


class Removal(Record):
    """A record that was taken down."""

    record: str
    run_id: str
    reason: str
    date: str


class Checks(Record):
    """The content of verified.json."""

    checks: tuple[Check, ...] = ()


class Removals(Record):
    """The content of removed.json."""

    removals: tuple[Removal, ...] = ()


def read_checks(folder: Path) -> Checks:
    """Who checked what; nobody where there is no such file."""
    return _read(folder / VERIFIED, Checks)


def read_removals(folder: Path) -> Removals:
    """What was taken down; nothing where there is no such file."""
    return _read(folder / REMOVED, Removals)


def add_check(folder: Path, check: Check) -> Path:
    """Notes a check, in place of an earlier one of the same record."""
    others = [each for each in read_checks(folder).checks if each.record != check.record]
    checks = Checks(checks=tuple(sorted([*others, check], key=lambda each: each.record)))
    return _write(folder / VERIFIED, checks)


def add_removal(folder: Path, removal: Removal) -> Path:
    """Notes a removal; the log only ever grows."""
    removals = Removals(removals=(*read_removals(folder).removals, removal))
    return _write(folder / REMOVED, removals)


def today() -> str:
    """The date that a check or a removal carries."""
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
