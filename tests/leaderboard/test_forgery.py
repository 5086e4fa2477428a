"""Verification against a forger who knows capbench: whatever is stored or stated, trials are run again."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from capbench.cli.plugin_options import PluginOptions
from capbench.consistency import Silent
from capbench.options import RunOptions, build_request
from capbench.reading import read_result
from capbench.rebuild import rebuild
from capbench.recheck import Recheck, Verdict, recheck
from capbench.registry import Registry
from capbench.results import Result
from capbench.runner import execute
from capbench.store import Store
from capbench.suite import load_suite
from capbench.suite_place import find_place

Document = dict[str, Any]
Change = Callable[[Document], None]
FAST: dict[str, Any] = {"preset": "smoke", "steps": 30, "compile_mode": "off"}
KINDS = {
    "capacity": RunOptions("sequences", "mha", budget=6, rates=(0.05,), **FAST),
    "at": RunOptions("rgr", "bilinear", at=20, seeds=2, rates=(0.4,), **FAST),
    "overload": RunOptions("bigrams", "aot", overload=True, seeds=2, rates=(0.01,), **FAST),
    "minimize": RunOptions("rgr", "mha", minimize="d_qk", at=10, budget=6, rates=(0.4,), **FAST),
    "construct": RunOptions("sequences", "mha", solver="construct", preset="smoke"),
    "protocol": RunOptions("bigrams", "aot", protocol="dana2025", at=32, seeds=2, **FAST),
    "analyse": RunOptions("triples", "aot", at=10, seeds=2, analyse=True, rates=(0.02,), **FAST),
    "matched": RunOptions("triples", "mlp", params="400", at=10, seeds=2, rates=(0.02,), **FAST),
}
FREE = ("environment.", "timing.")
"""What nobody can check afterwards: where and how long. The documents say so."""


@pytest.fixture(scope="module")
def registry() -> Registry:
    return PluginOptions().load()


@pytest.fixture(scope="module")
def honest(registry: Registry, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Document]:
    """Small real runs of every kind, each made once."""
    made: dict[str, Document] = {}

    def get(kind: str) -> Document:
        if kind not in made:
            store = Store(tmp_path_factory.mktemp(kind))
            result = execute(build_request(KINDS[kind], registry), registry, store, Silent())
            store.close()
            made[kind] = result.model_dump(mode="json")
        copied: Document = json.loads(json.dumps(made[kind]))
        return copied

    return get


@pytest.fixture
def check(registry: Registry, tmp_path: Path) -> Callable[..., Recheck]:
    """Checks a document as `verify` does."""

    def run(document: Document, sample: int = 1000, suite_file: str | None = None) -> Recheck:
        path = tmp_path / "record.json"
        path.write_text(json.dumps(document))
        return recheck(read_result(path), registry, Silent(), sample, 1, suite_file)

    return run


@pytest.fixture
def reissued(registry: Registry, tmp_path: Path) -> Callable[[Document, Change], Document]:
    """A forger's best: the trials are changed in a store, and capbench itself writes the document from them."""

    def make(document: Document, change: Change) -> Document:
        trials = [*document["trials"], *(document["constructed"] or {"trials": []})["trials"]]
        for trial in trials:
            change(trial)
        result = Result.model_validate(document)
        store = Store(tmp_path / "forged")
        told = (*result.trials, *(result.constructed.trials if result.constructed else ()))
        store.add_trials(told, result.task.name, result.architecture.name)
        forged = execute(rebuild(result, registry), registry, store, Silent())
        store.close()
        return forged.model_dump(mode="json")

    return make


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_run_is_verified(kind: str, honest, check) -> None:
    found = check(honest(kind), sample=3)
    assert (found.verdict, found.findings) == (Verdict.VERIFIED, ())
    assert found.n_sampled >= 2


def raise_bits(trial: Document) -> None:
    trial["metrics"]["bits"] *= 1.01


def raise_facts_held(trial: Document) -> None:
    trial["metrics"]["facts_held"] += 1


def raise_everything(trial: Document) -> None:
    trial["metrics"] = {name: value * 1.3 for name, value in trial["metrics"].items()}


def hold(trial: Document) -> None:
    trial["status"] = "held"
    trial["metrics"] |= {name: 1.0 for name in ("accuracy", "f1") if name in trial["metrics"]}


