"""Whether published data were made with the code of today: engine, plugins, protocols and the sweeps of the recipe."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from capbench.documents.result import Result
from capbench.engine.trials import ENGINE_VERSION
from capbench.measure.presets import RecipePreset
from capbench.measure.protocols import PROTOCOLS, protocol_named
from capbench.registry.provenance import code_hash
from capbench.registry.registry import Registry
from capbench.studies.reproduce.data import Reproduction
from capbench.studies.reproduce.recipe import PaperRecipe, load_recipe, recipe_names

NOT_RECORDED = "the code that it was made with is not recorded"


def code_of(recipe: PaperRecipe, size: RecipePreset, results: Iterable[Result]) -> dict[str, str]:
    """Hashes of what decides the numbers of these runs beside the engine, by kind and name."""
    found = {f"protocol {name}": protocol_hash(name) for name in _protocols(recipe, size)}
    for result in results:
        plugins = (("task", result.task), ("architecture", result.architecture), ("solver", result.solver))
        found.update({f"{kind} {plugin.name}": plugin.code_hash for kind, plugin in plugins})
    return dict(sorted(found.items()))


def stale_reasons(data: Reproduction, registry: Registry) -> tuple[str, ...]:
    """What has changed since the data were made; empty where they are of today."""
    reasons = []
    if data.recipe.name in recipe_names() and load_recipe(data.recipe.name).sweeps != data.recipe.sweeps:
        reasons.append("its sweeps were changed since")
    engine = data.environment and data.environment.engine
    if engine != ENGINE_VERSION:
        reasons.append(f"made with engine {engine}, today's is {ENGINE_VERSION}")
    if not data.code:
        reasons.append(NOT_RECORDED)
    reasons += [
        f"the code of {name} was changed since" for name, was in data.code.items() if was != _now(name, registry)
    ]
    return tuple(reasons)


def protocol_hash(name: str) -> str:
    """A hash of all fields of a protocol that decide a number."""
    text = protocol_named(name).model_dump_json(exclude={"name", "meaning"})
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _protocols(recipe: PaperRecipe, size: RecipePreset) -> set[str]:
    return {sweep.at_size(size).protocol for sweep in recipe.sweeps}


def _now(name: str, registry: Registry) -> str:
    """Today's hash of a plugin or protocol; empty where it is not installed."""
    kind, _, plugin = name.partition(" ")
    if kind == "protocol":
        return protocol_hash(plugin) if plugin in PROTOCOLS else ""
    if kind == "task":
        return code_hash(registry.tasks[plugin].cls) if plugin in registry.tasks else ""
    if kind == "architecture":
        return code_hash(registry.architectures[plugin].cls) if plugin in registry.architectures else ""
    return code_hash(registry.solvers[plugin].cls) if plugin in registry.solvers else ""
