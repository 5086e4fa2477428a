"""Verification against a forger who knows capbench: trials are run again, whatever the document or a store says."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from capbench.cli.shared_options import PluginOptions
from capbench.documents.result import Result
from capbench.documents.strict_json import read_result
from capbench.measure.options import RunOptions
from capbench.measure.request import build_request
from capbench.measure.run import execute
from capbench.measure.session import NullListener
from capbench.registry.registry import Registry
from capbench.store.store import Store
from capbench.studies.suite import load_suite
from capbench.studies.verify.rebuild import rebuild
from capbench.studies.verify.suite_cell import find_cell
from capbench.studies.verify.verify import Verification, VerificationStatus, verify_result

Document = dict[str, Any]
Change = Callable[[Document], None]
FAST: dict[str, Any] = {"preset": "smoke", "steps": 30, "compile_mode": "off"}
KINDS = {
    "capacity": RunOptions(task="sequences", arch="mha", budget=6, rates=(0.05,), **FAST),
    "at": RunOptions(task="rgr", arch="bilinear", at=20, seeds=2, rates=(0.4,), **FAST),
    "overload": RunOptions(task="bigrams", arch="aot", overload=True, seeds=2, rates=(0.01,), **FAST),
    "minimize": RunOptions(task="rgr", arch="mha", minimize="d_qk", at=10, budget=6, rates=(0.4,), **FAST),
    "construct": RunOptions(task="sequences", arch="mha", solver="construct", preset="smoke"),
    "protocol": RunOptions(task="bigrams", arch="aot", protocol="dana2025", at=32, seeds=2, **FAST),
    "analyse": RunOptions(task="triples", arch="aot", at=10, seeds=2, analyse=True, rates=(0.02,), **FAST),
    "matched": RunOptions(task="triples", arch="mlp", params="400", at=10, seeds=2, rates=(0.02,), **FAST),
}
UNCHECKED = {
    "what its author calls it": ["name"],
    "machine": [
        f"environment.{name}"
        for name in ("capbench", "python", "torch", "device", "device_name", "threads", "platform")
    ],
    "plugins that took no part": [
        f"environment.plugins.0.{name}" for name in ("entry_point", "distribution", "version", "module")
    ],
    "time and cost": [
        *(f"timing.{name}_seconds" for name in ("wall", "train", "compile")),
        *(f"timing.{name}" for name in ("lane_steps", "compiled_lane_steps", "trials_trained", "trials_reused")),
        *(f"timing.phases.{name}" for name in ("store", "construct", "planning")),
    ],
}
"""Fields that leave no trace in the trials; the threat model and the output of `verify` say so."""


@pytest.fixture(scope="module")
def registry() -> Registry:
    return PluginOptions().load()


@pytest.fixture(scope="module")
def honest(registry: Registry, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Document]:
    """Small real runs of every kind, each run once."""
    made: dict[str, Document] = {}

    def get(kind: str) -> Document:
        if kind not in made:
            store = Store(tmp_path_factory.mktemp(kind))
            result = execute(build_request(KINDS[kind], registry), registry, store, NullListener())
            store.close()
            made[kind] = result.model_dump(mode="json")
        copied: Document = json.loads(json.dumps(made[kind]))
        return copied

    return get


@pytest.fixture
def check(registry: Registry, tmp_path: Path) -> Callable[..., Verification]:
    """Checks a document as `verify` does."""

    def run(document: Document, sample: int = 1000, suite_file: str | None = None) -> Verification:
        path = tmp_path / "record.json"
        path.write_text(json.dumps(document))
        return verify_result(read_result(path), registry, NullListener(), sample, 1, suite_file)

    return run


@pytest.fixture
def reissued(registry: Registry, tmp_path: Path) -> Callable[[Document, Change], Document]:
    """The best forgery: trials are changed in a store, and capbench itself writes the document from them."""

    def make(document: Document, change: Change) -> Document:
        trials = [*document["trials"], *(document["constructed"] or {"trials": []})["trials"]]
        for trial in trials:
            change(trial)
        result = Result.model_validate(document)
        store = Store(tmp_path / "forged")
        forged_trials = (*result.trials, *(result.constructed.trials if result.constructed else ()))
        store.add_trials(forged_trials, result.task.name, result.architecture.name)
        forged = execute(rebuild(result, registry), registry, store, NullListener())
        store.close()
        return forged.model_dump(mode="json")

    return make


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_run_is_verified(kind: str, honest, check) -> None:
    found = check(honest(kind), sample=3)
    assert (found.verdict, found.findings) == (VerificationStatus.VERIFIED, ())
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


def lower_steps(trial: Document) -> None:
    trial["steps"] = max(1, trial["steps"] - 1)


def change_data(trial: Document) -> None:
    trial["data"] = {name: value + 0.5 for name, value in trial["data"].items()}


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("capacity", raise_bits),
        ("capacity", hold),
        ("capacity", lower_steps),
        ("capacity", change_data),
        ("overload", raise_facts_held),
        ("minimize", hold),
        ("at", hold),
        ("construct", raise_bits),
        ("analyse", change_data),
    ],
)
def test_a_document_made_from_changed_trials_is_not_reproducible(
    kind: str, change: Change, honest, reissued, check
) -> None:
    forged = reissued(honest(kind), change)
    assert forged != honest(kind)
    assert check(forged).verdict is VerificationStatus.NOT_REPRODUCIBLE


def set_at(path: str, value: Any) -> Change:
    def change(document: Document) -> None:
        *names, last = path.split(".")
        inner: Any = document
        for name in names:
            inner = inner[int(name) if name.isdigit() else name]
        inner[int(last) if last.isdigit() else last] = value(inner[last]) if callable(value) else value

    return change


def reorder(document: Document) -> None:
    document["trials"].reverse()


def remove(document: Document) -> None:
    """The worst trial is left out."""
    document["trials"].remove(next(trial for trial in document["trials"] if trial["status"] != "held"))


def double(document: Document) -> None:
    document["trials"].append(document["trials"][-1])


def add(document: Document) -> None:
    """A seed that the search did not ask for."""
    document["trials"].append({**document["trials"][-1], "seed": document["trials"][-1]["seed"] + 1})


def take_lucky_seeds(document: Document) -> None:
    """The search again with other seeds, as if these were the first."""
    for trial in document["trials"]:
        trial["seed"] += 100


FORGERIES: dict[str, Change] = {
    "raised capacity": set_at("capacity.estimate", lambda value: 1.05 * value),
    "narrowed interval": set_at("capacity.ci_low", lambda value: (value or 1.0) * 1.01),
    "reordered trials": reorder,
    "removed trial": remove,
    "doubled trial": double,
    "added trial": add,
    "lucky seeds": take_lucky_seeds,
    "rates chosen afterwards": set_at("protocol.learning_rates", [0.05, 0.1]),
    "changed load": set_at("trials.0.load", lambda value: value + 1),
    "changed steps": set_at("protocol.steps", 31),
    "changed budget": set_at("protocol.budget", 7),
    "changed criterion": set_at("protocol.criterion.threshold", 0.9),
    "changed precision": set_at("protocol.dtype", "float64"),
    "changed code hash of the task": set_at("task.code_hash", "0" * 16),
    "changed code hash of the solver": set_at("solver.code_hash", "0" * 16),
    "changed plugin field": set_at("architecture.params.n_heads", 1),
    "changed run id": set_at("run_id", "0" * 12),
    "changed engine": set_at("environment.engine", lambda value: value + 1),
    "changed parameters": set_at("n_parameters", lambda value: value - 1),
    "changed bits": set_at("bits", lambda value: 1.01 * value),
    "at least": set_at("capacity.status", "at_least"),
    "why only one side is known": set_at("capacity.limited_by", "axis"),
    "settled that was not asked": set_at("capacity.settled", True),
    "drift that was not asked": set_at("capacity.drift", 0.0),
    "changed reading": set_at("readings.0.estimate", lambda value: value + 1),
    "removed readings": set_at("readings", []),
    "removed construction": set_at("constructed", None),
    "raised construction": set_at("constructed.capacity.estimate", lambda value: value + 1),
    "changed grid": set_at("timing.grid_trials", lambda value: value + 100),
    "limit of steps": set_at("trials.0.limit", 30),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forgery_is_found_without_running_any_trial_again(name: str, honest, check) -> None:
    forged = honest("capacity")
    FORGERIES[name](forged)
    assert forged != honest("capacity")
    found = check(forged, sample=0)
    assert found.verdict in (VerificationStatus.SUMMARIES_WRONG, VerificationStatus.CANNOT_RUN)
    assert found.findings


@pytest.mark.parametrize("field", [*UNCHECKED["machine"], "timing.wall_seconds", "timing.compile_seconds"])
def test_a_forged_machine_or_time_never_hides_forged_trials(field: str, honest, reissued, check) -> None:
    """They cannot be checked, and what they decide is the tolerance alone: larger forgeries are found all the same."""
    forged = reissued(honest("overload"), raise_everything)
    set_at(field, changed)(forged)
    assert check(forged).verdict is VerificationStatus.NOT_REPRODUCIBLE


FOUND_ENVIRONMENT: dict[str, Change] = {
    "engine": set_at("environment.engine", lambda value: value + 1),
    "no plugins": set_at("environment.plugins", []),
    "version of the plugin that made it": set_at(
        "environment.plugins",
        lambda plugins: [plugin | {"version": plugin["version"] + ".1"} for plugin in plugins],
    ),
}


@pytest.mark.parametrize("name", FOUND_ENVIRONMENT)
def test_a_forged_environment_that_decides_the_trials_is_found(name: str, honest, check) -> None:
    forged = honest("at")
    FOUND_ENVIRONMENT[name](forged)
    found = check(forged, sample=0)
    assert found.verdict in (VerificationStatus.SUMMARIES_WRONG, VerificationStatus.CANNOT_RUN)
    assert "environment.plugins" in " ".join(found.findings) or "engine" in " ".join(found.findings)


def test_a_claim_of_another_machine_only_widens_the_tolerance(honest, reissued, check) -> None:
    forged = reissued(honest("overload"), raise_everything)
    forged["environment"]["platform"] = "elsewhere"
    assert check(forged).verdict is VerificationStatus.NOT_REPRODUCIBLE
    moved = honest("overload")
    moved["environment"]["platform"] = "elsewhere"
    found = check(moved)
    assert found.verdict is VerificationStatus.VERIFIED
    assert "another kind of machine" in found.tolerance


def test_the_sample_is_drawn_from_the_randomness_of_the_system(
    honest, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[int] = []

    class Watched(random.SystemRandom):
        def sample(self, population: Any, k: int) -> list[Any]:  # type: ignore[override]
            drawn.append(k)
            return super().sample(population, k=k)

    monkeypatch.setattr("random.SystemRandom", Watched)
    found = verify_result(Result.model_validate(honest("at")), registry, NullListener(), 1)
    assert sum(drawn) == found.n_sampled == 1
    drawn.clear()
    verify_result(Result.model_validate(honest("at")), registry, NullListener(), 1, seed=3)
    assert drawn == []


def test_trials_with_explicit_weights_are_run_again_too(honest, check) -> None:
    forged = honest("capacity")
    assert forged["constructed"] is not None
    for trial in forged["constructed"]["trials"]:
        trial["metrics"]["bits"] += 1
    assert check(forged).verdict is VerificationStatus.NOT_REPRODUCIBLE
    forged = honest("capacity")
    forged["constructed"]["trials"][-1]["load"] += 1
    assert check(forged, sample=0).verdict is VerificationStatus.SUMMARIES_WRONG


def test_a_trial_recorded_as_failed_is_run_again(honest, check) -> None:
    forged = honest("capacity")
    lost = next(t for t in forged["trials"] if t["status"] != "held")
    lost |= {"status": "failed", "metrics": {}, "error": "out of memory"}
    assert check(forged, sample=0).verdict is VerificationStatus.SUMMARIES_WRONG


def test_rates_without_trials_are_a_finding_and_no_crash(honest, check) -> None:
    forged = honest("capacity")
    forged["protocol"]["learning_rates"] = [0.06]
    found = check(forged, sample=0)
    assert found.verdict is VerificationStatus.SUMMARIES_WRONG
    assert "not among protocol.learning_rates" in found.findings[0]


def test_a_bound_cannot_be_hidden_with_its_plugin(honest, check) -> None:
    forged = honest("at")
    forged["bounds"] = [bound for bound in forged["bounds"] if bound["id"] != "bits.per_parameter"]
    plugins = forged["environment"]["plugins"]
    forged["environment"]["plugins"] = [plugin for plugin in plugins if plugin["entry_point"] != "bits"]
    found = check(forged, sample=0)
    assert found.verdict is VerificationStatus.SUMMARIES_WRONG
    assert "bounds.bits.per_parameter: it was left out" in found.findings


def test_fields_and_distribution_must_be_those_of_the_code(honest, check) -> None:
    forged = honest("at")
    forged["task"]["params"].pop("out_degree")
    assert any(line.startswith("task.params") for line in check(forged, sample=0).findings)
    forged = honest("at")
    forged["architecture"]["plugin"] = "capbench 9.9"
    found = check(forged, sample=0)
    assert found.findings == ("architecture.plugin: 'capbench 9.9' is not among environment.plugins",)


UNRELATED_BOUND = """
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


