"""The report of a check: every rule with its verdict, and for each that is broken how to mend it."""

from __future__ import annotations

from collections import Counter

from capbench.conformance.outcome import Outcome, Verdict
from capbench.report.text import plain
from capbench.results import Record

MARKS = {Verdict.PASSED: "passed", Verdict.FAILED: "FAILED", Verdict.NOT_APPLICABLE: "–"}


class Section(Record):
    """The checks of one module or plugin."""

    title: str
    outcomes: tuple[Outcome, ...]


class Report(Record):
    """The checks of all that a target provides."""

    target: str
    sections: tuple[Section, ...]

    @property
    def n_failed(self) -> int:
        """How many rules are broken."""
        return self.count(Verdict.FAILED)

    def count(self, verdict: Verdict) -> int:
        """How many checks ended so."""
        return Counter(o.verdict for section in self.sections for o in section.outcomes)[verdict]


def report_text(report: Report) -> str:
    """The report for a person."""
    parts = [_section_text(section) for section in report.sections]
    counts = ", ".join(f"{report.count(verdict)} {verdict.value}" for verdict in Verdict)
    return "\n\n".join([*parts, counts])


def _section_text(section: Section) -> str:
    width = max(len(outcome.check) for outcome in section.outcomes)
    return "\n".join([plain(section.title), *(_outcome_text(outcome, width) for outcome in section.outcomes)])


def _outcome_text(outcome: Outcome, width: int) -> str:
    first = f"  {MARKS[outcome.verdict]:<6}  {outcome.check:<{width}}  {outcome.note}".rstrip()
    if outcome.verdict is not Verdict.FAILED:
        return plain(first)
    lines = [
        f"  {MARKS[outcome.verdict]:<6}  {outcome.check:<{width}}  {outcome.rule}",
        f"          expected  {outcome.expected}",
        f"          seen      {outcome.seen}",
        f"          fix       {outcome.fix}",
    ]
    return "\n".join(plain(line) for line in lines)
