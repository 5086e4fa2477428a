"""What a check finds: that a rule is kept, that it does not apply, or what was expected, seen, and how to fix it."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

import torch

import capbench
from capbench.results import Record

S = TypeVar("S")


class Verdict(StrEnum):
    """How a check ended."""

    PASSED = "passed"
    FAILED = "failed"
    NOT_APPLICABLE = "not applicable"


class Violation(Exception):
    """Raised by a check whose rule is broken."""

    def __init__(self, expected: str, seen: str, fix: str) -> None:
        super().__init__(f"expected: {expected}\nseen:     {seen}\nfix:      {fix}")
        self.expected, self.seen, self.fix = expected, seen, fix


class DoesNotApply(Exception):
    """Raised by a check that has nothing to look at; the message is the reason."""


class Outcome(Record):
    """One check of one plugin."""

    check: str
    rule: str
    verdict: Verdict
    note: str = ""
    expected: str = ""
    seen: str = ""
    fix: str = ""


Check = Callable[[S], str | None]
"""A check is a function: its name is the check's, its docstring the rule; it may return a note."""


def judge(check: Check[S], subject: S) -> Outcome:
    """Runs one check; an error that it did not look for is a failure, too."""
    name, rule = check.__name__, (inspect.getdoc(check) or "").partition("\n")[0]
    try:
        note = check(subject)
    except DoesNotApply as reason:
        return Outcome(check=name, rule=rule, verdict=Verdict.NOT_APPLICABLE, note=str(reason))
    except Violation as broken:
        found = broken
    except Exception as error:  # noqa: BLE001 - the plugin border: whatever it raises is what was seen
        found = unforeseen(error)
    else:
        return Outcome(check=name, rule=rule, verdict=Verdict.PASSED, note=note or "")
    return Outcome(
        check=name, rule=rule, verdict=Verdict.FAILED, expected=found.expected, seen=found.seen, fix=found.fix
    )


def unforeseen(error: BaseException, doing: str = "no error") -> Violation:
    """An exception as a violation, with the line of the plugin that it comes from."""
    return Violation(
        doing, f"{brief(error)}{_place(error)}", "make the code at that line accept what capbench gives it"
    )


def brief(error: BaseException) -> str:
    """The type and the first line of an error."""
    first = next((line for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {first.strip()}".removesuffix(": ")


def _place(error: BaseException) -> str:
    """The innermost line outside of capbench and torch."""
    own = tuple(str(Path(package.__file__ or "").parent) for package in (capbench, torch))
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(own)]
    return f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
