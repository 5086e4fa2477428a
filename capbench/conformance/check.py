"""Checks: how a rule is tested, what a check reports, and the report on everything a target provides."""

from __future__ import annotations

import inspect
import traceback
from collections import Counter
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

import torch

import capbench
from capbench.documents.result import Record
from capbench.documents.text import plain

S = TypeVar("S")


class CheckStatus(StrEnum):
    """How a check ended."""

    PASSED = "passed"
    FAILED = "failed"
    NOT_APPLICABLE = "not applicable"
    WARNING = "warning"


MARKS = {
    CheckStatus.PASSED: "passed",
    CheckStatus.FAILED: "FAILED",
    CheckStatus.NOT_APPLICABLE: "–",
    CheckStatus.WARNING: "warning",
}


class Violation(Exception):
    """Raised by a check whose rule is broken."""

    def __init__(self, expected: str, seen: str, fix: str) -> None:
        super().__init__(f"expected: {expected}\nseen:     {seen}\nfix:      {fix}")
        self.expected, self.seen, self.fix = expected, seen, fix


class Drawback(Violation):
    """Raised by a check where the contract allows what was seen, but at a cost."""


class DoesNotApply(Exception):
    """Raised by a check that has nothing to test; the message is the reason."""


Check = Callable[[S], str | None]
"""A function whose name identifies the check and whose docstring states the rule; it may return a note."""


class CheckResult(Record):
    """The result of one check of one plugin or module."""

    check: str
    rule: str
    verdict: CheckStatus
    note: str = ""
    expected: str = ""
    seen: str = ""
    fix: str = ""


class ReportSection(Record):
    """The checks of one module or plugin."""

    title: str
    outcomes: tuple[CheckResult, ...]


class ConformanceReport(Record):
    """The checks of everything that a target provides."""

    target: str
    sections: tuple[ReportSection, ...]

    @property
    def n_failed(self) -> int:
        """How many rules are broken."""
        return self.count(CheckStatus.FAILED)

    def count(self, status: CheckStatus) -> int:
        """How many checks ended with this status."""
        return Counter(result.verdict for section in self.sections for result in section.outcomes)[status]


def run_check(check: Check[S], subject: S) -> CheckResult:
    """Runs one check; an error that the check did not expect counts as a failure."""
    name, rule = check.__name__, (inspect.getdoc(check) or "").partition("\n")[0]
    try:
        note = check(subject)
    except DoesNotApply as reason:
        return CheckResult(check=name, rule=rule, verdict=CheckStatus.NOT_APPLICABLE, note=str(reason))
    except Violation as broken:
        violation = broken
    except Exception as error:  # noqa: BLE001 - the plugin border: whatever the plugin raises is reported
        violation = unexpected_error(error)
    else:
        return CheckResult(check=name, rule=rule, verdict=CheckStatus.PASSED, note=note or "")
    return CheckResult(
        check=name,
        rule=rule,
        verdict=CheckStatus.WARNING if isinstance(violation, Drawback) else CheckStatus.FAILED,
        expected=violation.expected,
        seen=violation.seen,
        fix=violation.fix,
    )


def unexpected_error(error: BaseException) -> Violation:
    """An exception as a violation, with the line of the plugin that raised it."""
    return Violation(
        "no error",
        f"{summarize_error(error)}{_plugin_line(error)}",
        "make the code at that line accept what capbench passes to it",
    )


def summarize_error(error: BaseException) -> str:
    """The type and the first line of an error."""
    first = next((line for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {first.strip()}".removesuffix(": ")


def report_text(report: ConformanceReport) -> str:
    """The report as text for a terminal."""
    sections = [_section_text(section) for section in report.sections]
    shown = [status for status in CheckStatus if status is not CheckStatus.WARNING or report.count(status)]
    counts = ", ".join(f"{report.count(status)} {status.value}" for status in shown)
    return "\n\n".join([*sections, counts])


def _section_text(section: ReportSection) -> str:
    width = max(len(result.check) for result in section.outcomes)
    return "\n".join([plain(section.title), *(_result_text(result, width) for result in section.outcomes)])


def _result_text(result: CheckResult, width: int) -> str:
    heading = f"  {MARKS[result.verdict]:<6}  {result.check:<{width}}"
    if result.verdict in (CheckStatus.PASSED, CheckStatus.NOT_APPLICABLE):
        return plain(f"{heading}  {result.note}".rstrip())
    lines = [
        f"{heading}  {result.rule}",
        f"          expected  {result.expected}",
        f"          seen      {result.seen}",
        f"          fix       {result.fix}",
    ]
    return "\n".join(plain(line) for line in lines)


def _plugin_line(error: BaseException) -> str:
    """File name and number of the innermost line outside capbench and torch."""
    own = tuple(str(Path(package.__file__ or "").parent) for package in (capbench, torch))
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(own)]
    return f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
