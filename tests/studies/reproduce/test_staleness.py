"""Data are stale where the engine, a plugin, a protocol or the recipe's sweeps have changed since they were made."""

from __future__ import annotations

import pytest

from capbench.engine.trials import ENGINE_VERSION
from capbench.measure.presets import RecipePreset
from capbench.registry.provenance import code_hash
from capbench.registry.registry import load_registry
from capbench.studies.reproduce.data import Reproduction
from capbench.studies.reproduce.recipe import load_recipe
from capbench.studies.reproduce.staleness import NOT_RECORDED, code_of, protocol_hash, stale_reasons
from tests.leaderboard.synthetic import SyntheticRecord

RECIPE = load_recipe("dana2025-small")
REGISTRY = load_registry()
TODAY = {
    "architecture aot": code_hash(REGISTRY.architectures["aot"].cls),
    "protocol dana2025-small": protocol_hash("dana2025-small"),
    "task bigrams": code_hash(REGISTRY.tasks["bigrams"].cls),
}


def data(engine: int = ENGINE_VERSION, **changed: str) -> Reproduction:
    """Data of today, but for what is changed."""
    environment = SyntheticRecord().result().environment.model_copy(update={"engine": engine})
    code = {**TODAY, **{name.replace("_", " ", 1): value for name, value in changed.items()}}
    return Reproduction(size="standard", recipe=RECIPE, sweeps=(), environment=environment, code=code)


def test_data_of_today_are_not_stale() -> None:
    assert stale_reasons(data(), REGISTRY) == ()


@pytest.mark.parametrize("name", ["task_bigrams", "architecture_aot", "solver_gone"])
def test_data_of_other_code_are_stale(name: str) -> None:
    label = name.replace("_", " ")
    assert stale_reasons(data(**{name: "0123"}), REGISTRY) == (f"the code of {label} was changed since",)


def test_data_of_another_engine_or_of_code_that_is_not_recorded_are_stale() -> None:
    assert stale_reasons(data(engine=1), REGISTRY) == (f"made with engine 1, today's is {ENGINE_VERSION}",)
    assert stale_reasons(data().model_copy(update={"code": {}}), REGISTRY) == (NOT_RECORDED,)


def test_data_of_other_sweeps_are_stale() -> None:
    changed = RECIPE.model_copy(update={"sweeps": RECIPE.sweeps[:0]})
    assert stale_reasons(data().model_copy(update={"recipe": changed}), REGISTRY) == ("its sweeps were changed since",)


@pytest.mark.parametrize("size", ["standard", "paper"])
def test_the_code_of_runs_is_that_of_their_plugins_and_protocols(size: RecipePreset) -> None:
    found = SyntheticRecord().result()
    assert code_of(RECIPE, size, [found]) == {
        f"architecture {found.architecture.name}": found.architecture.code_hash,
        "protocol dana2025-small": protocol_hash("dana2025-small"),
        f"solver {found.solver.name}": found.solver.code_hash,
        f"task {found.task.name}": found.task.code_hash,
    }


def test_protocols_that_differ_in_a_number_have_different_hashes() -> None:
    assert protocol_hash("dana2025") != protocol_hash("dana2025-small")