def test_other_installed_plugins_do_not_matter(honest, distribution, tmp_path: Path) -> None:
    distribution("capbench-elsewhere", UNRELATED_BOUND)
    richer = PluginOptions().load()
    assert "elsewhere.facts" in richer.bounds
    found = verify_result(Result.model_validate(honest("capacity")), richer, NullListener(), 0)
    assert (found.verdict, found.findings) == (VerificationStatus.VERIFIED, ())


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
    """A run of a suite, as its record, and the suite's file."""
    file = tmp_path / "tiny.toml"
    file.write_text(TINY)
    options = RunOptions(task="triples", arch="mlp", params="400", budget=4, seeds=2, rates=(0.02,), **FAST)
    store = Store(tmp_path / "suite")
    result = execute(build_request(options, registry), registry, store, NullListener())
    store.close()
    place = find_cell(result, load_suite(str(file)), registry)
    return result.model_copy(update={"suite": place}).model_dump(mode="json"), str(file)


def test_a_record_of_a_suite_must_be_a_run_of_that_suite(of_suite, check) -> None:
    record, file = of_suite
    assert record["suite"] == {"name": "tiny", "version": 3, "tier": 400, "settle": None}
    assert check(record, 0, file).verdict is VerificationStatus.VERIFIED
    moved = {**record, "suite": {**record["suite"], "tier": 600}}
    found = check(moved, 0, file)
    assert found.verdict is VerificationStatus.SUMMARIES_WRONG
    assert found.findings[0].startswith("suite: tiny 3 has another run there: capbench run --task triples")
    nowhere = {**record, "suite": {**record["suite"], "tier": 500}}
    assert check(nowhere, 0, file).findings[0].startswith("suite.tier: tiny 3 has no such pair at 500")


