"""Providers: the module behind a plugin, however it was named, and the rules of being imported and found."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType

from capbench.conformance.import_probe import ImportReport, probe_import
from capbench.conformance.outcome import Check, DoesNotApply, Violation, brief
from capbench.plugin import Plugin
from capbench.plugin_file import file_provenance, load_file
from capbench.provenance import Provenance
from capbench.registry import HOOKS, Registry, collect, provenance_of

SLOW_IMPORT = 2.0
"""Seconds that a plugin's import may take beyond torch, scipy and capbench."""


@dataclass(frozen=True)
class Provider:
    """A module that offers plugins: a file, an installed entry point, or a module that is merely importable."""

    module: str
    file: Path | None = None
    point: EntryPoint | None = None

    @property
    def provenance(self) -> Provenance:
        """Who it is, in the registry's terms."""
        if self.file is not None:
            return file_provenance(self.file)
        if self.point is not None:
            return provenance_of(self.point)
        return Provenance(self.module, "not installed", "?", self.module)

    @cached_property
    def probe(self) -> ImportReport:
        """What importing it does, found out once."""
        return probe_import(str(self.file) if self.file else self.module)

    def is_found(self) -> bool:
        """Whether there is such a module at all."""
        try:
            return self.file is not None or importlib.util.find_spec(self.module) is not None
        except (ImportError, ValueError):
            return False

    @cached_property
    def plugin(self) -> object:
        """The plugin object, imported into this process once."""
        if self.file is not None:
            return load_file(self.file)
        return self.point.load() if self.point else importlib.import_module(self.module)

    def offers(self) -> list[tuple[str, type[Plugin]]]:
        """The classes it offers by hook; none where loading fails, which the checks below explain."""
        try:
            return collect(self.plugin)
        except (Exception, SystemExit):  # noqa: BLE001 - the plugin border
            return []


@dataclass(frozen=True)
class Candidate:
    """A provider and the registry that it wants to join."""

    provider: Provider
    registry: Registry


def entry_point(candidate: Candidate) -> str | None:
    """The entry point in group `capbench` names a module that is there, and an object in it if it names one."""
    provider, point = candidate.provider, candidate.provider.point
    if point is None:
        raise DoesNotApply("not installed; [project.entry-points.capbench] makes it known once it is")
    line = f'{point.name} = "{point.value}"'
    fix = f"in [project.entry-points.capbench] of pyproject.toml, name the module as it is imported: {line} is wrong"
    if not provider.is_found():
        raise Violation(f"{line} to name an importable module", f"no module {point.module!r}", f"{fix}; reinstall")
    if point.attr and not candidate.provider.probe.error:
        try:
            point.load()
        except AttributeError as error:
            raise Violation(f"{line} to name an object of the module", brief(error), f"{fix}; reinstall") from error
    return line


def importable(candidate: Candidate) -> None:
    """The module can be imported."""
    _need_module(candidate)
    error = candidate.provider.probe.error
    if error:
        raise Violation(
            f"{candidate.provider.module} to be imported without an error",
            error,
            "do nothing at import that can fail: move work into methods, and declare what must be installed",
        )


def imported_quickly(candidate: Candidate) -> str:
    """The import takes no longer than two seconds beyond torch: every command pays for it."""
    _need_import(candidate)
    seconds = candidate.provider.probe.seconds
    if seconds > SLOW_IMPORT:
        raise Violation(
            f"at most {SLOW_IMPORT:g} s beyond torch",
            f"{seconds:.1f} s",
            "do no work at import: load data and import heavy packages inside the method that needs them",
        )
    return f"{seconds:.2f} s"


def imported_quietly(candidate: Candidate) -> None:
    """The import prints nothing: stdout belongs to the answer."""
    _need_import(candidate)
    printed = candidate.provider.probe.printed
    if printed:
        raise Violation("no output", f"it prints {printed[:60]!r}", "remove the print, or use the logging module")


def imported_without_side_effects(candidate: Candidate) -> None:
    """The import neither seeds nor draws random numbers and leaves torch's defaults alone."""
    _need_import(candidate)
    changes = candidate.provider.probe.changes
    if changes:
        raise Violation(
            "no change of state that all plugins share",
            "; ".join(changes),
            "remove the seed: tasks draw from the generator they are given, modules are built in a seeded scope",
        )


def hooks(candidate: Candidate) -> str:
    """At least one hook is implemented, under its exact name, and returns complete classes."""
    _need_import(candidate)
    plugin = candidate.provider.plugin
    try:
        offers = collect(plugin)
    except Exception as error:
        raise Violation(f"one of the hooks {', '.join(HOOKS)}", brief(error), _hook_fix(plugin, error)) from error
    return ", ".join(f"{hook}: {cls.__name__}" for hook, cls in offers)


def names(candidate: Candidate) -> None:
    """No other plugin of the kind has the same name."""
    _need_import(candidate)
    own = candidate.provider.provenance
    for hook, cls in candidate.provider.offers():
        taken = candidate.registry.shelf(hook).get(cls.name)
        if taken is not None and taken.provenance != own and taken.provenance.module != own.module:
            raise Violation(
                f"a name of its own for {cls.__name__}",
                f"{HOOKS[hook].__name__.lower()} {cls.name!r} is provided by {taken.provenance} already",
                f"choose another name: in class {cls.__name__}, change name = {cls.name!r}",
            )


CHECKS: tuple[Check[Candidate], ...] = (
    entry_point,
    importable,
    imported_quickly,
    imported_quietly,
    imported_without_side_effects,
    hooks,
    names,
)


def _need_module(candidate: Candidate) -> None:
    if not candidate.provider.is_found():
        raise DoesNotApply("there is no such module")


def _need_import(candidate: Candidate) -> None:
    _need_module(candidate)
    if candidate.provider.probe.error:
        raise DoesNotApply("it cannot be imported")


def _hook_fix(plugin: object, error: Exception) -> str:
    """The hook that is missing or misspelt, written out; else the message says what to change."""
    misspelt = [name for name in vars(plugin) if name.startswith("capbench_") and name not in HOOKS]
    for name in misspelt:
        near = difflib.get_close_matches(name, HOOKS, n=1)
        return f"rename {name} to {near[0] if near else ' or '.join(HOOKS)}"
    if "none of the hooks" not in str(error) or not isinstance(plugin, ModuleType):
        return "make the hook return a list of complete classes, as the message says"
    for cls in vars(plugin).values():
        if inspect.isclass(cls) and issubclass(cls, Plugin) and cls.__module__ == plugin.__name__:
            hook = next((hook for hook, kind in HOOKS.items() if issubclass(cls, kind)), "capbench_architectures")
            return f"add: from capbench import hookimpl; @hookimpl def {hook}(): return [{cls.__name__}]"
    return "derive a class from capbench.Architecture, Task, Bound or Solver, and return it from a hook"
