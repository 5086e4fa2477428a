"""Record files: the results of a suite as a leaderboard reads them, one file an entry, and what is missing."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable
from pathlib import Path

from capbench.errors import BadDocument, BadSetting
from capbench.reading import check_json, read_result
from capbench.results import MissingRecord, Result, SuiteRecord
from capbench.store import Store
from capbench.suite import Suite

MISSING = "missing.json"
PUBLISHED = Path("leaderboard/records")

Place = tuple[str, str, int]
"""Task, architecture and tier."""


def default_folder() -> Path:
    """Where records go when the user does not say: beside the leaderboard, or where we are."""
    return PUBLISHED if PUBLISHED.is_dir() else Path("records")


class RecordFolder:
    """The records of one suite: FOLDER/SUITE/TASK/ARCH-PARAMETERS-RUN.json."""

    def __init__(self, folder: Path, suite: Suite) -> None:
        self.path = folder / suite.name
        self._suite = suite
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BadSetting(f"--out needs a folder it can write to, got {str(folder)!r}: {error}") from error

    def write(self, result: Result, place: SuiteRecord, store: Store) -> Result:
        """Writes a record in place of earlier ones of the same entry; what was not trained anew keeps its origin."""
        folder = self.path / result.task.name
        path = folder / f"{result.architecture.name}-{result.n_parameters}-{result.run_id}.json"
        earlier = {other: read_result(other) for other in folder.glob(f"{result.architecture.name}-*.json")}
        record = _with_origin(result, earlier.get(path) or store.run(result.run_id))
        record = record.model_copy(update={"suite": place})
        for other, there in earlier.items():
            if other != path and there.suite == place and there.architecture.name == result.architecture.name:
                other.unlink()
        _write(path, record.model_dump(mode="json"))
        return record

    def write_missing(self, missing: Iterable[MissingRecord], covered: Collection[Place]) -> None:
        """Writes what is missing; rows of places that this call did not cover stay as other calls left them."""
        path = self.path / MISSING
        kept = [
            row
            for row in (read_missing(path) if path.exists() else [])
            if _place(row) not in covered and row.tier in self._suite.tiers
        ]
        rows = sorted([*kept, *missing], key=_place)
        _write(path, [row.model_dump(mode="json") for row in rows])


def read_missing(path: Path) -> list[MissingRecord]:
    """The rows of a missing.json."""
    try:
        text = path.read_text(encoding="utf-8")
        check_json(text)
        return [MissingRecord.model_validate(row) for row in json.loads(text)]
    except (OSError, ValueError, TypeError) as error:
        first = " ".join(str(error).split())[:160]
        raise BadDocument(
            f"{path}: must be a list of task, architecture, tier and reason: {first}; delete it"
        ) from error


def _with_origin(result: Result, first: Result | None) -> Result:
    """The result, and where nothing was trained for it, when and where that was done first."""
    if first is None or result.timing.trials_trained > 0:
        return result
    return result.model_copy(update={"timing": first.timing, "environment": first.environment})


def _place(row: MissingRecord) -> Place:
    return row.task, row.architecture, row.tier


def _write(path: Path, document: object) -> None:
    write_text(path, json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """Writes the file whole or not at all, so that a reader never meets half of it."""
    part = path.with_suffix(f".{os.getpid()}.part")  # shards may write to the same folder
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(text, encoding="utf-8")
        part.replace(path)
    except OSError as error:
        raise BadSetting(f"{path} cannot be written: {error}; name another folder with --out") from error
