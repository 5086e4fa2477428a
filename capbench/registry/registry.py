"""Discovery: which tasks, architectures, bounds and solvers are installed, and which plugins provide them."""

from __future__ import annotations

import inspect
import os
import re
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Generic, TypeVar

import pluggy

from capbench.contract import hookspecs
from capbench.contract.architecture import Architecture
from capbench.contract.bound import Bound
from capbench.contract.plugin import Plugin
from capbench.contract.solver import Solver
from capbench.contract.task import Task
from capbench.errors import BadPluginFile, BadSetting, PluginFailed, UnknownName
from capbench.registry.containment import Changes, LoadTimedOut, PluginWarning, contained, contained_calls
from capbench.registry.plugin_file import class_provenance, file_provenance, load_file
from capbench.registry.provenance import OWN_DISTRIBUTION, Provenance

GROUP = "capbench"
HOOKS: Mapping[str, type[Plugin]] = {
    "capbench_tasks": Task,
    "capbench_architectures": Architecture,
    "capbench_bounds": Bound,
    "capbench_solvers": Solver,
}
REQUIRED: Mapping[type[Plugin], tuple[str, ...]] = {
    Bound: ("kind", "statement", "formula", "citation", "pedigree"),
}
NAME = re.compile(r"[a-z][a-z0-9_.-]{0,63}")

P = TypeVar("P", bound=Plugin)


@dataclass(frozen=True)
class Provided(Generic[P]):
    """A plugin class and its provenance."""

    cls: type[P]
    provenance: Provenance


@dataclass(frozen=True)
class LoadFailure:
    """A plugin that could not be loaded, and why."""

    provenance: Provenance
    reason: str
    details: str = ""

    def __str__(self) -> str:
        return f"plugin {self.provenance.entry_point!r} of {self.provenance} was left out: {self.reason}"


@dataclass(frozen=True)
class PluginCall:
    """An import or a hook call made while plugins are loaded: what was called, what it returned, how long it took."""

    what: str
    provenance: Provenance
    seconds: float
    returned: str


Observer = Callable[[PluginCall], None]
"""Receives every call into a plugin."""


