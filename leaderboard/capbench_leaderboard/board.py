"""The board: every record of a folder that can be read, and one line about each that cannot."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from pathlib import Path
from typing import TypeVar

from capbench.errors import BadDocument, BadSetting
from capbench.reading import read_result
from capbench.records import MISSING, read_missing
from capbench.results import Environment, MissingRecord
from capbench_leaderboard.entry import Entry, make_entry
from capbench_leaderboard.many import Workers
from capbench_leaderboard.ranking import Table, rank
from capbench_leaderboard.standing import (
    REMOVED,
    VERIFIED,
    Check,
    Checks,
    Removal,
    Removals,
    read_checks,
    read_removals,
)

T = TypeVar("T")
OTHER_FILES = frozenset({MISSING, VERIFIED, REMOVED})


@dataclass(frozen=True, eq=False)
class Board:
    """All there is to show."""

    entries: tuple[Entry, ...]
    tables: tuple[Table, ...]
    checks: dict[str, Check]
    """What the checks of these very bytes came to, by the record's path."""
    removals: tuple[Removal, ...]
    broken: tuple[str, ...]
    """One line a file that was left out: which, which field, and the fix."""

    @cached_property
    def tasks(self) -> tuple[str, ...]:
        """The tasks that anything is said about."""
        return tuple(sorted({table.group.task for table in self.tables}))

    @cache  # noqa: B019 - there is one of it in a build
    def charted(self, task: str) -> tuple[Entry, ...]:
        """The records of a task that may stand in one chart: those of the suite, in one version, that has most."""
        together: dict[tuple[str, int, int], list[Entry]] = defaultdict(list)
        for table in self.tables:
            if table.group.task == task:
                versions = (table.group.suite, table.group.suite_version, table.group.task_version)
                together[versions] += [row.entry for row in table.rows]
        if not together:
            return ()
        # A suite's before others, then the most, then the newest.
        versions = max(together, key=lambda each: (bool(each[0]), len(together[each]), each))
        return tuple(together[versions])

    def is_verified(self, entry: Entry) -> bool:
        """Whether these very bytes were checked and found right."""
        return entry.path in self.checks and self.checks[entry.path].is_good


def read_board(folder: Path, workers: Workers) -> Board:
    """Reads a folder of records; a file that is broken costs a line, never the board."""
    if not folder.is_dir():
        raise BadSetting(f"--records needs a folder of records, got {str(folder)!r}; make them with `capbench suite`")
    broken: list[str] = []
    removals = _kept(partial(read_removals, folder), Removals(), folder, broken).removals
    gone = {(removal.record, removal.run_id) for removal in removals}
    entries = tuple(e for e in _entries(folder, workers, broken) if (e.path, e.result.run_id) not in gone)
    checks = _valid(_kept(partial(read_checks, folder), Checks(), folder, broken), entries, folder)
    missing = list(_missing(folder, broken))
    verified = {path for path, check in checks.items() if check.is_good}
    return Board(entries, rank(entries, verified, missing), checks, removals, tuple(broken))


def _entries(folder: Path, workers: Workers, broken: list[str]) -> Iterator[Entry]:
    """The readable records, in the order of their paths."""
    paths = [path for path in folder.rglob("*.json") if path.name not in OTHER_FILES]
    paths.sort(key=lambda path: path.relative_to(folder).as_posix())
    seen: dict[Environment, Environment] = {}
    for entry in workers.map(partial(_entry_or_line, folder), paths):
        if isinstance(entry, str):
            broken.append(entry)
            continue
        # Most records come from a few machines: one copy of each environment is enough.
        there = entry.result.environment
        yield replace(entry, result=entry.result.model_copy(update={"environment": seen.setdefault(there, there)}))


def _entry_or_line(folder: Path, path: Path) -> Entry | str:
    broken: list[str] = []
    entry: Entry | None = _kept(partial(_entry, folder, path), None, folder, broken)
    return entry or broken[0]


def _entry(folder: Path, path: Path) -> Entry:
    result = read_result(path)
    if not result.trials:
        raise BadDocument(f"{path}: trials: a record has its raw trials, got none; write it with `capbench suite`")
    return make_entry(path.relative_to(folder).as_posix(), result)


def file_digest(path: Path) -> str:
    """What ties a check to the bytes that were checked."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _kept(read: Callable[[], T], otherwise: T, folder: Path, broken: list[str]) -> T:
    """What could be read, or the line that says why not, with the path as the board names it."""
    try:
        return read()
    except BadDocument as error:
        broken.append(str(error).replace(f"{folder.as_posix()}/", ""))
        return otherwise


def _valid(checks: Checks, entries: tuple[Entry, ...], folder: Path) -> dict[str, Check]:
    """The checks that speak of the bytes that are there now."""
    paths = {entry.path for entry in entries}
    return {c.record: c for c in checks.checks if c.record in paths and file_digest(folder / c.record) == c.digest}


def _missing(folder: Path, broken: list[str]) -> Iterator[tuple[str, MissingRecord]]:
    for path in sorted(folder.glob(f"*/{MISSING}")):
        nothing: list[MissingRecord] = []
        for row in _kept(partial(read_missing, path), nothing, folder, broken):
            yield path.parent.name, row
