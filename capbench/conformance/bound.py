"""Rules for bounds: applicable somewhere, positive, monotone, cited, and at odds with no other bound."""

from __future__ import annotations

import math
from itertools import pairwise

from capbench.architecture import Architecture
from capbench.bound import FACTS, Bound, BoundValue, Kind, Pedigree
from capbench.conformance.exercise import exercise, without_traces
from capbench.conformance.outcome import Check, DoesNotApply, Violation, unforeseen
from capbench.conformance.subject import Subject
from capbench.conformance.variants import variants
from capbench.errors import BadSetting, NotApplicable
from capbench.registry import OWN_DISTRIBUTION
from capbench.settings import Configured
from capbench.task import Task

Case = tuple[Configured[Task], Configured[Architecture]]


def cited(subject: Subject) -> None:
    """Kind and pedigree are of capbench's enumerations; statement, formula and citation say something."""
    bound = subject.configured.plugin
    if not isinstance(bound.kind, Kind) or not isinstance(bound.pedigree, Pedigree):
        raise Violation(
            "kind: Kind and pedigree: Pedigree", f"{bound.kind!r}, {bound.pedigree!r}", "use Kind.LOWER, Pedigree.PAPER"
        )
    empty = [name for name in ("statement", "formula", "citation") if not getattr(bound, name).strip()]
    if empty:
        raise Violation(
            "statement, formula and citation", f"{', '.join(empty)} empty", "say the theorem and its source"
        )


def applicable(subject: Subject) -> str:
    """It speaks of at least one pair of built-in task and architecture, and says NotApplicable of the others."""
    silent, cases = 0, _cases(subject)
    for task, architecture in cases:
        for load in (None, *_loads(task.plugin)):
            try:
                subject.configured.plugin.evaluate(task.plugin, architecture.plugin, load)
            except NotApplicable as reason:
                _refuse_silence(str(reason))
            except Exception as error:
                raise Violation(
                    f"a BoundValue or NotApplicable for {architecture.plugin.name} on {task.plugin.name}, load {load}",
                    unforeseen(error).seen,
                    "test the task and the architecture first: if not isinstance(task, …): raise NotApplicable('…')",
                ) from error
        silent += not _values(subject, (task, architecture))
    total = len(cases)
    if total and silent == total:
        raise Violation(
            "a value for at least one pair", f"NotApplicable for all {total}", "check the conditions in evaluate"
        )
    return f"speaks of {total - silent} of {total} pairs"


def positive(subject: Subject) -> None:
    """Values are finite and not negative, and name their quantity."""
    for case in _speaking(subject):
        for load, found in _values(subject, case).items():
            if not (math.isfinite(found.value) and found.value >= 0 and found.quantity):
                raise Violation(
                    "a finite value of 0 or more, of a named quantity",
                    f"{found} at load {load}",
                    "raise NotApplicable where the formula has no meaning",
                )


def monotone_in_load(subject: Subject) -> str | None:
    """What depends on the load only rises with it, or only falls."""
    for case in _speaking(subject):
        found = [value.value for load, value in _values(subject, case).items() if load is not None]
        steps = [b - a for a, b in pairwise(found)]
        if any(step > 1e-9 for step in steps) and any(step < -1e-9 for step in steps):
            raise Violation(
                f"values that only rise or only fall with the load ({_words(case)})",
                ", ".join(f"{value:.4g}" for value in found),
                "check the formula; raise NotApplicable beyond the loads that it is proved for",
            )
    return None


def monotone_in_width(subject: Subject) -> None:
    """More width never means fewer facts."""
    for task, architecture in _speaking(subject):
        narrow = _facts(subject, task.plugin, architecture.plugin)
        for name in architecture.plugin.widths(task.plugin.signature):
            wide = _facts(subject, task.plugin, _doubled(architecture, name))
            if narrow is not None and wide is not None and wide < narrow - 1e-9:
                raise Violation(
                    f"no fewer facts for twice the {name} ({_words((task, architecture))})",
                    f"{wide:g} < {narrow:g}",
                    "check the formula: is a width in the denominator?",
                )