@dataclass
class Registry:
    """The plugins that were loaded, by name, and those that could not be."""

    tasks: dict[str, Provided[Task]] = field(default_factory=dict)
    architectures: dict[str, Provided[Architecture]] = field(default_factory=dict)
    bounds: dict[str, Provided[Bound]] = field(default_factory=dict)
    solvers: dict[str, Provided[Solver]] = field(default_factory=dict)
    loaded: list[Provenance] = field(default_factory=list)
    failures: list[LoadFailure] = field(default_factory=list)

    def task(self, name: str) -> Provided[Task]:
        """The task of that name; raises UnknownName."""
        return _named("task", name, self.tasks)

    def architecture(self, name: str) -> Provided[Architecture]:
        """The architecture of that name; raises UnknownName."""
        return _named("architecture", name, self.architectures)

    def solver(self, name: str) -> Provided[Solver]:
        """The solver of that name; raises UnknownName."""
        return _named("solver", name, self.solvers)

    def add_class(self, hook: str, cls: type[Plugin]) -> None:
        """Adds a class that no plugin provides, such as one of a notebook's cell; refuses a name that is taken."""
        name = getattr(cls, "name", None)
        if not isinstance(name, str):
            raise BadSetting(f"{cls.__name__} needs a name; add: name: ClassVar[str] = 'my_name'")
        taken = self._by_hook()[hook].get(name)
        if taken is not None and taken.cls is cls:
            return
        if taken is not None:
            raise BadSetting(
                f"{name!r} is the name of another plugin of {taken.provenance.distribution}; choose another"
            )
        origin = class_provenance(cls)
        self.add(hook, cls, origin)
        if origin not in self.loaded:
            self.loaded.append(origin)

    def fact_of(self, task: str) -> str:
        """What a task calls a fact, where it is installed."""
        return self.tasks[task].cls.fact if task in self.tasks else "fact"

    def find(self, name: str) -> list[Provided[Any]]:
        """The plugins of that name, of any kind; raises UnknownName."""
        found = [plugins[name] for plugins in self._by_hook().values() if name in plugins]
        if not found:
            known = [known for plugins in self._by_hook().values() for known in plugins]
            raise UnknownName.among("plugin", name, known, "capbench list")
        return found

    def add(self, hook: str, cls: type[Plugin], provenance: Provenance) -> None:
        """Adds a class under its name."""
        self._by_hook()[hook][cls.name] = Provided(cls, provenance)

    def check_name_is_free(self, hook: str, cls: type[Plugin], provenance: Provenance) -> None:
        """Raises ValueError where another plugin has the name already."""
        taken = self._by_hook()[hook].get(cls.name)
        if taken is not None:
            raise ValueError(
                f"{HOOKS[hook].__name__.lower()} {cls.name!r} is provided by {taken.provenance.distribution} already; "
                f"{provenance.distribution} must choose another name"
            )

    def restrict_to(self, distributions: Collection[str]) -> Registry:
        """A registry of what these distributions provide, as if nothing else were installed."""
        kept = Registry(loaded=[origin for origin in self.loaded if origin.distribution in distributions])
        for hook, plugins in self._by_hook().items():
            for provided in plugins.values():
                if provided.provenance.distribution in distributions:
                    kept.add(hook, provided.cls, provided.provenance)
        return kept

    def bound_calls(self) -> AbstractContextManager[None]:
        """A scope for evaluating bounds: what they change of the process is put back, with a warning."""
        return contained_calls(provided.provenance for provided in self.bounds.values())

    def of_hook(self, hook: str) -> Mapping[str, Provided[Any]]:
        """The plugins that a hook provides, by name."""
        return self._by_hook()[hook]

    def _by_hook(self) -> dict[str, dict[str, Provided[Any]]]:
        return {
            "capbench_tasks": self.tasks,
            "capbench_architectures": self.architectures,
            "capbench_bounds": self.bounds,
            "capbench_solvers": self.solvers,
        }


def load_registry(*, strict: bool = False, files: Sequence[Path] = (), observer: Observer | None = None) -> Registry:
    """Loads every installed plugin, then the given files.

    An installed one that fails costs a warning, or raises if `strict`; a file was named by the user and must load.
    """
    registry = Registry()
    for point in _selected(_sorted(entry_points(group=GROUP))):
        failure = _load(provenance_of(point), point.load, registry, observer)
        if failure is None:
            continue
        if strict:
            raise PluginFailed(str(failure))
        registry.failures.append(failure)
        warnings.warn(str(failure), PluginWarning, stacklevel=2)
    for path in files:
        failure = _load(file_provenance(path), partial(load_file, path), registry, observer)
        if failure is not None:
            raise BadPluginFile(f"the plugin file {str(path)!r} cannot be used: {failure.reason}")
    return registry


def _sorted(points: Iterable[EntryPoint]) -> list[EntryPoint]:
    """capbench's own first, so that no plugin can take a built-in's name; then by distribution."""
    return sorted(
        points, key=lambda p: (provenance_of(p).distribution != OWN_DISTRIBUTION, provenance_of(p).distribution, p.name)
    )


def _selected(points: list[EntryPoint]) -> list[EntryPoint]:
    """The entry points that CAPBENCH_PLUGINS names, by entry point or by distribution; all where it is not set."""
    wanted = os.environ.get("CAPBENCH_PLUGINS")
    if wanted is None:
        return points
    names = [name.strip() for name in wanted.split(",") if name.strip()]
    known = {p.name for p in points} | {provenance_of(p).distribution for p in points}
    for name in names:
        if name not in known:
            raise UnknownName.among("plugin", name, known, "CAPBENCH_PLUGINS names entry points or distributions")
    return [p for p in points if p.name in names or provenance_of(p).distribution in names]


def provenance_of(point: EntryPoint) -> Provenance:
    """The provenance of an entry point."""
    distribution = point.dist
    name, version = (distribution.name, distribution.version) if distribution else ("unknown", "?")
    return Provenance(point.name, name, version, point.value)


