"""Selections: which of the stored trials and runs are meant."""

from __future__ import annotations

from dataclasses import dataclass

from capbench.results import Result, Trial


@dataclass(frozen=True)
class Selection:
    """All that fits every given field; a field that is None fits anything."""

    task: str | None = None
    architecture: str | None = None
    status: str | None = None
    since: str | None = None
    """ISO date or moment, in UTC."""
    before: str | None = None

    @property
    def is_everything(self) -> bool:
        """Whether nothing is left out."""
        return self == Selection()

    def where(self, *, with_status: bool) -> tuple[str, list[str]]:
        """The same in SQL, with its values; trials have a status, runs have none."""
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
    """A trial, and what the store knows of it."""

    task: str
    architecture: str
    created: str
    trial: Trial


@dataclass(frozen=True)
class StoredRun:
    """A run, and when it was stored."""

    created: str
    result: Result
