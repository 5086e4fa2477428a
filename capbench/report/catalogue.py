"""What is installed, as data and as text: the list, one plugin's description, and who provides what."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any

from pydantic import JsonValue

from capbench.bound import Bound
from capbench.errors import CapbenchError
from capbench.plugin import Plugin
from capbench.provenance import Provenance, code_hash
from capbench.registry import HOOKS, Provided, Registry
from capbench.report.text import plain, table
from capbench.request import check_pair
from capbench.results import Record
from capbench.solver import Solver
from capbench.task import Task


class Entry(Record):
    """A plugin in the list."""

    name: str
    kind: str
    summary: str
    version: int
    provided_by: str


class Fit(Record):
    """Whether a pair fits at its default sizes, and if not, why."""

    task: str
    architecture: str
    fits: bool
    reason: str | None = None


class Catalogue(Record):
    """All that can be named on the command line."""

    tasks: tuple[Entry, ...]
    architectures: tuple[Entry, ...]
    bounds: tuple[Entry, ...]
    solvers: tuple[Entry, ...]
    pairs: tuple[Fit, ...]


class FieldDescription(Record):
    """A field that --set can change."""

    name: str
    type: str
    default: JsonValue
    description: str


class Description(Record):
    """One plugin in full."""

    entry: Entry
    about: dict[str, str]
    """What else its kind has to say: a task's criterion, a bound's statement and source."""
    fields: tuple[FieldDescription, ...]
    presets: dict[str, dict[str, JsonValue]]
    code_hash: str


class InstalledEntry(Record):
    """An entry point that was found."""

    entry_point: str
    distribution: str
    version: str
    module: str
    provides: tuple[str, ...] = ()
    error: str | None = None
    traceback: str | None = None


class Installed(Record):
    """Everything found, loaded or not."""

    plugins: tuple[InstalledEntry, ...]
    failed: tuple[InstalledEntry, ...]


def catalogue(registry: Registry) -> Catalogue:
    """Every plugin with its summary, and the matrix of pairs."""
    return Catalogue(
        tasks=_entries(registry.tasks.values()),
        architectures=_entries(registry.architectures.values()),
        bounds=_entries(registry.bounds.values()),
        solvers=_entries(registry.solvers.values()),
        pairs=tuple(_fit(t, a) for t in registry.tasks.values() for a in registry.architectures.values()),
    )


def catalogue_text(found: Catalogue) -> str:
    """The list as tables."""
    shelves = {
        "tasks": found.tasks,
        "architectures": found.architectures,
        "bounds": found.bounds,
        "solvers": found.solvers,
    }
    parts = [
        table([(e.name, e.summary, e.provided_by) for e in shelf], (kind, "", "from"))
        for kind, shelf in shelves.items()
    ]
    names = [t.name for t in found.tasks]
    fits = {(p.task, p.architecture): p.fits for p in found.pairs}
    rows = [[a.name, *("yes" if fits[t, a.name] else "–" for t in names)] for a in found.architectures]
    return "\n\n".join([*parts, table(rows, ("fits", *names)), "capbench describe NAME explains one"])


def description(provided: Provided[Any]) -> Description:
    """A plugin's fields, and what its kind has to say."""
    cls: type[Plugin] = provided.cls
    return Description(
        entry=_entry(provided),
        about=_about(cls),
        fields=tuple(_field(name, cls) for name in cls.model_fields),
        presets={name: dict(values) for name, values in cls.presets.items()},
        code_hash=code_hash(cls),
    )


def description_text(found: Description) -> str:
    """One plugin for a person."""
    entry = found.entry
    lines = [
        plain(f"{entry.name} · {entry.kind}, version {entry.version}, from {entry.provided_by}"),
        plain(entry.summary),
    ]
    lines += [plain(f"{label}: {words}") for label, words in found.about.items()]
    parts = ["\n".join(lines)]
    if found.fields:
        rows = [(f.name, f.default, f.type, f.description) for f in found.fields]
        parts.append(table(rows, ("field", "default", "type", "meaning")))
        section = {"architecture": "arch"}.get(entry.kind, entry.kind)
        if section in ("task", "arch", "solver"):
            parts.append(plain(f"change one with --set {section}.{found.fields[0].name}=VALUE"))
    if found.presets:
        parts.append(
            "\n".join(
                plain(f"under --preset {n}: {', '.join(f'{k}={v}' for k, v in vs.items())}")
                for n, vs in found.presets.items()
            )
        )
    return "\n\n".join(parts)