def hurry(trial: Document) -> None:
    trial["steps"] = max(1, trial["steps"] - 1)


def find_in_the_data(trial: Document) -> None:
    trial["data"] = {name: value + 0.5 for name, value in trial["data"].items()}


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("capacity", raise_bits),
        ("capacity", hold),
        ("capacity", hurry),
        ("capacity", find_in_the_data),
        ("overload", raise_facts_held),
        ("minimize", hold),
        ("at", hold),
        ("construct", raise_bits),
        ("analyse", find_in_the_data),
    ],
)
def test_a_document_made_from_changed_trials_is_not_reproducible(
    kind: str, change: Change, honest, reissued, check
) -> None:
    forged = reissued(honest(kind), change)
    assert forged != honest(kind)
    assert check(forged).verdict is Verdict.NOT_REPRODUCIBLE


def test_another_machine_is_no_excuse_for_other_results(honest, reissued, check) -> None:
    """Who claims another machine gets the wider tolerance, and no more than that."""
    forged = reissued(honest("overload"), raise_everything)
    forged["environment"]["platform"] = "elsewhere"
    assert check(forged).verdict is Verdict.NOT_REPRODUCIBLE
    moved = honest("overload")
    moved["environment"]["platform"] = "elsewhere"
    found = check(moved)
    assert found.verdict is Verdict.VERIFIED
    assert "another kind of machine" in found.tolerance


def test_explicit_weights_are_written_again_too(honest, check) -> None:
    forged = honest("capacity")
    assert forged["constructed"] is not None
    for trial in forged["constructed"]["trials"]:
        trial["metrics"]["bits"] += 1
    assert check(forged).verdict is Verdict.NOT_REPRODUCIBLE
    forged = honest("capacity")
    forged["constructed"]["trials"][-1]["load"] += 1
    assert check(forged, sample=0).verdict is Verdict.SUMMARIES_WRONG


def test_a_trial_that_is_said_to_have_failed_is_run_again(honest, check) -> None:
    forged = honest("capacity")
    lost = next(t for t in forged["trials"] if t["status"] != "held")
    lost |= {"status": "failed", "metrics": {}, "error": "out of memory"}
    assert check(forged, sample=0).verdict is Verdict.SUMMARIES_WRONG


def test_rates_that_the_trials_do_not_have_are_a_finding_and_no_crash(honest, check) -> None:
    forged = honest("capacity")
    forged["protocol"]["learning_rates"] = [0.06]
    found = check(forged, sample=0)
    assert found.verdict is Verdict.SUMMARIES_WRONG
    assert "not among protocol.learning_rates" in found.findings[0]


def test_a_bound_cannot_be_hidden_with_its_plugin(honest, check) -> None:
    forged = honest("at")
    forged["bounds"] = [bound for bound in forged["bounds"] if bound["id"] != "bits.per_parameter"]
    plugins = forged["environment"]["plugins"]
    forged["environment"]["plugins"] = [plugin for plugin in plugins if plugin["entry_point"] != "bits"]
    found = check(forged, sample=0)
    assert found.verdict is Verdict.SUMMARIES_WRONG
    assert "bounds.bits.per_parameter: it was left out" in found.findings


def test_fields_and_distribution_must_be_those_of_the_code(honest, check) -> None:
    forged = honest("at")
    forged["task"]["params"].pop("out_degree")
    assert any(line.startswith("task.params") for line in check(forged, sample=0).findings)
    forged = honest("at")
    forged["architecture"]["plugin"] = "capbench 9.9"
    found = check(forged, sample=0)
    assert found.findings == ("architecture.plugin: 'capbench 9.9' is not among environment.plugins",)


BOUND_OF_SOMEBODY_ELSE = """
from typing import ClassVar
from capbench import Bound, BoundValue, Kind, Pedigree, hookimpl

class Elsewhere(Bound):
    \"\"\"Would start every search elsewhere.\"\"\"
    name: ClassVar[str] = "elsewhere.facts"
    kind: ClassVar = Kind.LOWER
    statement: ClassVar[str] = "more than anybody holds"
    formula: ClassVar[str] = "400"
    citation: ClassVar[str] = "nobody"
    pedigree: ClassVar = Pedigree.DERIVED
    def evaluate(self, task, architecture, load=None):
        return BoundValue(400.0, "facts")

@hookimpl
def capbench_bounds():
    return [Elsewhere]
"""