def test_a_run_cannot_claim_a_suite_it_is_not_in(honest, check) -> None:
    forged = honest("matched")
    forged["suite"] = {"name": "smoke", "version": 2, "tier": 400}
    found = check(forged, 0)
    assert found.verdict is VerificationStatus.SUMMARIES_WRONG
    assert "suite: smoke 2 has another run there" in found.findings[0]


def test_an_unknown_suite_says_how_to_name_its_file(of_suite, check) -> None:
    record, file = of_suite
    found = check(record, 0)
    assert found.verdict is VerificationStatus.CANNOT_RUN
    assert "--suite FILE.toml" in found.findings[0]
    later = {**record, "suite": {**record["suite"], "version": 4}}
    found = check(later, 0, file)
    assert found.verdict is VerificationStatus.CANNOT_RUN
    assert "the document is of suite tiny 4, here is tiny 3" in found.findings[0]


def leaf_paths(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Paths of the values of a document that are no list or object; of a list, only its first item."""
    if isinstance(value, dict):
        for key in value:
            yield from leaf_paths(value[key], (*path, key))
    elif isinstance(value, list):
        yield from leaf_paths(value[0], (*path, 0)) if value else ()
    else:
        yield path


def changed(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if value is None:
        return 1
    if isinstance(value, str):
        return value + "x"
    return value + 1 if isinstance(value, int) else value * 1.01 + 1


@pytest.mark.slow
def test_no_field_can_be_changed_unnoticed(honest, check) -> None:
    """A change of any field is refused or found, except in exactly the fields that cannot be checked afterwards."""
    from capbench.errors import BadDocument

    unnoticed = []
    for path in leaf_paths(honest("construct")):
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
        if found.verdict is VerificationStatus.VERIFIED:
            unnoticed.append(name)
    assert unnoticed == [name for names in UNCHECKED.values() for name in names]
