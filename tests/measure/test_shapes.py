"""The shape under --params: the best of the candidates, chosen on seeds of its own; fields that are set stay."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pydantic import Field

from capbench import Architecture, Relation
from capbench.contract import shapes
from capbench.contract.shapes import MOST_SHAPES
from capbench.documents.result import Result
from capbench.errors import BadSetting
from capbench.measure.matching import count_parameters, shapes_near
from capbench.measure.options import RunOptions, parse_command
from capbench.measure.request import build_request
from capbench.measure.run import execute
from capbench.measure.session import SELECTION_SEED, NullListener
from capbench.registry.registry import load_registry
from capbench.registry.settings import configure
from capbench.store.queries import StoreQuery
from capbench.store.store import Store, home
from capbench_plugins.bilinear import Bilinear

# A table with one row per pair of tokens, of which only some can be trained: with all 64 it holds every fact of the
# smoke preset's triples, with half of them it misses half of the facts. `waste` makes the counts equal.
TOY = '''
from typing import ClassVar
import torch
from capbench import Architecture, Lookup, UnsupportedSignature, find_shapes, hookimpl


class Toy(Architecture):
    """A table with room for some of the pairs."""

    name: ClassVar[str] = "toy"
    n_rows: int = 16
    waste: int = 8

    def build(self, signature):
        if not isinstance(signature, Lookup) or signature.length != 2:
            raise UnsupportedSignature("pairs of tokens only")
        return Table(signature, self.n_rows, self.waste)

    def shapes(self, signature, n_parameters):
        return find_shapes(self, signature, n_parameters, {"waste": range(1, 4096), "n_rows": (16, 32, 64)})


class Table(torch.nn.Module):
    def __init__(self, signature, n_rows, waste):
        super().__init__()
        self.signature = signature
        self.n_fixed = max(0, signature.n_combinations - n_rows)
        self.W = torch.nn.Parameter(torch.zeros(n_rows, signature.n_classes))
        self.waste = torch.nn.Parameter(torch.zeros(waste))

    def forward(self, tokens):
        fixed = torch.zeros(self.n_fixed, self.W.shape[1], dtype=self.W.dtype, device=self.W.device)
        table = torch.cat([self.W, fixed]) + 0 * self.waste.sum()
        return table[self.signature.rows(tokens)]


@hookimpl
def capbench_architectures():
    return [Toy]
'''
TOY_RUN = (
    "--task",
    "triples",
    "--arch",
    "toy",
    "--preset",
    "smoke",
    "--lr",
    "0.1",
    "--steps",
    "200",
    "--params",
    "800",
)


@pytest.fixture
def toy(distribution) -> None:
    """Installs an architecture whose best shape is known."""
    distribution("capbench-toy", TOY)


def test_the_best_shape_is_chosen_on_seeds_of_its_own_and_the_document_says_from_which(capbench, toy: None) -> None:
    done = capbench("run", *TOY_RUN, "--json")
    assert done.code == 0, done.err
    assert "shapes: the best of 3 of toy" in done.err
    result = Result.model_validate_json(done.out)
    tried = result.architecture.shapes_tried
    assert result.architecture.params["n_rows"] == 64
    assert tried[0].params == result.architecture.params
    assert {shape.params["n_rows"] for shape in tried} == {16, 32, 64}
    assert all(abs(shape.n_parameters - 800) <= 40 for shape in tried)
    assert tried[0].estimate == result.capacity.estimate == 64 > 4 * max(shape.estimate for shape in tried[1:])
    assert (result.capacity.status, result.capacity.limited_by, result.capacity.raised_by) == (
        "at_least",
        "axis",
        "n_keys",
    )
    assert {trial.seed for trial in result.trials} <= set(range(3))
    seeds = [stored.trial.seed for stored in Store(home()).find_trials(StoreQuery())]
    assert sum(seed >= SELECTION_SEED for seed in seeds) == sum(shape.trials for shape in tried)
    # The command has the chosen fields, and so does not choose again.
    options = parse_command(result.command)
    assert options.params is None
    assert {"arch.n_rows=64", f"arch.waste={result.architecture.params['waste']}"} == set(options.set)


def test_a_second_run_trains_nothing_and_the_text_names_the_shape(capbench, toy: None) -> None:
    first = capbench("run", *TOY_RUN, "--json")
    n_trials = len(Store(home()).find_trials(StoreQuery()))
    again = capbench("run", *TOY_RUN)
    assert len(Store(home()).find_trials(StoreQuery())) == n_trials
    assert "the best of 3 on seeds of their own; next: n_rows=" in again.out
    assert "at least 64 triples: all triples that the task has; raise task.n_keys for more" in again.out
    assert json.loads(first.out)["architecture"]["shapes_tried"]


def test_a_single_load_takes_the_most_typical_shape_and_says_so(capbench, toy: None) -> None:
    done = capbench("run", *TOY_RUN, "--at", "5", "--seeds", "1", "--json")
    assert "toy with n_rows=16, waste=" in done.err
    assert "the most typical of 3 shapes" in done.err
    assert json.loads(done.out)["architecture"]["shapes_tried"] == []


def requests(arch: str, *settings: str, task: str = "rgr", params: str = "1k", preset: str = "standard"):
    """The request of a run at a parameter count."""
    options = RunOptions(task=task, arch=arch, set=settings, params=params, preset=preset)
    return build_request(options, load_registry())


def test_a_sweep_over_heads_at_one_count_has_as_many_shapes_as_values() -> None:
    chosen = [requests("mha", f"arch.n_heads={n}").architecture.plugin for n in (1, 2, 4, 8)]
    assert [(shape.n_heads, shape.d_qk) for shape in chosen] == [(1, 31), (2, 16), (4, 8), (8, 4)]


@pytest.mark.parametrize("task", ["rgr", "bigrams", "sequences"])
@pytest.mark.parametrize("arch", ["mha", "gqa", "headsplit"])
def test_no_shape_changes_a_field_that_is_set(arch: str, task: str) -> None:
    shapes = requests(arch, "arch.n_heads=4", task=task, params="2k").shapes
    assert shapes
    assert {shape.plugin.n_heads for shape in shapes} == {4}


def test_a_count_that_no_free_field_reaches_is_refused_in_one_line() -> None:
    with pytest.raises(BadSetting, match="--params changes n_heads or d_qk of mha on rgr") as refusal:
        requests("mha", "arch.n_heads=4", "arch.d_qk=2")
    assert "258 parameters for 1,000; leave one unset" in str(refusal.value)
    assert "\n" not in str(refusal.value)
    # What has the count already needs no free field.
    assert requests("mha", "arch.n_heads=4", "arch.d_qk=8").n_parameters == 1026


LOOKUP_ONLY = ("aot", "transformer", "bilinear")
VECTORS = ("rgr", "sequences")
UNSUPPORTED = {("linear_attention", "rgr"), *((arch, task) for arch in LOOKUP_ONLY for task in VECTORS)}


@pytest.mark.parametrize("arch", ["gqa", "headsplit", "linear_attention", "mha", "mlp", *LOOKUP_ONLY])
@pytest.mark.parametrize("task", ["bigrams", "rgr", "sequences", "triples"])
@pytest.mark.parametrize("target", [1_000, 16_000])
def test_built_in_shapes_have_the_count_and_no_width_that_cannot_help(arch: str, task: str, target: int) -> None:
    registry = load_registry()
    plugin = configure(registry.task(task), "standard", {}).plugin
    signature = plugin.signature
    shapes = registry.architecture(arch).cls().shapes(signature, target)
    if (arch, task) in UNSUPPORTED:
        assert not shapes
    else:
        assert (0 if arch == "bilinear" else 2) <= len(shapes) <= (1 if arch == "bilinear" else MOST_SHAPES)
    for shape in shapes:
        assert abs(count_parameters(plugin, shape) - target) <= 0.05 * target
        d = getattr(signature, "d_item", None) or getattr(signature, "d_input", None) or getattr(shape, "d_model", 0)
        heads = shape.heads(signature)
        if heads is not None:
            assert max(heads.d_qk, heads.d_vo) <= heads.d_model == d
        elif hasattr(shape, "d_qk"):
            assert max(shape.d_qk, shape.d_vo) <= d


@pytest.mark.parametrize(("arch", "n_heads"), [("headsplit", 4), ("gqa", 4)])
def test_more_parameters_on_relations_are_more_heads(arch: str, n_heads: int) -> None:
    assert all(shape.plugin.n_heads > n_heads for shape in requests(arch, params="16k").shapes)


@pytest.mark.parametrize("arch", ["mha", "gqa", "headsplit", "linear_attention"])
@pytest.mark.parametrize("task", ["bigrams", "rgr", "sequences"])
def test_an_initial_scale_is_chosen_for_each_task_unless_it_is_set(arch: str, task: str) -> None:
    if (arch, task) in UNSUPPORTED | {("gqa", "bigrams"), ("headsplit", "bigrams")}:  # they have no scale there
        return
    assert {shape.plugin.init_scale for shape in requests(arch, task=task).shapes} == {0.5, 2.0}
    fixed = requests(arch, "arch.init_scale=1.5", task=task).shapes
    assert {shape.plugin.init_scale for shape in fixed} == {1.5}


@pytest.mark.parametrize("arch", ["gated_mlp", "gla", "hyena", "sigmoid_attention", "uniform_attention"])
def test_layers_and_networks_of_tokens_have_several_initial_scales_too(arch: str) -> None:
    assert {shape.plugin.init_scale for shape in requests(arch, task="bigrams").shapes} == {0.5, 1.0}
    fixed = requests(arch, "arch.init_scale=1.5", task="bigrams").shapes
    assert {shape.plugin.init_scale for shape in fixed} == {1.5}


def test_the_most_typical_shape_has_the_scale_that_such_tasks_usually_want() -> None:
    assert requests("mha").shapes[0].plugin.init_scale == 2.0
    assert requests("mha", task="bigrams").shapes[0].plugin.init_scale == 0.5


def test_headsplit_is_mha_on_relations_to_the_last_trial(tmp_path: Path) -> None:
    registry, found = load_registry(), []
    for arch in ("mha", "headsplit"):
        options = RunOptions(task="rgr", arch=arch, params="300", preset="smoke", budget=8, rates=(0.4, 0.8), steps=100)
        store = Store(tmp_path / arch)
        found.append(execute(build_request(options, registry), registry, store, NullListener()))
        store.close()
    mha, headsplit = found
    assert headsplit.capacity == mha.capacity
    assert headsplit.rates == mha.rates
    by_name = [(shape.estimate, shape.trials, shape.n_parameters) for shape in mha.architecture.shapes_tried]
    assert [(s.estimate, s.trials, s.n_parameters) for s in headsplit.architecture.shapes_tried] == by_name
    same = [trial.model_copy(update={"key": ""}) for trial in mha.trials]
    assert [trial.model_copy(update={"key": ""}) for trial in headsplit.trials] == same
    assert {trial.key for trial in headsplit.trials}.isdisjoint(trial.key for trial in mha.trials)


def test_a_plugin_without_shapes_is_matched_by_its_width() -> None:
    registry = load_registry()
    task = configure(registry.task("rgr"), "standard", {}).plugin
    configured = configure(registry.architecture("mlp"), "standard", {})
    object.__setattr__(configured, "plugin", _without_shapes(configured.plugin))
    (only,) = shapes_near(task, configured, 4_000)
    assert abs(count_parameters(task, only.plugin) - 4_000) <= 200


def _without_shapes(plugin):
    """The plugin as one of before there were shapes."""
    cls = type("Old", (type(plugin),), {"shapes": lambda self, signature, n_parameters: (), "__module__": __name__})
    return cls(**dict(plugin))


class Listed(Bilinear):
    """An architecture that cannot be hashed."""

    sizes: list[int] = Field(default_factory=list)


@pytest.mark.parametrize(("architecture", "n_built"), [(Bilinear(), 1), (Listed(), 2)], ids=repr)
def test_a_shape_is_built_once_to_count_its_parameters(
    architecture: Architecture, n_built: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    built, build = [], Bilinear.build
    monkeypatch.setattr(Bilinear, "build", lambda self, signature: (built.append(1), build(self, signature))[1])
    shapes._known_count.cache_clear()
    counts = {shapes.parameter_count(architecture, Relation(n_items=7, d_item=5)) for _ in range(2)}
    assert (len(counts), len(built)) == (1, n_built)
