"""Plugins come in through entry points alone, and a broken one never takes the others down."""

from __future__ import annotations

import json
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from capbench.errors import PluginFailed, UnknownName
from capbench.registry.containment import PluginWarning
from capbench.registry.registry import Registry, load_registry

ONE_MATRIX = '''
import torch
from typing import ClassVar
from capbench import Architecture, Relation, Signature, UnsupportedSignature, hookimpl

class OneMatrix(Architecture):
    """Scores of pairs from a single matrix."""
    name: ClassVar[str] = "one_matrix"
    init_scale: float = 0.1

    def build(self, signature: Signature) -> torch.nn.Module:
        if not isinstance(signature, Relation):
            raise UnsupportedSignature("one_matrix scores relations only")
        return Scores(signature.d_item, self.init_scale)

class Scores(torch.nn.Module):
    def __init__(self, d: int, scale: float) -> None:
        super().__init__()
        self.W = torch.nn.Parameter(torch.randn(d, d) * scale)

    def forward(self, items):
        return items @ self.W @ items.T - 0.5

@hookimpl
def capbench_architectures():
    return [OneMatrix]
'''


def load_with_warning(match: str) -> Registry:
    with pytest.warns(PluginWarning, match=match):
        registry = load_registry()
    assert "rgr" in registry.tasks, "the built-ins are still there"
    return registry


def test_a_third_party_architecture_is_discovered_with_its_provenance(distribution) -> None:
    distribution("one-matrix", ONE_MATRIX)
    provided = load_registry().architecture("one_matrix")
    assert str(provided.provenance) == "one-matrix 1.2 (one_matrix)"


def test_a_third_party_architecture_runs_without_any_change_to_the_core(distribution, capbench) -> None:
    distribution("one-matrix", ONE_MATRIX)
    listed = capbench("list")
    assert "one-matrix 1.2" in listed.out
    done = capbench("run", "--task", "rgr", "--arch", "one_matrix", "--preset", "smoke")
    assert done.code == 0, done.err
    assert "capacity" in done.out


def test_the_plugin_in_the_readme_works_as_it_stands(distribution, capbench) -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    distribution("from-readme", readme.partition("```python\n")[2].partition("```")[0])
    done = capbench("run", "--task", "rgr", "--arch", "one_matrix", "--preset", "smoke", "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["capacity"]["estimate"] > 3


def test_a_plugin_that_cannot_be_imported_costs_a_warning_that_names_its_package(distribution) -> None:
    distribution("bad-import", "import a_module_that_is_not_there")
    registry = load_with_warning("bad-import 1.2.*ModuleNotFoundError")
    assert [failure.provenance.distribution for failure in registry.failures] == ["bad-import"]


def test_a_plugin_that_leaves_the_program_on_import_is_isolated_too(distribution) -> None:
    distribution("quitter", "import sys; sys.exit(3)")
    load_with_warning("quitter 1.2.*SystemExit")


def test_a_hook_that_raises_is_isolated(distribution) -> None:
    distribution(
        "raiser", "from capbench import hookimpl\n@hookimpl\ndef capbench_tasks():\n    raise OSError('no disk')"
    )
    load_with_warning("raiser 1.2.*OSError: no disk")


def test_a_misspelt_hook_is_reported_by_name(distribution) -> None:
    distribution("typo", ONE_MATRIX.replace("def capbench_architectures", "def capbench_architecture"))
    load_with_warning("typo 1.2.*capbench_architecture")


def test_a_plugin_without_hooks_is_reported(distribution) -> None:
    distribution("hookless", "x = 1")
    load_with_warning("hookless 1.2.*none of the hooks")


def test_a_name_that_is_taken_is_refused_naming_both_distributions(distribution) -> None:
    distribution("aaa-first", ONE_MATRIX)
    distribution("zzz-second", ONE_MATRIX)
    registry = load_with_warning("one_matrix.*aaa-first.*zzz-second")
    assert registry.architecture("one_matrix").provenance.distribution == "aaa-first"


def test_no_plugin_can_take_the_name_of_a_built_in(distribution) -> None:
    distribution("aaa-shadow", ONE_MATRIX.replace('"one_matrix"', '"mha"'))
    registry = load_with_warning("mha.*capbench.*aaa-shadow")
    assert registry.architecture("mha").provenance.distribution == "capbench"


def test_a_plugin_is_taken_whole_or_not_at_all(distribution) -> None:
    both = ONE_MATRIX.replace("return [OneMatrix]", 'return [OneMatrix, type("Mha", (OneMatrix,), {"name": "mha"})]')
    distribution("half-good", both)
    assert "one_matrix" not in load_with_warning("half-good").architectures


@pytest.mark.parametrize("name", ["Upper", "with space", "x\\x1b[31m", "a" * 65, ""])
def test_names_that_would_not_do_on_a_command_line_are_refused(distribution, name: str) -> None:
    distribution("odd-name", ONE_MATRIX.replace('"one_matrix"', f'"{name}"'))
    load_with_warning("odd-name 1.2")


def test_an_abstract_class_is_refused_with_what_it_lacks(distribution) -> None:
    source = (
        "from capbench import Task, hookimpl\nclass Half(Task):\n    name = 'half'\n"
        "@hookimpl\ndef capbench_tasks():\n    return [Half]"
    )
    distribution("half-task", source.replace("name = ", "name: 'ClassVar[str]' = "))
    load_with_warning("half-task")


def test_strict_makes_a_broken_plugin_fatal(distribution) -> None:
    distribution("bad-import", "import a_module_that_is_not_there")
    with pytest.raises(PluginFailed, match="bad-import"):
        load_registry(strict=True)


def test_the_environment_can_choose_a_subset(distribution, monkeypatch: pytest.MonkeyPatch) -> None:
    distribution("one-matrix", ONE_MATRIX)
    monkeypatch.setenv("CAPBENCH_PLUGINS", "one-matrix, rgr")
    registry = load_registry()
    assert (set(registry.architectures), set(registry.tasks)) == ({"one_matrix"}, {"rgr"})
    monkeypatch.setenv("CAPBENCH_PLUGINS", "one-matrx")
    with pytest.raises(UnknownName, match="did you mean 'one-matrix'"):
        load_registry()


def test_built_ins_come_in_by_the_same_entry_points_as_third_parties() -> None:
    registry = load_registry()
    own = [point.name for point in entry_points(group="capbench") if point.dist and point.dist.name == "capbench"]
    assert {p.entry_point for p in registry.loaded} >= set(own)
    assert not registry.failures


def test_plugins_command_always_works(distribution, capbench) -> None:
    distribution("bad-import", "import a_module_that_is_not_there")
    shown = capbench("plugins")
    assert shown.code == 0
    assert "bad-import 1.2" in shown.out
    assert "ModuleNotFoundError" in shown.out
    assert "Traceback" in capbench("plugins", "--traceback").out
    assert capbench("--strict-plugins", "list").code == 1
