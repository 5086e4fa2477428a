"""The kit: finds the plugins that `capbench check` is given and runs every check that applies to them."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import EntryPoint, EntryPoints, PackageNotFoundError, distribution, entry_points
from pathlib import Path

from capbench.conformance import architecture, bound, constructive_solver, gradient_solver, plugin, provider, task
from capbench.conformance.check import (
    Check,
    CheckResult,
    CheckStatus,
    ConformanceReport,
    ReportSection,
    Violation,
    run_check,
)
from capbench.conformance.provider import Candidate, Provider
from capbench.conformance.subject import Subject
from capbench.contract.architecture import Architecture
from capbench.contract.bound import Bound
from capbench.contract.plugin import Plugin
from capbench.contract.solver import ConstructiveSolver, GradientSolver
from capbench.contract.task import Task
from capbench.errors import UnknownName
from capbench.registry.plugin_file import file_provenance, module_name
from capbench.registry.provenance import code_hash
from capbench.registry.registry import GROUP, Provided, Registry, provenance_of

CHECKS_BY_KIND: tuple[tuple[type[Plugin], tuple[Check[Subject], ...]], ...] = (
    (Architecture, architecture.CHECKS),
    (Task, task.CHECKS),
    (Bound, bound.CHECKS),
    (GradientSolver, gradient_solver.CHECKS),
    (ConstructiveSolver, constructive_solver.CHECKS),
)


@dataclass(frozen=True)
class Target:
    """The providers to check, and the name of the plugin if only one of theirs was requested."""

    providers: tuple[Provider, ...]
    only: str | None = None
    problem: Violation | None = None
    """Why there is nothing to check, if a distribution has no entry point for capbench."""


def checks_of(cls: type[Plugin]) -> tuple[Check[Subject], ...]:
    """The checks of a plugin class: those of every plugin, then those of its kind."""
    own = next((checks for kind, checks in CHECKS_BY_KIND if issubclass(cls, kind)), ())
    return (*plugin.CHECKS, *own)


def check_target(
    name: str, registry: Registry, files: tuple[Path, ...] = (), *, compiles: bool = True
) -> ConformanceReport:
    """Checks everything that a target provides, beginning with how it is imported and found."""
    target = find_target(name, registry, files)
    sections = [section for p in target.providers for section in _check_provider(p, target.only, registry, compiles)]
    if target.problem is not None:
        sections = [ReportSection(title=name, outcomes=(_missing_entry_point(target.problem),))]
    return ConformanceReport(target=name, sections=tuple(sections))


def find_target(name: str, registry: Registry, files: tuple[Path, ...] = ()) -> Target:
    """Looks a name up as a file, a registered plugin, a distribution and a module, in this order."""
    path = Path(name)
    if path.suffix == ".py":
        file_provenance(path)  # raises if the file is missing or badly named
        return Target((Provider(module_name(path), file=path),))
    target = _find_plugin(name, registry, files) or _find_entry_points(name) or _find_without_entry_point(name)
    if target is not None:
        return target
    known = [p.entry_point for p in registry.loaded]
    hint = f"; for a file write ./{name}.py" if Path(f"{name}.py").exists() else ""
    where = f"a file, a module, a distribution or a name from capbench list{hint}"
    raise UnknownName.among("plugin", name, known, where)


def _check_provider(source: Provider, only: str | None, registry: Registry, compiles: bool) -> list[ReportSection]:
    """One section for the module, and one for each of its requested plugins."""
    candidate = Candidate(source, registry)
    title = f"module {source.module}, from {source.provenance.distribution} {source.provenance.version}"
    loading = ReportSection(title=title, outcomes=tuple(run_check(check, candidate) for check in provider.CHECKS))
    is_loaded = not any(
        result.verdict is CheckStatus.FAILED and result.check in ("entry_point", "importable", "hooks")
        for result in loading.outcomes
    )
    offers = source.offers() if is_loaded else []
    requested = [cls for _, cls in offers if only in (None, cls.name)]
    return [
        loading,
        *(_check_plugin(cls, source, registry, compiles, [each for _, each in offers]) for cls in requested),
    ]


def _check_plugin(
    cls: type[Plugin], source: Provider, registry: Registry, compiles: bool, offered: Iterable[type[Plugin]]
) -> ReportSection:
    subject = Subject(Provided(cls, source.provenance), registry, compiles, tuple(offered))
    title = f"{subject.kind} {cls.name}, version {cls.version}, code {code_hash(cls)}"
    return ReportSection(title=title, outcomes=tuple(run_check(check, subject) for check in checks_of(cls)))


def _missing_entry_point(problem: Violation) -> CheckResult:
    return CheckResult(
        check="entry_point",
        rule="The distribution has an entry point in group `capbench`.",
        verdict=CheckStatus.FAILED,
        expected=problem.expected,
        seen=problem.seen,
        fix=problem.fix,
    )


def _find_plugin(name: str, registry: Registry, files: tuple[Path, ...]) -> Target | None:
    """The providers of a registered plugin, restricted to that plugin."""
    try:
        found = registry.find(name)
    except UnknownName:
        return None
    origins = {provided.provenance for provided in found}
    installed = [Provider(p.module, point=p) for p in entry_points(group=GROUP) if provenance_of(p) in origins]
    from_files = [Provider(module_name(f), file=f) for f in files if file_provenance(f) in origins]
    return Target((*installed, *from_files), only=name)


def _find_entry_points(name: str) -> Target | None:
    """An entry point, or all entry points of a distribution."""
    providers = [
        Provider(p.module, point=p)
        for p in entry_points(group=GROUP)
        if name in (p.name, p.module) or _normalize(provenance_of(p).distribution) == _normalize(name)
    ]
    return Target(tuple(providers)) if providers else None


def _find_without_entry_point(name: str) -> Target | None:
    """A distribution without an entry point for capbench, which is a problem, or a module that is not installed."""
    try:
        found = distribution(name)
    except (PackageNotFoundError, ValueError):
        return _find_module(name)
    groups = {point.group for point in found.entry_points}
    problem = Violation(
        f"an entry point of {name} in group 'capbench'",
        f"entry points in {', '.join(sorted(groups))}" if groups else "no entry points",
        f"add to pyproject.toml: [project.entry-points.capbench] {_example(found.entry_points, name)}; then reinstall",
    )
    return Target((), problem=problem)


def _find_module(name: str) -> Target | None:
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None
    return Target((Provider(name),)) if spec is not None else None


def _example(points: EntryPoints, name: str) -> str:
    """The entry point to declare: an existing one of another group, or one named after the distribution."""
    first: EntryPoint | None = next(iter(points), None)
    key, value = (first.name, first.value) if first else (_normalize(name), _normalize(name))
    return f'{key} = "{value}"'


def _normalize(name: str) -> str:
    """A distribution's name as an identifier, the same for all its spellings."""
    return re.sub(r"[-_.]+", "_", name).lower()
