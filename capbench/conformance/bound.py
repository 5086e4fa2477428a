"""Rules for bounds: applicable somewhere, positive, monotone, cited, and consistent with the other bounds."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import Literal, get_args, get_origin

from capbench.conformance.check import Check, DoesNotApply, Violation, unexpected_error
from capbench.conformance.side_effects import refuse_global_changes
from capbench.conformance.subject import Subject, call_every_method
from capbench.contract.architecture import Architecture
from capbench.contract.bound import FACTS, Bound, BoundValue, ExactBound, Kind, Pedigree
from capbench.contract.task import Task
from capbench.errors import BadSetting, NotApplicable
from capbench.registry.provenance import OWN_DISTRIBUTION
from capbench.registry.settings import Configured

Pair = tuple[Configured[Task], Configured[Architecture]]


def cited(subject: Subject) -> None:
    """Kind and pedigree are members of capbench's enums; statement, formula and citation are not empty."""
    bound = subject.configured.plugin
    if not isinstance(bound.kind, Kind) or not isinstance(bound.pedigree, Pedigree):
        raise Violation(
            "kind: Kind and pedigree: Pedigree", f"{bound.kind!r}, {bound.pedigree!r}", "use Kind.LOWER, Pedigree.PAPER"
        )
    if (bound.kind is Kind.EXACT) != isinstance(bound, ExactBound):
        raise Violation(
            "Kind.EXACT for an ExactBound and for no other",
            f"{bound.kind!r}",
            "derive it from ExactBound and define success, or choose another kind",
        )
    empty = [name for name in ("statement", "formula", "citation") if not getattr(bound, name).strip()]
    if empty:
        raise Violation(
            "statement, formula and citation", f"{', '.join(empty)} empty", "state the theorem and its source"
        )


def applicable(subject: Subject) -> str:
    """It has a value for at least one pair, built-in or of its own module, and raises NotApplicable for the rest."""
    n_without_value, pairs = 0, _pairs(subject)
    for task, architecture in pairs:
        for load in (None, *_loads(task.plugin)):
            try:
                subject.configured.plugin.evaluate(task.plugin, architecture.plugin, load)
            except NotApplicable as reason:
                _refuse_empty_reason(str(reason))
            except Exception as error:
                raise Violation(
                    f"a BoundValue or NotApplicable for {architecture.plugin.name} on {task.plugin.name}, load {load}",
                    unexpected_error(error).seen,
                    "test the task and the architecture first: if not isinstance(task, …): raise NotApplicable('…')",
                ) from error
        n_without_value += not _values(subject, (task, architecture))
    total = len(pairs)
    if total and n_without_value == total:
        raise Violation(
            "a value for at least one pair", f"NotApplicable for all {total}", "check the conditions in evaluate"
        )
    return f"has a value for {total - n_without_value} of {total} pairs"


def positive(subject: Subject) -> None:
    """Values are finite, not negative, and name their quantity."""
    for pair in _applicable_pairs(subject):
        for load, found in _values(subject, pair).items():
            if not (math.isfinite(found.value) and found.value >= 0 and found.quantity):
                raise Violation(
                    "a finite value of at least 0, with a named quantity",
                    f"{found} at load {load}",
                    "raise NotApplicable where the formula is undefined",
                )


def monotone_in_load(subject: Subject) -> None:
    """Values that depend on the load either never fall or never rise with it."""
    for pair in _applicable_pairs(subject):
        values = [found.value for load, found in _values(subject, pair).items() if load is not None]
        differences = [b - a for a, b in pairwise(values)]
        if any(d > 1e-9 for d in differences) and any(d < -1e-9 for d in differences):
            raise Violation(
                f"values that only rise or only fall with the load ({_label(pair)})",
                ", ".join(f"{value:.4g}" for value in values),
                "check the formula; raise NotApplicable outside the loads that it is proved for",
            )


def monotone_in_width(subject: Subject) -> None:
    """A larger width never gives fewer facts."""
    for task, architecture in _applicable_pairs(subject):
        narrow = _facts(subject.configured.plugin, task.plugin, architecture.plugin)
        for name in architecture.plugin.widths(task.plugin.signature):
            doubled = _double(architecture, name)
            wide = _facts(subject.configured.plugin, task.plugin, doubled) if doubled is not None else None
            if narrow is not None and wide is not None and wide < narrow - 1e-9:
                raise Violation(
                    f"no fewer facts with twice the {name} ({_label((task, architecture))})",
                    f"{wide:g} < {narrow:g}",
                    "check the formula: is a width in the denominator?",
                )


def deterministic(subject: Subject) -> None:
    """The same pair and load give the same value."""
    for pair in _applicable_pairs(subject):
        if _values(subject, pair) != _values(subject, pair):
            raise Violation("equal values for equal pairs", "they differ", "compute the value from the arguments alone")


def no_global_randomness(subject: Subject) -> None:
    """evaluate neither seeds nor draws from a global random generator."""
    refuse_global_changes(lambda: call_every_method(subject))


