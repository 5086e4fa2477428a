"""Selecting stored trials and runs."""

from __future__ import annotations

from dataclasses import dataclass

from capbench.documents.result import Result, Trial


@dataclass(frozen=True)
class StoreQuery:
    """What matches every given field; None matches anything."""

    task: str | None = None
    architecture: str | None = None
    status: str | None = None
    since: str | None = None
    """ISO date or time, in UTC."""
    before: str | None = None

    @property
    def is_everything(self) -> bool:
        """Whether it selects everything."""
        return self == StoreQuery()

    def where(self, *, with_status: bool) -> tuple[str, list[str]]:
        """The SQL condition and its values; trials have a status, runs have none."""
        clauses = {
            "task = ?": self.task,
            "architecture = ?": self.architecture,
            "status = ?": self.status if with_status else None,
            "created >= ?": self.since,
            "created < ?": self.before,
        }
        given = {clause: value for clause, value in clauses.items() if value is not None}
        return " AND ".join(given) or "TRUE", list(given.values())


@dataclass(frozen=True)
class StoredTrial:
    """A trial as it is stored."""

    task: str
    architecture: str
    created: str
    trial: Trial


@dataclass(frozen=True)
class StoredRun:
    """A run as it is stored."""

    created: str
    result: Result