def installed(registry: Registry) -> Installed:
    """Entry points, with what each provides or why it failed."""
    shelves = (registry.tasks, registry.architectures, registry.bounds, registry.solvers)
    return Installed(
        plugins=tuple(
            _installed(p, provides=tuple(n for shelf in shelves for n, q in shelf.items() if q.provenance == p))
            for p in registry.loaded
        ),
        failed=tuple(_installed(f.provenance, error=f.reason, traceback=f.details) for f in registry.failures),
    )


def installed_text(found: Installed, with_traceback: bool) -> str:
    """The same, as tables."""
    rows = [(p.entry_point, f"{p.distribution} {p.version}", p.module, ", ".join(p.provides)) for p in found.plugins]
    parts = [table(rows, ("plugin", "distribution", "module", "provides"))]
    if found.failed:
        failed = [(p.entry_point, f"{p.distribution} {p.version}", p.module, p.error) for p in found.failed]
        parts.append(table(failed, ("failed", "distribution", "module", "why")))
        if with_traceback:
            parts += [plain(p.traceback or "") for p in found.failed]
        else:
            parts.append("capbench plugins --traceback shows where")
    return "\n\n".join(parts)


def _installed(
    p: Provenance, provides: tuple[str, ...] = (), error: str | None = None, traceback: str | None = None
) -> InstalledEntry:
    return InstalledEntry(
        entry_point=p.entry_point,
        distribution=p.distribution,
        version=p.version,
        module=p.module,
        provides=provides,
        error=error,
        traceback=traceback,
    )


def _entries(shelf: Iterable[Provided[Any]]) -> tuple[Entry, ...]:
    return tuple(_entry(provided) for provided in shelf)


def _entry(provided: Provided[Any]) -> Entry:
    cls = provided.cls
    kind = next(base.__name__.lower() for base in HOOKS.values() if issubclass(cls, base))
    summary = (inspect.getdoc(cls) or "").partition("\n")[0] if "__doc__" in vars(cls) else ""
    origin = f"{provided.provenance.distribution} {provided.provenance.version}"
    return Entry(name=cls.name, kind=kind, summary=summary, version=cls.version, provided_by=origin)


def _fit(task: Provided[Any], architecture: Provided[Any]) -> Fit:
    """Tries the pair at default sizes, without memory behind it."""
    names = {"task": task.cls.name, "architecture": architecture.cls.name}
    try:
        check_pair(task.cls(), architecture.cls())
    except CapbenchError as error:
        return Fit(**names, fits=False, reason=str(error))
    except Exception as error:  # noqa: BLE001 - the plugin border: a pair that raises does not fit
        return Fit(**names, fits=False, reason=f"{type(error).__name__}: {error}")
    return Fit(**names, fits=True)


def _about(cls: type[Plugin]) -> dict[str, str]:
    if issubclass(cls, Bound):
        return {
            "statement": cls.statement,
            "formula": cls.formula,
            "kind": f"{cls.kind.value} ({_first_sentence(cls.kind)})",
            "source": f"{cls.citation} [{cls.pedigree.value}]",
        }
    if issubclass(cls, Solver):
        return {"precision": f"{cls.dtype}, unless --dtype says otherwise", **_details(cls)}
    if issubclass(cls, Task):
        task = cls()
        rates = ", ".join(f"{rate:g}" for rate in task.recipe.learning_rates)
        return {
            "a fact is": f"one {task.fact}; up to {task.max_load} at the default sizes",
            "held when": str(task.criterion),
            "trained for": f"{task.recipe.steps} steps at most, at learning rates {rates}",
            **_details(cls),
        }
    return _details(cls)


def _details(cls: type[Plugin]) -> dict[str, str]:
    """What the docstring says beyond its first line."""
    rest = " ".join((inspect.getdoc(cls) or "").partition("\n")[2].split()) if "__doc__" in vars(cls) else ""
    return {"more": rest} if rest else {}


def _first_sentence(kind: object) -> str:
    meanings = {
        "lower": "weights exist that hold this much",
        "upper": "impossible beyond",
        "law": "order of growth, constant unknown",
    }
    return meanings[str(kind)]


def _field(name: str, cls: type[Plugin]) -> FieldDescription:
    info = cls.model_fields[name]
    schema = cls.model_json_schema()["properties"][name]
    kind = "|".join(schema["enum"]) if "enum" in schema else schema.get("type", "any")
    limits = [f"{sign}{schema[key]}" for key, sign in LIMITS.items() if key in schema]
    return FieldDescription(
        name=name,
        type=" ".join([kind, *limits]),
        default=schema.get("default"),
        description=info.description or "",
    )


LIMITS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
