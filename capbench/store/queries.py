"""Selecting stored trials and runs."""

from __future__ import annotations

from dataclasses import dataclass

from capbench.documents.conditions import meets
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
    tags: tuple[str, ...] = ()
    """Runs with all of these tags."""
    conditions: tuple[str, ...] = ()
    """Runs that meet all of these: arch.n_heads>4."""

    @property
    def is_everything(self) -> bool:
        """Whether it selects everything."""
        return self == StoreQuery()

    @property
    def is_of_runs(self) -> bool:
        """Whether it selects by what only runs have."""
        return bool(self.tags or self.conditions)

    def selects(self, result: Result) -> bool:
        """Whether a run has the tags and meets the conditions, which the SQL condition leaves out."""
        return set(self.tags) <= {*result.tags} and all(meets(result, each) for each in self.conditions)

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
