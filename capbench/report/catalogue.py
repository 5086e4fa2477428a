"""Installed plugins, as data and as text: the list, the description of one, and who provides what."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Iterable
from typing import Any

from pydantic import JsonValue

from capbench.contract.architecture import Architecture
from capbench.contract.bound import Bound
from capbench.contract.plugin import Plugin
from capbench.contract.solver import Solver
from capbench.contract.task import Task
from capbench.documents.result import Record
from capbench.documents.text import fold, plain, table
from capbench.errors import CapbenchError
from capbench.measure.matching import count_parameters
from capbench.registry.provenance import Provenance, code_hash
from capbench.registry.registry import HOOKS, Provided, Registry

KIND_MEANINGS = {
    "lower": "weights exist that hold this much",
    "upper": "impossible beyond",
    "law": "order of growth, constant unknown",
    "exact": "half of the trials hold exactly this much",
}
OTHER = Architecture.family
"""The family of architectures that name none; listed last."""
LIMIT_SIGNS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
"""JSON schema limits of a field as shown to users."""


class CatalogueEntry(Record):
    """One plugin in the list."""

    name: str
    kind: str
    summary: str
    version: int
    provided_by: str
    family: str | None = None
    """The group of an architecture; None for other kinds of plugin."""


class PairFit(Record):
    """Whether a task and an architecture fit at their default sizes, and if not, why."""

    task: str
    architecture: str
    fits: bool
    reason: str | None = None


class Catalogue(Record):
    """All plugins that can be named on the command line, and which pairs fit."""

    tasks: tuple[CatalogueEntry, ...]
    architectures: tuple[CatalogueEntry, ...]
    bounds: tuple[CatalogueEntry, ...]
    solvers: tuple[CatalogueEntry, ...]
    pairs: tuple[PairFit, ...]


class FieldDescription(Record):
    """One field that --set can change."""

    name: str
    type: str
    default: JsonValue
    description: str


class Description(Record):
    """One plugin in full."""

    entry: CatalogueEntry
    about: dict[str, str]
    """Further labels and texts by kind: the criterion of a task, the statement and source of a bound."""
    fields: tuple[FieldDescription, ...]
    presets: dict[str, dict[str, JsonValue]]
    code_hash: str


class InstalledEntry(Record):
    """One entry point, with what it provides or why it failed."""

    entry_point: str
    distribution: str
    version: str
    module: str
    provides: tuple[str, ...] = ()
    error: str | None = None
    traceback: str | None = None


class InstalledPlugins(Record):
    """All entry points, loaded and failed."""

    plugins: tuple[InstalledEntry, ...]
    failed: tuple[InstalledEntry, ...]


def build_catalogue(registry: Registry) -> Catalogue:
    """Every plugin with its summary, and every pair with whether it fits."""
    return Catalogue(
        tasks=_entries(registry.tasks.values()),
        architectures=_entries(registry.architectures.values()),
        bounds=_entries(registry.bounds.values()),
        solvers=_entries(registry.solvers.values()),
        pairs=tuple(_fit(t, a) for t in registry.tasks.values() for a in registry.architectures.values()),
    )


def catalogue_text(found: Catalogue, width: int | None = None) -> str:
    """One table per kind of plugin, architectures by family, and which pairs fit, wrapped at a width."""
    kinds = (found.tasks, found.architectures, found.bounds, found.solvers)
    origins = Counter(entry.provided_by for entries in kinds for entry in entries)
    usual = max(origins, key=lambda origin: origins[origin], default="")
    architectures = [(family, e.name, _summary(e, usual)) for family, e in _by_family(found.architectures)]
    return "\n\n".join(
        [
            _entries_table("tasks", found.tasks, usual, width),
            table(architectures, ("family", "architectures", ""), width),
            _entries_table("bounds", found.bounds, usual, width),
            _entries_table("solvers", found.solvers, usual, width),
            table(_fits(found), ("tasks", "fit architectures"), width),
            plain(f"all from {usual} unless said otherwise"),
            "next:\n  capbench describe NAME   # the fields of one plugin",
        ]
    )


def _entries_table(kind: str, entries: Iterable[CatalogueEntry], usual: str, width: int | None) -> str:
    return table([(e.name, _summary(e, usual)) for e in entries], (kind, ""), width)


def _summary(entry: CatalogueEntry, usual: str) -> str:
    """What a plugin is, and who provides it where others provide most."""
    return entry.summary if entry.provided_by == usual else f"{entry.summary} (from {entry.provided_by})".lstrip()


def _fits(found: Catalogue) -> list[tuple[str, str]]:
    """The architectures that fit the same tasks, those with the most tasks first."""
    fitting: dict[tuple[str, ...], list[str]] = {}
    for _, architecture in _by_family(found.architectures):
        tasks = tuple(p.task for p in found.pairs if p.architecture == architecture.name and p.fits)
        fitting.setdefault(tasks, []).append(architecture.name)
    rows = sorted(fitting.items(), key=lambda row: -len(row[0]))
    return [(fold(", ".join(tasks) or "none, at default sizes", 24), ", ".join(names)) for tasks, names in rows]


def _by_family(entries: Iterable[CatalogueEntry]) -> list[tuple[str, CatalogueEntry]]:
    """The architectures in the order of their families, each family named at its first one."""
    ordered = sorted(entries, key=lambda entry: (entry.family == OTHER, entry.family or "", entry.name))
    firsts = {entry.family: entry.name for entry in reversed(ordered)}
    return [(entry.family or "" if firsts[entry.family] == entry.name else "", entry) for entry in ordered]


def describe(provided: Provided[Any]) -> Description:
    """One plugin with its fields, presets and the facts of its kind."""
    cls: type[Plugin] = provided.cls
    return Description(
        entry=_entry(provided),
        about=_about(cls),
        fields=tuple(_field(name, cls) for name in cls.model_fields),
        presets={name: dict(values) for name, values in cls.presets.items()},
        code_hash=code_hash(cls),
    )


def description_text(found: Description, width: int | None = None) -> str:
    """The description of one plugin as text, wrapped at a width."""
    entry = found.entry
    lines = [
        plain(f"{entry.name} · {entry.kind}, version {entry.version}, from {entry.provided_by}"),
        plain(entry.summary),
    ]
    lines += [plain(f"{label}: {text}") for label, text in found.about.items()]
    parts = ["\n".join(fold(line, width) if width else line for line in lines)]
    if found.fields:
        rows = [(f.name, f.default, f.type, f.description) for f in found.fields]
        parts.append(table(rows, ("field", "default", "type", "meaning"), width))
        section = {"architecture": "arch"}.get(entry.kind, entry.kind)
        if section in ("task", "arch", "solver"):
            parts.append(plain(f"to change a field: --set {section}.{found.fields[0].name}=VALUE"))
    if found.presets:
        parts.append(
            "\n".join(
                plain(f"under --preset {n}: {', '.join(f'{k}={v}' for k, v in vs.items())}")
                for n, vs in found.presets.items()
            )
        )
    return "\n\n".join(parts)


def list_installed(registry: Registry) -> InstalledPlugins:
    """All entry points, with what each provides or why it failed."""
    by_kind = (registry.tasks, registry.architectures, registry.bounds, registry.solvers)
    return InstalledPlugins(
        plugins=tuple(
            _installed(p, provides=tuple(n for plugins in by_kind for n, q in plugins.items() if q.provenance == p))
            for p in registry.loaded
        ),
        failed=tuple(_installed(f.provenance, error=f.reason, traceback=f.details) for f in registry.failures),
    )


def installed_text(found: InstalledPlugins, with_traceback: bool, width: int | None = None) -> str:
    """Loaded and failed entry points as tables, within a width if one is given."""
    rows = [(p.entry_point, f"{p.distribution} {p.version}", ", ".join(p.provides)) for p in found.plugins]
    parts = [table(rows, ("plugin", "distribution", "provides"), width)]
    if found.failed:
        failed = [(p.entry_point, f"{p.distribution} {p.version}", p.module, p.error) for p in found.failed]
        parts.append(table(failed, ("failed", "distribution", "module", "why"), width))
        if with_traceback:
            parts += [plain(p.traceback or "") for p in found.failed]
        else:
            parts.append("next:\n  capbench plugins --traceback   # where each failed")
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


def _entries(plugins: Iterable[Provided[Any]]) -> tuple[CatalogueEntry, ...]:
    return tuple(_entry(provided) for provided in plugins)


def _entry(provided: Provided[Any]) -> CatalogueEntry:
    cls = provided.cls
    kind = next(base.__name__.lower() for base in HOOKS.values() if issubclass(cls, base))
    summary = (inspect.getdoc(cls) or "").partition("\n")[0] if "__doc__" in vars(cls) else ""
    origin = f"{provided.provenance.distribution} {provided.provenance.version}"
    family = cls.family if issubclass(cls, Architecture) else None
    return CatalogueEntry(
        name=cls.name, kind=kind, summary=summary, version=cls.version, provided_by=origin, family=family
    )


def _fit(task: Provided[Any], architecture: Provided[Any]) -> PairFit:
    """Checks the pair at its default sizes, without allocating memory."""
    names = {"task": task.cls.name, "architecture": architecture.cls.name}
    try:
        count_parameters(task.cls(), architecture.cls())
    except CapbenchError as error:
        return PairFit(**names, fits=False, reason=str(error))
    except Exception as error:  # noqa: BLE001 - plugin code may raise anything: such a pair does not fit
        return PairFit(**names, fits=False, reason=f"{type(error).__name__}: {error}")
    return PairFit(**names, fits=True)


def _about(cls: type[Plugin]) -> dict[str, str]:
    if issubclass(cls, Bound):
        return {
            "statement": cls.statement,
            "formula": cls.formula,
            "kind": f"{cls.kind.value} ({KIND_MEANINGS[cls.kind.value]})",
            "source": f"{cls.citation} [{cls.pedigree.value}]",
        }
    if issubclass(cls, Solver):
        return {"precision": f"{cls.dtype}, unless --dtype is given", **_details(cls)}
    if issubclass(cls, Task):
        task = cls()
        rates = ", ".join(f"{rate:g}" for rate in task.recipe.learning_rates)
        return {
            "fact": f"one {task.fact}; up to {task.max_load} at the default sizes",
            "held when": str(task.criterion),
            "trained for": f"up to {task.recipe.steps} steps, at learning rates {rates}",
            **_details(cls),
        }
    return _details(cls)


def _details(cls: type[Plugin]) -> dict[str, str]:
    """The docstring after its first line."""
    rest = " ".join((inspect.getdoc(cls) or "").partition("\n")[2].split()) if "__doc__" in vars(cls) else ""
    return {"more": rest} if rest else {}


def _field(name: str, cls: type[Plugin]) -> FieldDescription:
    info = cls.model_fields[name]
    schema = cls.model_json_schema()["properties"][name]
    kind = "|".join(schema["enum"]) if "enum" in schema else schema.get("type", "any")
    limits = [f"{sign}{schema[key]}" for key, sign in LIMIT_SIGNS.items() if key in schema]
    return FieldDescription(
        name=name,
        type=" ".join([kind, *limits]),
        default=schema.get("default"),
        description=info.description or "",
    )