def no_contradiction(subject: Subject) -> None:
    """No lower bound on the facts of a pair exceeds an upper bound on them; an exact one is both."""
    bound = subject.configured.plugin
    if bound.kind is Kind.LAW:
        raise DoesNotApply("a law guarantees no number of facts")
    others = [p.cls() for p in subject.registry.bounds.values() if p.provenance.distribution == OWN_DISTRIBUTION]
    for pair in _applicable_pairs(subject):
        values = {b: v for b in [*others, bound] if (v := _facts(b, pair[0].plugin, pair[1].plugin)) is not None}
        lower = max((v for b, v in values.items() if b.kind in (Kind.LOWER, Kind.EXACT)), default=0.0)
        upper = min((v for b, v in values.items() if b.kind in (Kind.UPPER, Kind.EXACT)), default=math.inf)
        if bound in values and lower > upper:
            raise Violation(
                f"the largest lower bound not above the smallest upper bound ({_label(pair)})",
                f"{lower:g} > {upper:g}",
                "one of the theorems is misread: check `kind`, and whether both count capacity the same way",
            )


def half_at_capacity(subject: Subject) -> None:
    """The success of an exact bound is a probability, never rises with the load, and crosses one half at its value."""
    bound = subject.configured.plugin
    if not isinstance(bound, ExactBound):
        raise DoesNotApply("only exact bounds have a success curve")
    for pair in _applicable_pairs(subject):
        task, architecture = pair[0].plugin, pair[1].plugin
        capacity = bound.evaluate(task, architecture, None).value
        below, above = (
            bound.success(task, architecture, load) for load in (max(1, math.floor(capacity)), math.ceil(capacity))
        )
        curve = [bound.success(task, architecture, load) for load in _loads(task)]
        is_curve = all(0 <= p <= 1 for p in curve) and all(b <= a + 1e-9 for a, b in pairwise(curve))
        if not is_curve or not above - 1e-9 <= 0.5 <= below + 1e-9:
            raise Violation(
                f"a success curve that falls through 1/2 at {capacity:g} ({_label(pair)})",
                f"{', '.join(f'{p:.3g}' for p in curve)}; {below:.3g} and {above:.3g} at the capacity",
                "evaluate must give the load at which success is 1/2",
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
    half_at_capacity,
)


def _pairs(subject: Subject) -> list[Pair]:
    """All pairs at smoke-preset sizes, and variants of the tasks if the bound applies to none of these."""
    pairs = [(task, architecture) for task in subject.tasks for architecture in subject.architectures]
    if any(_values(subject, pair) for pair in pairs):
        return pairs
    variants = [variant for task in subject.tasks for variant in _variants(task)]
    return [*pairs, *((task, architecture) for task in variants for architecture in subject.architectures)]


def _variants(task: Configured[Task]) -> Iterator[Configured[Task]]:
    """The task with each boolean or Literal field changed, one at a time, where the task allows it."""
    for name, field in type(task.plugin).model_fields.items():
        for value in _choices(field.annotation):
            if value == getattr(task.plugin, name):
                continue
            try:
                yield task.replaced(**{name: value})
            except BadSetting:
                continue


def _choices(annotation: object) -> tuple[object, ...]:
    if annotation is bool:
        return (False, True)
    return get_args(annotation) if get_origin(annotation) is Literal else ()


def _loads(task: Task) -> list[int]:
    """Loads that double from 1, and the largest load."""
    return sorted({*(2**i for i in range(task.max_load.bit_length()) if 2**i <= task.max_load), task.max_load})


def _values(subject: Subject, pair: Pair) -> dict[int | None, BoundValue]:
    """The bound's values for a pair without a load and at several loads, where it applies."""
    found: dict[int | None, BoundValue] = {}
    for load in (None, *_loads(pair[0].plugin)):
        try:
            found[load] = subject.configured.plugin.evaluate(pair[0].plugin, pair[1].plugin, load)
        except Exception:  # noqa: BLE001 - the plugin border; `applicable` reports the error
            continue
    return found


def _applicable_pairs(subject: Subject) -> list[Pair]:
    """The pairs that the bound has a value for; raises DoesNotApply if there are none."""
    pairs = [pair for pair in _pairs(subject) if _values(subject, pair)]
    if not pairs:
        raise DoesNotApply("it applies to no pair")
    return pairs


def _facts(bound: Bound, task: Task, architecture: Architecture) -> float | None:
    """The bound's number of facts for a pair, if it applies and counts facts."""
    try:
        found = bound.evaluate(task, architecture, None)
    except NotApplicable:
        return None
    return found.value if found.quantity == FACTS else None


def _double(architecture: Configured[Architecture], name: str) -> Architecture | None:
    """The architecture with twice the width of this name, if it allows that."""
    try:
        return architecture.replaced(**{name: 2 * getattr(architecture.plugin, name)}).plugin
    except BadSetting:
        return None


def _refuse_empty_reason(reason: str) -> None:
    if not reason.strip():
        raise Violation("a reason in NotApplicable", "none", "raise NotApplicable('it applies to …')")


def _label(pair: Pair) -> str:
    return f"{pair[1].plugin.name} on {pair[0].plugin.name}"