def _load(
    provenance: Provenance, load: Callable[[], object], registry: Registry, observer: Observer | None
) -> LoadFailure | None:
    """Imports one plugin and adds its classes, all or none; returns what went wrong."""
    # capbench's own are trusted, and load faster without.
    scope: AbstractContextManager[Changes] = (
        nullcontext(Changes()) if provenance.distribution == OWN_DISTRIBUTION else contained()
    )
    try:
        with scope as changes:
            with _observed(f"import {provenance.module}", provenance, observer) as returned:
                plugin = load()
                returned.append(getattr(plugin, "__name__", type(plugin).__name__))
            offers = collect(plugin, provenance, observer)
        if changes.settings:
            changed = ", ".join(changes.settings)
            warnings.warn(
                f"plugin {provenance.entry_point!r} of {provenance} changed {changed} while it was loaded; that was "
                "undone, because it would change the results of other plugins",
                PluginWarning,
                stacklevel=3,
            )
        for hook, cls in offers:
            registry.check_name_is_free(hook, cls, provenance)
    except BadPluginFile:
        raise
    except (Exception, SystemExit, LoadTimedOut) as error:  # noqa: BLE001 - the plugin border
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        return LoadFailure(provenance, reason, traceback.format_exc())
    for hook, cls in offers:
        registry.add(hook, cls, provenance)
    registry.loaded.append(provenance)
    return None


def collect(
    plugin: object, provenance: Provenance | None = None, observer: Observer | None = None
) -> list[tuple[str, type[Plugin]]]:
    """The (hook, class) pairs that one plugin object offers, checked."""
    manager = pluggy.PluginManager("capbench")
    manager.add_hookspecs(hookspecs)
    manager.register(plugin)
    manager.check_pending()
    offers: list[tuple[str, type[Plugin]]] = []
    for caller in manager.get_hookcallers(plugin) or []:
        with _observed(caller.name, provenance, observer) as returned:
            own = [(caller.name, _checked(caller.name, cls)) for batch in caller() for cls in batch]
            returned.extend(cls.__name__ for _, cls in own)
        offers.extend(own)
    if not offers:
        raise ValueError(f"it implements none of the hooks {', '.join(HOOKS)}")
    twice = [f"{hook}: {name}" for (hook, name), n in Counter((h, c.name) for h, c in offers).items() if n > 1]
    if twice:
        raise ValueError(f"it offers the same name twice ({', '.join(twice)})")
    return offers


@contextmanager
def _observed(what: str, provenance: Provenance | None, observer: Observer | None) -> Iterator[list[str]]:
    """Reports a call to the observer, whether it returns or raises; the caller appends what was returned."""
    returned: list[str] = []
    started = time.perf_counter()
    try:
        yield returned
    except (Exception, SystemExit, LoadTimedOut) as error:
        returned = [f"{type(error).__name__}: {error}"]
        raise
    finally:
        if observer is not None and provenance is not None:
            observer(PluginCall(what, provenance, time.perf_counter() - started, ", ".join(returned)))


def _checked(hook: str, cls: object) -> type[Plugin]:
    """The class, if it is of its hook's kind, has a valid name and is not abstract; raises otherwise."""
    kind = HOOKS[hook]
    if not (isinstance(cls, type) and issubclass(cls, kind)):
        raise TypeError(f"{hook} must return subclasses of capbench.{kind.__name__}, got {cls!r}")
    missing = [a for a in ("name", *REQUIRED.get(kind, ())) if not hasattr(cls, a)]
    if missing or inspect.isabstract(cls):
        lacking = ", ".join([*missing, *sorted(getattr(cls, "__abstractmethods__", ()))])
        raise TypeError(f"{cls.__name__} does not define {lacking}")
    if not NAME.fullmatch(cls.name):
        raise ValueError(f"the name {cls.name!r} must be lower-case letters, digits, '_', '-' or '.', 64 at most")
    return cls


def _named(kind: str, name: str, plugins: Mapping[str, Provided[P]]) -> Provided[P]:
    if name not in plugins:
        raise UnknownName.among(kind, name, plugins, "capbench list")
    return plugins[name]
