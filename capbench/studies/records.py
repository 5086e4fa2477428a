"""Record files: the results of a suite as a leaderboard reads them, one file per cell, and the missing cells."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from pathlib import Path

from capbench.documents.files import write_whole
from capbench.documents.result import MissingRecord, Result, SuiteCell
from capbench.documents.strict_json import check_json, read_result
from capbench.errors import BadDocument, BadSetting
from capbench.store.store import Store
from capbench.studies.record_log import log_text
from capbench.studies.suite import Suite

MISSING = "missing.json"
VERIFIED, REMOVED = "verified.json", "removed.json"
NON_RECORD_FILES = frozenset({MISSING, VERIFIED, REMOVED})
"""Files in a folder of records that are no records: what is missing, and what happened after publication."""
SUITE_FILE = "SUITE.toml"
LOG = "LOG.md"
PUBLISHED = Path("leaderboard/records")
FOR_THEORIES = Path("leaderboard/theories")
"""Small records that no board ranks: they give every registered bound a cell to be judged on."""
CHECKS = "checks"
"""The folder of the second run of some cells, beside that of the records."""

CellName = tuple[str, str, int]
"""Task, architecture and tier."""


def default_record_folder() -> Path:
    """The default folder of records: beside the leaderboard, or else in the current folder."""
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

    def write(self, result: Result, cell: SuiteCell, store: Store) -> Result:
        """Writes a record and deletes earlier ones of the same cell; returns it as written."""
        folder = self.path / result.task.name
        path = folder / f"{result.architecture.name}-{result.n_parameters}-{result.run_id}.json"
        earlier = {other: read_result(other) for other in folder.glob(f"{result.architecture.name}-*.json")}
        record = with_origin(result, earlier.get(path) or store.run(result.run_id))
        record = record.model_copy(update={"suite": cell})
        for other, old in earlier.items():
            if other != path and old.suite == cell and old.architecture.name == result.architecture.name:
                other.unlink()
        _write(path, record.model_dump(mode="json"))
        return record

    def write_missing(self, missing: Iterable[MissingRecord], covered: Collection[CellName]) -> None:
        """Writes the missing cells; rows of cells that are not covered stay as they are."""
        path = self.path / MISSING
        kept = [
            row
            for row in (read_missing(path) if path.exists() else [])
            if _cell_name(row) not in covered and row.tier in self._suite.tiers
        ]
        rows = sorted([*kept, *missing], key=_cell_name)
        _write(path, [row.model_dump(mode="json") for row in rows])

    def write_log(self, suite_file: Path) -> None:
        """Writes the suite's file, and the log of all records that are in the folder."""
        records = [read_result(path) for path in sorted(self.path.glob("*/*.json"))]
        missing = read_missing(self.path / MISSING) if (self.path / MISSING).exists() else []
        write_whole(self.path / SUITE_FILE, suite_file.read_text(encoding="utf-8"))
        write_whole(self.path / LOG, log_text(self._suite, records, missing))


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


def with_origin(result: Result, first: Result | None) -> Result:
    """The result; if all its trials were stored, keeps the timing and environment of the run that trained them."""
    if first is None or result.timing.trials_trained > 0:
        return result
    return result.model_copy(update={"timing": first.timing, "environment": first.environment})


def _cell_name(row: MissingRecord) -> CellName:
    return row.task, row.architecture, row.tier


def _write(path: Path, document: object) -> None:
    write_whole(path, json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