def deterministic(subject: Subject) -> None:
    """The same pair and load give the same value."""
    for case in _speaking(subject):
        if _values(subject, case) != _values(subject, case):
            raise Violation("equal values for equal pairs", "they differ", "compute the value from the arguments alone")


def no_global_randomness(subject: Subject) -> None:
    """evaluate draws no random numbers and builds no random module."""
    without_traces(lambda: exercise(subject))


def no_contradiction(subject: Subject) -> None:
    """On no pair does a guaranteed number of facts exceed an impossible one."""
    bound = subject.configured.plugin
    if bound.kind is Kind.LAW:
        raise DoesNotApply("a law promises nothing")
    others = [p.cls() for p in subject.company.bounds.values() if p.provenance.distribution == OWN_DISTRIBUTION]
    for case in _speaking(subject):
        values = {b: v for b in [*others, bound] if (v := _facts_of(b, case)) is not None}
        lower = max((v for b, v in values.items() if b.kind is Kind.LOWER), default=0.0)
        upper = min((v for b, v in values.items() if b.kind is Kind.UPPER), default=math.inf)
        if bound in values and lower > upper:
            raise Violation(
                f"guaranteed facts below impossible ones ({_words(case)})",
                f"{lower:g} > {upper:g}",
                "one of the theorems is misread: check kind, and whether capacity is counted the same way",
            )


CHECKS: tuple[Check[Subject], ...] = (
    cited,
    applicable,
    positive,
    monotone_in_load,
    monotone_in_width,
    deterministic,
    no_global_randomness,
    no_contradiction,
)


def _cases(subject: Subject) -> list[Case]:
    """Pairs at the sizes of the smoke preset; where it speaks of none of them, with one choice of the task changed."""
    usual = [(task, architecture) for task in subject.tasks for architecture in subject.architectures]
    if any(_values(subject, case) for case in usual):
        return usual
    changed = [other for task in subject.tasks for other in variants(task)]
    return [*usual, *((task, architecture) for task in changed for architecture in subject.architectures)]


def _loads(task: Task) -> list[int]:
    """A spread of loads, doubling from 1 to the most there are."""
    return sorted({*(2**i for i in range(task.max_load.bit_length()) if 2**i <= task.max_load), task.max_load})


def _values(subject: Subject, case: Case) -> dict[int | None, BoundValue]:
    """What the bound says of a pair, at no load and at a spread of them, where it says anything."""
    found: dict[int | None, BoundValue] = {}
    for load in (None, *_loads(case[0].plugin)):
        try:
            found[load] = subject.configured.plugin.evaluate(case[0].plugin, case[1].plugin, load)
        except Exception:  # noqa: BLE001 - the plugin border; `applicable` tells what is wrong
            continue
    return found


def _speaking(subject: Subject) -> list[Case]:
    """The pairs it says something of."""
    cases = [case for case in _cases(subject) if _values(subject, case)]
    if not cases:
        raise DoesNotApply("it speaks of no pair")
    return cases


def _facts(subject: Subject, task: Task, architecture: Architecture | None) -> float | None:
    if architecture is None:
        return None
    try:
        found = subject.configured.plugin.evaluate(task, architecture, None)
    except NotApplicable:
        return None
    return found.value if found.quantity == FACTS else None


def _facts_of(bound: Bound, case: Case) -> float | None:
    try:
        found = bound.evaluate(case[0].plugin, case[1].plugin, None)
    except NotApplicable:
        return None
    return found.value if found.quantity == FACTS else None


def _doubled(architecture: Configured[Architecture], name: str) -> Architecture | None:
    """The architecture with twice as much of a width, where it allows that."""
    try:
        return architecture.replaced(**{name: 2 * getattr(architecture.plugin, name)}).plugin
    except BadSetting:
        return None


def _refuse_silence(reason: str) -> None:
    if not reason.strip():
        raise Violation("a reason in NotApplicable", "none", "raise NotApplicable('it speaks of …')")


def _words(case: Case) -> str:
    return f"{case[1].plugin.name} on {case[0].plugin.name}"
