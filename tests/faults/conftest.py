"""The size of the fault suite, and the document that its full run writes."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable
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
FORGERIES = (
    "test_a_forgery_is_found_without_running_any_trial_again",
    "test_a_document_made_from_changed_trials_is",
    "test_a_forged_machine_or_time_never_hides_forged_trials",
    "test_a_forged_environment_that_decides_the_trials_is_found",
)
"""Starts of the tests that forge documents, in tests/studies/verify; `make faults` runs them too."""


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    counted = config.stash.get(KEY, None)
    if counted is None:
        return
    stats = terminalreporter.stats
    n_forgeries = count_forgeries([report.nodeid for report in stats.get("passed", []) if report.when == "call"])
    if n_forgeries:
        counted.add("forged documents verified", f"{n_forgeries} forgeries, each found")
    terminalreporter.section("faults")
    for what, found in counted.rows.items():
        terminalreporter.write_line(f"{what}: {found}")
    if not IS_FULL:
        return
    named = [config.invocation_params.dir / argument.split("::")[0] for argument in config.args]
    if not n_forgeries or not is_whole(named, bool(stats.get("deselected"))) or "::" in "".join(config.args):
        terminalreporter.write_line(f"{DOCUMENT.name} is not written: this was a part of `make faults`")
    elif not any(stats.get(kind) for kind in ("failed", "error")):
        write_document(counted.rows, DOCUMENT)
        terminalreporter.write_line(f"written: {DOCUMENT.name}")


def is_whole(named: Collection[Path], has_deselected: bool) -> bool:
    """Whether all fault tests were to run: the page never has the rows of some of them only."""
    return Path(__file__).parent in {path.resolve() for path in named} and not has_deselected


def count_forgeries(passed: Iterable[str]) -> int:
    """How many of the passed tests forged a document."""
    return sum(node.split("::")[-1].startswith(FORGERIES) for node in passed)
