"""The board: every readable record of a folder, and an error line for each that is broken."""

from __future__ import annotations

import hashlib
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from pathlib import Path
from typing import TypeVar

from capbench.documents.result import Environment, MissingRecord
from capbench.documents.strict_json import read_result
from capbench.errors import BadDocument, BadSetting
from capbench.studies.records import CHECKS, MISSING, NON_RECORD_FILES, read_missing
from capbench_leaderboard.agreement import Agreement, agreement
from capbench_leaderboard.process_pool import ProcessPool
from capbench_leaderboard.ranking.entry import BoardEntry, make_entry
from capbench_leaderboard.ranking.measures import one_per_cell
from capbench_leaderboard.ranking.ranked_tables import RankedTable, rank
from capbench_leaderboard.ranking.record_status import (
    CheckLog,
    RecordCheck,
    Removal,
    RemovalLog,
    read_checks,
    read_removals,
)
from capbench_leaderboard.record_text import plain_line

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Board:
    """Everything that README and site show."""

    entries: tuple[BoardEntry, ...]
    checks: dict[str, RecordCheck]
    """Checks of the current bytes of a record, by its path."""
    removals: tuple[Removal, ...]
    broken: tuple[str, ...]
    """One line per file that was left out: path, field and remedy."""
    missing: tuple[tuple[str, MissingRecord], ...] = ()
    """Cells of suites that have no record, with the suite's name."""
    agreement: Agreement | None = None
    """What a second run of some cells says of the records."""

    @cached_property
    def tables(self) -> tuple[RankedTable, ...]:
        """The records, ranked within their groups."""
        verified = {path for path, check in self.checks.items() if check.has_passed}
        return rank(self.entries, verified, self.missing)

    @cached_property
    def tasks(self) -> tuple[str, ...]:
        """Tasks with records, or with records that are missing."""
        return tuple(sorted({table.group.task for table in self.tables}))

    @cache  # noqa: B019 - a build makes one board
    def charted_entries(self, task: str) -> tuple[BoardEntry, ...]:
        """The records of a task that share a chart: those of one version of one suite, the one with most records."""
        by_version: dict[tuple[str, int, int], list[BoardEntry]] = defaultdict(list)
        for table in self.tables:
            if table.group.task == task:
                versions = (table.group.suite, table.group.suite_version, table.group.task_version)
                by_version[versions] += [row.entry for row in table.rows]
        if not by_version:
            return ()
        # Records of a suite before others, then the most records, then the newest version.
        versions = max(by_version, key=lambda each: (bool(each[0]), len(by_version[each]), each))
        return tuple(by_version[versions])

    @cached_property
    def verified(self) -> frozenset[str]:
        """Paths of the verified records."""
        return frozenset(entry.path for entry in self.entries if self.is_verified(entry))

    @cache  # noqa: B019 - a build makes one board
    def drawn_entries(self, task: str) -> tuple[BoardEntry, ...]:
        """The charted records, one for each architecture and tier."""
        return tuple(one_per_cell(self.charted_entries(task), self.verified))

    def is_verified(self, entry: BoardEntry) -> bool:
        """Whether the current bytes of the record were checked and verified."""
        return entry.path in self.checks and self.checks[entry.path].has_passed


def read_board(folder: Path, pool: ProcessPool) -> Board:
    """Reads a folder of records; a broken file is reported in `Board.broken` and left out."""
    if not folder.is_dir():
        raise BadSetting(f"--records needs a folder of records, got {str(folder)!r}; make them with `capbench suite`")
    broken: list[str] = []
    removals = _read_or_report(partial(read_removals, folder), RemovalLog(), folder, broken).removals
    removed = {(removal.record, removal.run_id) for removal in removals}
    entries = tuple(e for e in _entries(folder, pool, broken) if (e.path, e.result.run_id) not in removed)
    checks = _current_checks(_read_or_report(partial(read_checks, folder), CheckLog(), folder, broken), entries, folder)
    missing = tuple(_missing(folder, broken))
    agrees = agreement(entries, _entries(folder.parent / CHECKS, pool, broken))
    return Board(entries, checks, removals, tuple(broken), missing, agrees)


def _entries(folder: Path, pool: ProcessPool, broken: list[str]) -> Iterator[BoardEntry]:
    """The readable records, sorted by path."""
    paths = [path for path in folder.rglob("*.json") if path.name not in NON_RECORD_FILES]
    paths.sort(key=lambda path: path.relative_to(folder).as_posix())
    seen: dict[Environment, Environment] = {}
    for entry in pool.map(partial(_entry_or_error, folder), paths):
        if isinstance(entry, str):
            broken.append(entry)
            continue
        # Most records come from a few machines: they share one copy of each environment.
        environment = entry.result.environment
        shared = seen.setdefault(environment, environment)
        yield replace(entry, result=entry.result.model_copy(update={"environment": shared}))


def _entry_or_error(folder: Path, path: Path) -> BoardEntry | str:
    broken: list[str] = []
    entry: BoardEntry | None = _read_or_report(partial(_entry, folder, path), None, folder, broken)
    return entry or broken[0]


def _entry(folder: Path, path: Path) -> BoardEntry:
    result = read_result(path)
    if not result.trials:
        raise BadDocument(f"{path}: trials: a record needs its raw trials, got none; write it with `capbench suite`")
    try:
        return make_entry(path.relative_to(folder).as_posix(), result)
    except Exception as error:  # whatever a document holds, it stops no build
        raise BadDocument(f"{path}: it cannot be shown: {plain_error(error)}; check its numbers") from error


def plain_error(error: Exception) -> str:
    """An unexpected error with the function that raised it, on one line."""
    frames = traceback.extract_tb(error.__traceback__)
    return plain_line(f"{type(error).__name__} in {frames[-1].name}: {error}")


def file_digest(path: Path) -> str:
    """SHA-256 of a file: a check is valid only for the bytes that were checked."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _read_or_report(read: Callable[[], T], default: T, folder: Path, broken: list[str]) -> T:
    """What was read, or the default and a line in `broken`, with its path relative to the folder."""
    try:
        return read()
    except BadDocument as error:
        broken.append(str(error).replace(f"{folder.as_posix()}/", ""))
        return default


def _current_checks(log: CheckLog, entries: tuple[BoardEntry, ...], folder: Path) -> dict[str, RecordCheck]:
    """The checks whose digest matches the file, by record path."""
    paths = {entry.path for entry in entries}
    return {c.record: c for c in log.checks if c.record in paths and file_digest(folder / c.record) == c.digest}


def _missing(folder: Path, broken: list[str]) -> Iterator[tuple[str, MissingRecord]]:
    for path in sorted(folder.glob(f"*/{MISSING}")):
        none: list[MissingRecord] = []
        for row in _read_or_report(partial(read_missing, path), none, folder, broken):
            yield path.parent.name, row
