"""The kit: which rules hold for a plugin, and a whole target examined by them."""

from __future__ import annotations

from pathlib import Path

from capbench.architecture import Architecture
from capbench.bound import Bound
from capbench.conformance import architecture, bound, constructive_solver, gradient_solver, manners, provider, task
from capbench.conformance.outcome import Check, Outcome, Verdict, judge
from capbench.conformance.provider import Candidate, Provider
from capbench.conformance.report import Report, Section
from capbench.conformance.subject import Subject
from capbench.conformance.target import Target, find_target
from capbench.plugin import Plugin
from capbench.provenance import code_hash
from capbench.registry import Provided, Registry
from capbench.solver import ConstructiveSolver, GradientSolver
from capbench.task import Task

BY_KIND: tuple[tuple[type[Plugin], tuple[Check[Subject], ...]], ...] = (
    (Architecture, architecture.CHECKS),
    (Task, task.CHECKS),
    (Bound, bound.CHECKS),
    (GradientSolver, gradient_solver.CHECKS),
    (ConstructiveSolver, constructive_solver.CHECKS),
)


def checks_of(cls: type[Plugin]) -> tuple[Check[Subject], ...]:
    """The rules for a plugin class: those of all plugins, then those of its kind."""
    own = next((checks for kind, checks in BY_KIND if issubclass(cls, kind)), ())
    return (*manners.CHECKS, *own)


def examine(words: str, registry: Registry, files: tuple[Path, ...] = (), *, compiles: bool = True) -> Report:
    """Checks all that a target provides, beginning with how it is imported and found."""
    target = find_target(words, registry, files)
    sections = [section for p in target.providers for section in _examined(p, target, registry, compiles)]
    if target.problem is not None:
        sections = [Section(title=words, outcomes=(_problem(target),))]
    return Report(target=words, sections=tuple(sections))


def _examined(source: Provider, target: Target, registry: Registry, compiles: bool) -> list[Section]:
    """One section for the module, and one for each of its plugins that was asked for."""
    candidate = Candidate(source, registry)
    title = f"module {source.module}, from {source.provenance.distribution} {source.provenance.version}"
    loading = Section(title=title, outcomes=tuple(judge(check, candidate) for check in provider.CHECKS))
    is_loaded = not any(
        o.verdict is Verdict.FAILED and o.check in ("entry_point", "importable", "hooks") for o in loading.outcomes
    )
    offers = source.offers() if is_loaded else []
    wanted = [cls for _, cls in offers if target.only in (None, cls.name)]
    return [loading, *(_plugin_section(cls, source, registry, compiles) for cls in wanted)]


def _plugin_section(cls: type[Plugin], source: Provider, registry: Registry, compiles: bool) -> Section:
    subject = Subject(Provided(cls, source.provenance), registry, compiles)
    title = f"{subject.kind} {cls.name}, version {cls.version}, code {code_hash(cls)}"
    return Section(title=title, outcomes=tuple(judge(check, subject) for check in checks_of(cls)))


def _problem(target: Target) -> Outcome:
    assert target.problem is not None
    return Outcome(
        check="entry_point",
        rule="The distribution has an entry point in group `capbench`.",
        verdict=Verdict.FAILED,
        expected=target.problem.expected,
        seen=target.problem.seen,
        fix=target.problem.fix,
    )
