"""Prints what was measured, ratios where only these are claims, and writes it to docs/performance.md and scaling.md."""

from __future__ import annotations

from pathlib import Path

import pytest
from performance_page import Timed, page, step_table, user_table, write_charts
from scaling_page import section, write_section

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session", autouse=True)
def shared_compiler() -> None:
    """What is measured compiles, unlike the other tests."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--write-page",
        action="store_true",
        help="write docs/performance.md, its charts and the section of docs/scaling.md",
    )


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    session = getattr(config, "_benchmarksession", None)
    timed = [
        Timed(b.group or "", b.stats.median, dict(b.extra_info))
        for b in (session.benchmarks if session else [])
        if b.stats.data
    ]
    users = [t for t in timed if t.group.startswith("user runs")]
    if users:
        terminalreporter.write_line("")
        terminalreporter.write_line(user_table(users, "simple"))
    steps = [t for t in timed if t.group.startswith("steps")]
    if steps:
        terminalreporter.write_line("")
        terminalreporter.write_line(step_table(steps, "simple"))
    scaling = [t for t in timed if t.group.startswith("scaling")]
    if scaling:
        terminalreporter.write_line(section(scaling))
    if config.getoption("--write-page") and (steps or users):
        (ROOT / "docs" / "performance.md").write_text(page(timed), encoding="utf-8")
        write_charts(timed, ROOT / "docs" / "performance.svg")
    if config.getoption("--write-page") and scaling:
        write_section(scaling, ROOT / "docs" / "scaling.md")