def test_what_else_is_installed_here_does_not_matter(honest, distribution, tmp_path: Path) -> None:
    distribution("capbench-elsewhere", BOUND_OF_SOMEBODY_ELSE)
    richer = PluginOptions().load()
    assert "elsewhere.facts" in richer.bounds
    found = recheck(Result.model_validate(honest("capacity")), richer, Silent(), 0)
    assert (found.verdict, found.findings) == (Verdict.VERIFIED, ())


TINY = """
name = "tiny"
version = 3
preset = "smoke"
tiers = [400, 600]
tasks = ["triples"]
architectures = ["mlp"]
seeds = 2
budget = 4

[[rules]]
steps = 30
rates = [0.02]
"""


@pytest.fixture
def of_suite(registry: Registry, tmp_path: Path) -> tuple[Document, str]:
    """A run that a suite asks for, as its record, and the suite's file."""
    file = tmp_path / "tiny.toml"
    file.write_text(TINY)
    options = RunOptions("triples", "mlp", params="400", budget=4, seeds=2, rates=(0.02,), **FAST)
    store = Store(tmp_path / "suite")
    result = execute(build_request(options, registry), registry, store, Silent())
    store.close()
    place = find_place(result, load_suite(str(file)), registry)
    return result.model_copy(update={"suite": place}).model_dump(mode="json"), str(file)


def test_a_record_of_a_suite_must_be_the_run_that_the_suite_asks_for(of_suite, check) -> None:
    record, file = of_suite
    assert record["suite"] == {"name": "tiny", "version": 3, "tier": 400}
    assert check(record, 0, file).verdict is Verdict.VERIFIED
    moved = {**record, "suite": {**record["suite"], "tier": 600}}
    found = check(moved, 0, file)
    assert found.verdict is Verdict.SUMMARIES_WRONG
    assert found.findings[0].startswith("suite: tiny 3 asks for another run there: capbench run --task triples")
    nowhere = {**record, "suite": {**record["suite"], "tier": 500}}
    assert check(nowhere, 0, file).findings[0].startswith("suite.tier: tiny 3 has no such pair at 500")


def test_a_run_cannot_be_smuggled_into_a_suite(honest, check) -> None:
    forged = honest("matched")
    forged["suite"] = {"name": "smoke", "version": 1, "tier": 400}
    found = check(forged, 0)
    assert found.verdict is Verdict.SUMMARIES_WRONG
    assert "suite: smoke 1 asks for another run there" in found.findings[0]


def test_a_suite_that_is_not_here_says_how_to_name_it(of_suite, check) -> None:
    record, file = of_suite
    found = check(record, 0)
    assert found.verdict is Verdict.CANNOT_RUN
    assert "--suite FILE.toml" in found.findings[0]
    later = {**record, "suite": {**record["suite"], "version": 4}}
    found = check(later, 0, file)
    assert found.verdict is Verdict.CANNOT_RUN
    assert "the document is of suite tiny 4, here is tiny 3" in found.findings[0]


def places(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Every value of a document that is no list or object; of a list, the first."""
    if isinstance(value, dict):
        for key in value:
            yield from places(value[key], (*path, key))
    elif isinstance(value, list):
        yield from places(value[0], (*path, 0)) if value else ()
    else:
        yield path


def changed(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if value is None:
        return 1
    return value + "x" if isinstance(value, str) else value * 1.01 + 1


@pytest.mark.slow
def test_no_field_can_be_changed_unseen(honest, check) -> None:
    """Each field of a document in turn: refused, or found, but for what nobody can check afterwards."""
    from capbench.errors import BadDocument

    unseen = []
    for path in places(honest("construct")):
        forged = honest("construct")
        inner: Any = forged
        for key in path[:-1]:
            inner = inner[key]
        inner[path[-1]] = changed(inner[path[-1]])
        try:
            found = check(forged, 1000)
        except BadDocument:
            continue
        name = ".".join(map(str, path))
        if found.verdict is Verdict.VERIFIED and not name.startswith(FREE):
            unseen.append(name)
    assert unseen == []
