"""Providers: the modules that offer plugins, and the rules for importing and finding them."""

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

from capbench.conformance.check import Check, DoesNotApply, Violation, summarize_error
from capbench.conformance.side_effects import ImportReport, probe_import
from capbench.contract.plugin import Plugin
from capbench.registry.plugin_file import file_provenance, load_file
from capbench.registry.provenance import Provenance
from capbench.registry.registry import HOOKS, Registry, collect, provenance_of

SLOW_IMPORT = 2.0
"""Seconds that a plugin's import may take beyond torch, scipy and capbench."""


@dataclass(frozen=True)
class Provider:
    """A module that offers plugins: a file, an installed entry point, or any importable module."""

    module: str
    file: Path | None = None
    point: EntryPoint | None = None

    @property
    def provenance(self) -> Provenance:
        """Its provenance, as the registry records it."""
        if self.file is not None:
            return file_provenance(self.file)
        if self.point is not None:
            return provenance_of(self.point)
        return Provenance(self.module, "not installed", "?", self.module)

    @cached_property
    def import_report(self) -> ImportReport:
        """What importing it in a fresh process does."""
        return probe_import(str(self.file) if self.file else self.module)

    def exists(self) -> bool:
        """Whether the module can be found."""
        try:
            return self.file is not None or importlib.util.find_spec(self.module) is not None
        except (ImportError, ValueError):
            return False

    @cached_property
    def plugin(self) -> object:
        """The plugin object, imported into this process."""
        if self.file is not None:
            return load_file(self.file)
        return self.point.load() if self.point else importlib.import_module(self.module)

    def offers(self) -> list[tuple[str, type[Plugin]]]:
        """The (hook, class) pairs that it offers; none if loading fails, which the checks below explain."""
        try:
            return collect(self.plugin)
        except (Exception, SystemExit):  # noqa: BLE001 - the plugin border
            return []


@dataclass(frozen=True)
class Candidate:
    """A provider and the registry that it is to join."""

    provider: Provider
    registry: Registry


def entry_point(candidate: Candidate) -> str | None:
    """The entry point in group `capbench` names an existing module and, if it names an object, one that is in it."""
    provider, point = candidate.provider, candidate.provider.point
    if point is None:
        raise DoesNotApply("not installed; once it is, [project.entry-points.capbench] makes it known to capbench")
    line = f'{point.name} = "{point.value}"'
    fix = f"in [project.entry-points.capbench] of pyproject.toml, name the module as it is imported: {line} is wrong"
    if not provider.exists():
        raise Violation(f"{line} to name an importable module", f"no module {point.module!r}", f"{fix}; reinstall")
    if point.attr and not provider.import_report.error:
        try:
            point.load()
        except AttributeError as error:
            raise Violation(
                f"{line} to name an object of the module", summarize_error(error), f"{fix}; reinstall"
            ) from error
    return line


def importable(candidate: Candidate) -> None:
    """The module can be imported."""
    _need_module(candidate)
    error = candidate.provider.import_report.error
    if error:
        raise Violation(
            f"{candidate.provider.module} to be imported without an error",
            error,
            "do nothing at import that can fail: move work into methods, and declare the packages that it depends on",
        )


def imported_quickly(candidate: Candidate) -> str:
    """The import takes at most two seconds in addition to torch: every command waits for it."""
    _need_import(candidate)
    seconds = candidate.provider.import_report.seconds
    if seconds > SLOW_IMPORT:
        raise Violation(
            f"at most {SLOW_IMPORT:g} s in addition to torch",
            f"{seconds:.1f} s",
            "do no work at import: load data and import heavy packages inside the method that needs them",
        )
    return f"{seconds:.2f} s"


def imported_quietly(candidate: Candidate) -> None:
    """The import prints nothing: stdout is reserved for capbench's output."""
    _need_import(candidate)
    printed = candidate.provider.import_report.printed
    if printed:
        raise Violation("no output", f"it prints {printed[:60]!r}", "remove the print, or use the logging module")


def imported_without_side_effects(candidate: Candidate) -> None:
    """The import neither seeds nor draws random numbers and does not change torch's defaults."""
    _need_import(candidate)
    changes = candidate.provider.import_report.changes
    if changes:
        raise Violation(
            "no change to state that all plugins share",
            "; ".join(changes),
            "remove the seed: tasks draw from the generator passed to them, and modules are built in a seeded scope",
        )


def hooks(candidate: Candidate) -> str:
    """At least one hook is implemented, under its exact name, and returns complete classes."""
    _need_import(candidate)
    plugin = candidate.provider.plugin
    try:
        offers = collect(plugin)
    except Exception as error:
        raise Violation(
            f"one of the hooks {', '.join(HOOKS)}", summarize_error(error), _hook_fix(plugin, error)
        ) from error
    return ", ".join(f"{hook}: {cls.__name__}" for hook, cls in offers)


def names(candidate: Candidate) -> None:
    """No other plugin of the same kind has the same name."""
    _need_import(candidate)
    own = candidate.provider.provenance
    for hook, cls in candidate.provider.offers():
        taken = candidate.registry.of_hook(hook).get(cls.name)
        if taken is not None and taken.provenance != own and taken.provenance.module != own.module:
            raise Violation(
                f"a unique name for {cls.__name__}",
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
    if not candidate.provider.exists():
        raise DoesNotApply("there is no such module")


def _need_import(candidate: Candidate) -> None:
    _need_module(candidate)
    if candidate.provider.import_report.error:
        raise DoesNotApply("it cannot be imported")


def _hook_fix(plugin: object, error: Exception) -> str:
    """The code of the missing hook or the right spelling of a misspelt one; otherwise a pointer to the error."""
    misspelt = [name for name in vars(plugin) if name.startswith("capbench_") and name not in HOOKS]
    for name in misspelt:
        near = difflib.get_close_matches(name, HOOKS, n=1)
        return f"rename {name} to {near[0] if near else ' or '.join(HOOKS)}"
    if "none of the hooks" not in str(error) or not isinstance(plugin, ModuleType):
        return "make the hook return a list of complete classes, as the error says"
    for cls in vars(plugin).values():
        if inspect.isclass(cls) and issubclass(cls, Plugin) and cls.__module__ == plugin.__name__:
            hook = next((hook for hook, kind in HOOKS.items() if issubclass(cls, kind)), "capbench_architectures")
            return f"add: from capbench import hookimpl; @hookimpl def {hook}(): return [{cls.__name__}]"
    return "derive a class from capbench.Architecture, Task, Bound or Solver, and return it from a hook"
