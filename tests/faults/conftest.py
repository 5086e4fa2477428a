"""The size of the fault suite, and the document that its full run writes."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.faults.document import write_document

IS_FULL = os.environ.get("CAPBENCH_FAULTS") == "full"
DOCUMENT = Path(__file__).parents[2] / "docs" / "reliability.md"


@dataclass
class Tally:
    """What the suite has counted: rows of (what was done, counts in words)."""

    rows: dict[str, str] = field(default_factory=dict)

    def add(self, what: str, found: str) -> None:
        self.rows[what] = found


@pytest.fixture(scope="session")
def tally(request: pytest.FixtureRequest) -> Tally:
    counted = Tally()
    request.config.stash[KEY] = counted
    return counted


@pytest.fixture(scope="session")
def size() -> Callable[[int, int], int]:
    """The number for a full run, or the smaller one for everyday."""
    return lambda full, short: full if IS_FULL else short


KEY = pytest.StashKey[Tally]()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    counted = config.stash.get(KEY, None)
    if counted is None:
        return
    terminalreporter.section("faults")
    for what, found in counted.rows.items():
        terminalreporter.write_line(f"{what}: {found}")
    if IS_FULL and not terminalreporter.stats.get("failed") and not terminalreporter.stats.get("error"):
        write_document(counted.rows, DOCUMENT)
        terminalreporter.write_line(f"written: {DOCUMENT.name}")
