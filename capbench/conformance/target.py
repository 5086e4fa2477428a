"""Targets: what `capbench check` is asked to look at, found by file, name, distribution or module."""

from __future__ import annotations

import importlib.util
import re
from dataclasses import dataclass
from importlib.metadata import EntryPoint, PackageNotFoundError, distribution, entry_points
from pathlib import Path

from capbench.conformance.outcome import Violation
from capbench.conformance.provider import Provider
from capbench.errors import UnknownName
from capbench.plugin_file import file_provenance, module_name
from capbench.registry import GROUP, Registry, provenance_of


@dataclass(frozen=True)
class Target:
    """The providers to be checked, and the one plugin of them where only one was named."""

    title: str
    providers: tuple[Provider, ...]
    only: str | None = None
    problem: Violation | None = None
    """Why there is nothing to check, where a distribution offers nothing."""


def find_target(words: str, registry: Registry, files: tuple[Path, ...] = ()) -> Target:
    """What the words name; the first that fits of: a file, a registered plugin, a distribution, a module."""
    path = Path(words)
    if path.suffix == ".py":
        file_provenance(path)  # says what is wrong with the file's name, or that it is not there
        return Target(words, (Provider(module_name(path), file=path),))
    for find in (_registered, _installed, _distribution, _module):
        target = find(words, registry, files)
        if target is not None:
            return target
    known = [p.entry_point for p in registry.loaded]
    hint = f"; for a file write ./{words}.py" if Path(f"{words}.py").exists() else ""
    where = f"a file, a module, a distribution or a name from capbench list{hint}"
    raise UnknownName.among("plugin", words, known, where)


def _registered(words: str, registry: Registry, files: tuple[Path, ...]) -> Target | None:
    """A plugin's own name: its provider, and no other plugin of it."""
    try:
        found = registry.any(words)
    except UnknownName:
        return None
    origins = {provided.provenance for provided in found}
    points = [Provider(p.module, point=p) for p in entry_points(group=GROUP) if provenance_of(p) in origins]
    from_files = [Provider(module_name(f), file=f) for f in files if file_provenance(f) in origins]
    return Target(words, (*points, *from_files), only=words)


def _installed(words: str, registry: Registry, files: tuple[Path, ...]) -> Target | None:
    """An entry point, or a distribution with entry points."""
    points = [
        Provider(p.module, point=p)
        for p in entry_points(group=GROUP)
        if words in (p.name, p.module) or _normal(provenance_of(p).distribution) == _normal(words)
    ]
    return Target(words, tuple(points)) if points else None


def _distribution(words: str, registry: Registry, files: tuple[Path, ...]) -> Target | None:
    """A distribution that capbench does not see: the entry points it has say why."""
    try:
        found = distribution(words)
    except (PackageNotFoundError, ValueError):
        return None
    groups = {point.group for point in found.entry_points}
    seen = f"entry points in {', '.join(sorted(groups))}" if groups else "no entry points"
    problem = Violation(
        f"an entry point of {words} in group 'capbench'",
        seen,
        f"add to pyproject.toml: [project.entry-points.capbench] {_example(found.entry_points, words)}; then reinstall",
    )
    return Target(words, (), problem=problem)


def _module(words: str, registry: Registry, files: tuple[Path, ...]) -> Target | None:
    try:
        spec = importlib.util.find_spec(words)
    except (ImportError, ValueError):
        return None
    return Target(words, (Provider(words),)) if spec is not None else None


def _example(points: object, words: str) -> str:
    known = [point for point in points if isinstance(point, EntryPoint)]  # type: ignore[attr-defined]
    name, value = (known[0].name, known[0].value) if known else (_normal(words), _normal(words))
    return f'{name} = "{value}"'


def _normal(name: str) -> str:
    """A distribution's name in the spelling that all its spellings share, as an identifier."""
    return re.sub(r"[-_.]+", "_", name).lower()
