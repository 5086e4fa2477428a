"""Suites: files that declare them, a plan that is the same on every machine, records that a second call keeps."""

from __future__ import annotations

import itertools
import json
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest

from capbench.documents.strict_json import read_result
from capbench.documents.text import as_json_text
from capbench.engine.trials import Setup, Training, TrialSpec
from capbench.errors import BadDocument, BadSetting, UnknownName
from capbench.measure.options import RunOptions
from capbench.measure.request import build_request
from capbench.registry.registry import load_registry
from capbench.studies import jobs
from capbench.studies.estimate import estimate_run
from capbench.studies.records import read_missing
from capbench.studies.suite import Suite, load_suite, suite_names
from capbench.studies.suite_run import SuitePlan, make_plan, parse_shard
from capbench_tasks.rgr import Rgr

TIERS = (128, 256, 512, 1024, 2048)

TINY = """
name = "tiny"
version = 3
preset = "smoke"
tasks = ["triples"]
architectures = ["mha", "mlp"]
tiers = [400]
seeds = 2
budget = 5
ci_width = 0.5
"""
MHA_FITS = """
[[rules]]
architectures = ["mha"]
set = ["arch.d_model=8"]
"""


@pytest.fixture(scope="module")
def standard() -> SuitePlan:
    return make_plan(load_suite("standard"), load_registry())


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "tiny.toml"
    path.write_text(TINY + MHA_FITS)
    return path


def declared(tmp_path: Path, text: str) -> Suite:
    path = tmp_path / "own.toml"
    path.write_text(text)
    return load_suite(str(path))


def test_every_built_in_suite_is_valid_and_named_like_its_file() -> None:
    assert {"smoke", "standard", "paper"} <= set(suite_names())
    for name in suite_names():
        assert load_suite(name).name == name


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ('seedz = 3\nname = "own"', r"own\.toml: seedz: no field named 'seedz'; did you mean 'seeds'\?"),
        ("name = 7", r"own\.toml: name: .*string, got 7"),
        ('name = "own"\npreset = "smoke', r"own\.toml: must be a readable TOML file: "),
        ("", r"own\.toml: name: is required; add it"),
        ('name = "own"\n[[rules]]\ntask = ["rgr"]', r"rules\.0\.task: no field named 'task'; did you mean 'tasks'\?"),
        ('name = "own"\n[[rules]]\ntiers = [2000]', r"names the tier 2000; the suite has \[1000\]"),
        (
            'name = "own"\n[[rules]]\narchitectures = ["mlp"]\nset = ["task.n_items=8"]',
            r"rules\.0: a rule for some architectures may only set arch\.FIELD=VALUE",
        ),
        ('name = "own"\n[[rules]]\narchitectures = ["mlp"]\nsteps = 5', "must be the same for all"),
    ],
)
def test_a_mistake_in_a_suite_is_one_line_with_file_field_and_fix(tmp_path: Path, change: str, message: str) -> None:
    with pytest.raises(BadDocument, match=message):
        declared(tmp_path, "version = 1\ntiers = [1000]\n" + change)


def test_a_suite_that_is_not_there_is_refused_by_name_and_by_path(tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match="no suite named 'standart'; did you mean 'standard'"):
        load_suite("standart")
    with pytest.raises(BadDocument, match=r"nowhere\.toml: must be a readable TOML file"):
        load_suite(str(tmp_path / "nowhere.toml"))


def test_the_later_rule_counts_and_the_fields_of_all_rules_are_set(tmp_path: Path) -> None:
    rules = '[[rules]]\nsteps = 7\nset = ["task.n_values=6"]\n[[rules]]\ntasks = ["triples"]\nsteps = 9\n'
    plan = make_plan(declared(tmp_path, TINY + MHA_FITS + rules), load_registry())
    assert {cell.request.options.steps for cell in plan.cells} == {9}
    assert {cell.request.task.plugin.n_values for cell in plan.cells} == {6}


def test_a_wrong_field_in_a_rule_names_the_suite_and_the_pair(tmp_path: Path) -> None:
    suite = declared(tmp_path, TINY + '[[rules]]\nset = ["task.n_items=3"]\n')
    with pytest.raises(UnknownName, match="suite tiny, triples × mha at 400: no field of triples named 'n_items'"):
        make_plan(suite, load_registry())


def test_the_standard_suite_has_every_fitting_pair_at_every_tier_or_a_reason(standard: SuitePlan) -> None:
    cells = {planned.name for planned in standard.cells}
    missing = {(m.task, m.architecture, m.tier): m.reason for m in standard.missing}
    fitting = {(task, name) for task, name, _ in cells | set(missing)}
    assert ("bigrams", "aot") in fitting
    assert ("rgr", "aot") not in fitting, "a pair that does not fit at all has no cell"
    assert cells | set(missing) == {(*setup, tier) for setup in fitting for tier in TIERS}
    assert not cells & set(missing)
    assert "has no shape within 5%" in missing["sequences", "gated_mlp", 256]
    assert missing["rgr", "mlp", 2048].startswith("left out: ")
    assert all(abs(p.request.n_parameters - p.cell.tier) <= 0.05 * p.cell.tier for p in standard.cells)


def test_the_standard_suite_compares_attention_with_and_without_one_head_width_on_rgr(standard: SuitePlan) -> None:
    cells = {planned.name for planned in standard.cells}
    assert {("rgr", name, tier) for name in ("headsplit", "mha") for tier in TIERS} <= cells


@pytest.mark.parametrize("name", ["standard", "paper"])
def test_a_published_suite_has_one_task_per_ladder_at_sizes_a_factor_of_two_apart(name: str) -> None:
    suite = load_suite(name)
    assert len(suite.tiers) >= 5
    assert {high / low for low, high in itertools.pairwise(suite.tiers)} == {2}
    assert not any(rule.tiers and not rule.skip for rule in suite.rules), "a rule changes a task from tier to tier"
    assert not any(rule.rates or rule.steps for rule in suite.rules), "a rule chooses what settling chooses"
    assert not any(rule.architectures and not rule.skip for rule in suite.rules), "a rule favours an architecture"
    assert suite.settle_share == 0.05


@pytest.mark.parametrize("name", ["standard", "paper"])
def test_a_task_of_a_published_suite_can_ask_for_more_bits_than_its_largest_models_have(name: str) -> None:
    suite, registry = load_suite(name), load_registry()
    for task in suite.tasks:
        sizes = tuple(text for rule in suite.rules if task in rule.tasks for text in rule.set)
        plugin = build_request(RunOptions(task=task, arch="mlp", preset=suite.preset, set=sizes), registry).task.plugin
        if isinstance(plugin, Rgr):
            pairs = plugin.n_items * (plugin.n_items - 1)
            bits = math.log2(math.comb(pairs, plugin.max_load))
        else:
            bits = plugin.max_load * math.log2(plugin.signature.n_classes)
        assert bits > 1.9 * max(suite.tiers), task


def test_architectures_of_a_task_are_compared_on_the_same_task_and_training_at_every_tier(standard: SuitePlan) -> None:
    conditions: dict[str, set[object]] = {}
    for planned in standard.cells:
        task, used = planned.request.task.plugin, planned.request.protocol
        same = (task, used.learning_rates, used.steps, used.seeds, used.budget, used.ci_width, used.preset)
        conditions.setdefault(planned.task, set()).add(same)
    assert {task: len(each) for task, each in conditions.items()} == {"bigrams": 1, "rgr": 1, "sequences": 1}


def test_a_seed_means_the_same_facts_for_every_architecture_of_a_suite(standard: SuitePlan) -> None:
    seeds: dict[tuple[str, int], set[int]] = {}
    for planned in standard.cells:
        r = planned.request
        setup = Setup(r.task, r.architecture, r.solver, Training(r.task.plugin.criterion, 10))
        seeds.setdefault((planned.task, planned.cell.tier), set()).add(setup.data_seed(TrialSpec(40, 3, 0.1)))
    assert {len(each) for each in seeds.values()} == {1}


def test_suites_settle_unless_they_are_for_tests_or_say_no(standard: SuitePlan, tmp_path: Path) -> None:
    assert {(planned.cell.settle, planned.request.options.settle) for planned in standard.cells} == {(0.05, 0.05)}
    assert load_suite("smoke").settle_share is None
    assert declared(tmp_path, 'settle = "2%"\n' + TINY).settle_share == 0.02
    quick = TINY.replace('"smoke"', '"quick"')
    assert declared(tmp_path, quick).settle_share == 0.05
    assert declared(tmp_path, "settle = false\n" + quick).settle_share is None


def test_a_suite_that_is_run_without_settling_still_says_that_it_asks_for_it(standard: SuitePlan) -> None:
    (planned,) = replace(standard, cells=standard.cells[:1]).settled_to(None).cells
    assert (planned.cell.settle, planned.request.options.settle) == (0.05, None)


SETTLED = 'settle = "50%"\n' + TINY.replace('["mha", "mlp"]', '["mlp"]') + "[[rules]]\nsteps = 30\nrates = [0.02]\n"


def test_a_settled_record_says_so_and_verifies_and_no_settle_leaves_it_out(capbench, tiny: Path) -> None:
    tiny.write_text(SETTLED)
    assert "--settle 0.5" in capbench("suite", str(tiny), "--dry-run").out
    assert "--settle" not in capbench("suite", str(tiny), "--dry-run", "--no-settle").out
    assert capbench("suite", str(tiny)).code == 0
    (path,) = Path("records/tiny/triples").iterdir()
    record = read_result(path)
    assert record.suite is not None
    assert (record.suite.settle, record.capacity.settled is not None, record.selection is not None) == (0.5, True, True)
    verify = ("leaderboard", "verify", str(path), "--suite", str(tiny), "--sample", "1")
    assert capbench(*verify).code == 0
    assert record.selection is not None
    forged = [t.model_copy(update={"metrics": {**t.metrics, "bits": -7.0}}) for t in record.selection.trials]
    selection = record.selection.model_copy(update={"trials": tuple(forged)})
    path.write_text(as_json_text(record.model_copy(update={"selection": selection})))
    assert capbench(*verify).code == 1
    lax = record.model_copy(update={"suite": record.suite.model_copy(update={"settle": None})})
    path.write_text(as_json_text(lax))
    assert "suite.settle: stated None, the suite has 0.5" in capbench(*verify).out
    assert capbench("suite", str(tiny), "--no-settle", "--out", "plain").code == 0
    (path,) = Path("plain/tiny/triples").iterdir()
    plain = read_result(path)
    assert plain.suite == record.suite
    assert (plain.capacity.settled, plain.selection) == (None, None)


def test_shards_are_disjoint_complete_and_balanced(standard: SuitePlan) -> None:
    shards = [standard.shard(part, 7) for part in range(1, 8)]
    names = [planned.name for shard in shards for planned in shard.cells]
    assert sorted(names) == sorted(planned.name for planned in standard.cells)
    assert len(set(names)) == len(names)
    for tier in TIERS:
        shares = [sum(planned.cell.tier == tier for planned in shard.cells) for shard in shards]
        assert max(shares) - min(shares) <= 1


def test_the_plan_is_the_same_whatever_the_order_in_which_plugins_were_found(tiny: Path) -> None:
    found = load_registry()
    reordered = replace(
        found,
        tasks=dict(reversed(found.tasks.items())),
        architectures=dict(reversed(found.architectures.items())),
    )
    suite = load_suite("smoke").model_copy(update={"tasks": (), "architectures": ()})
    plans = [make_plan(suite, registry) for registry in (found, reordered)]
    assert [p.name for p in plans[0].cells] == [p.name for p in plans[1].cells]
    assert plans[0].missing == plans[1].missing


@pytest.mark.parametrize("text", ["0/4", "5/4", "4", "1/0", "a/b", "-1/3", "1/2/3", ""])
def test_a_shard_that_is_no_part_is_refused(text: str) -> None:
    with pytest.raises(BadSetting, match="--shard takes PART/PARTS such as 3/16"):
        parse_shard(text)
    assert parse_shard("3/16") == (3, 16)


def test_a_suite_writes_one_record_per_cell_and_a_table(capbench, tiny: Path) -> None:
    done = capbench("suite", str(tiny))
    assert done.code == 0, done.err
    assert "400 parameters" in done.out
    assert "[2/2] triples × mlp at 400: " in done.err
    paths = sorted(Path("records/tiny/triples").iterdir())
    assert [path.name.split("-")[0] for path in paths] == ["mha", "mlp"]
    for path in paths:
        record = read_result(path)
        assert record.suite is not None
        assert (record.suite.name, record.suite.version, record.suite.tier) == ("tiny", 3, 400)
        assert path.name == f"{record.architecture.name}-{record.n_parameters}-{record.run_id}.json"
        assert record.trials
        assert {trial.seed for trial in record.trials} <= {0, 1}
    assert read_missing(Path("records/tiny/missing.json")) == []


def test_the_trials_of_a_cell_are_those_of_the_command_in_its_record(capbench, tiny: Path) -> None:
    assert capbench("suite", str(tiny), "--archs", "mlp").code == 0
    (path,) = Path("records/tiny/triples").iterdir()
    record = read_result(path)
    assert "--budget 5" in record.command
    alone = json.loads(capbench(*record.command.split()[1:], "--json").out)
    assert alone["run_id"] == record.run_id
    assert alone["timing"]["trials_trained"] == 0
    assert [trial["key"] for trial in alone["trials"]] == [trial.key for trial in record.trials]


def test_a_second_call_trains_nothing_and_changes_no_byte(capbench, tiny: Path) -> None:
    capbench("suite", str(tiny))
    before = {path: path.read_bytes() for path in Path("records").rglob("*.json")}
    again = capbench("suite", str(tiny))
    assert "(stored)" in again.err
    assert {path: path.read_bytes() for path in Path("records").rglob("*.json")} == before


def test_records_that_were_lost_come_back_from_the_store_with_their_first_timing(capbench, tiny: Path) -> None:
    capbench("suite", str(tiny))
    before = {path: path.read_bytes() for path in Path("records").rglob("*.json")}
    for path in before:
        path.unlink()
    assert capbench("suite", str(tiny)).code == 0
    assert {path: path.read_bytes() for path in Path("records").rglob("*.json")} == before


def test_shards_together_write_what_the_whole_writes(capbench, tiny: Path) -> None:
    assert capbench("suite", str(tiny), "--out", "whole").code == 0
    for part in ("1/2", "2/2"):
        assert capbench("suite", str(tiny), "--shard", part, "--out", "parts").code == 0
    whole, parts = (
        {path.relative_to(root): path.read_bytes() for path in Path(root).rglob("*.json")}
        for root in ("whole", "parts")
    )
    assert whole == parts


def test_a_dry_run_prints_the_plan_and_touches_nothing(capbench, tiny: Path) -> None:
    done = capbench("suite", str(tiny), "--dry-run")
    assert "capbench run --task triples --arch mlp --preset smoke" in done.out
    assert "2 runs" in done.out
    assert re.search(r"triples × mlp at [\d,]+ +[\d,]+ .* [\d.]+ MB +unknown", done.out), "memory, and no time yet"
    assert not Path("records").exists()


def test_a_dry_run_does_without_the_memory_of_a_pair_that_cannot_be_trained(
    capbench, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> object:
        raise RuntimeError("broken")

    monkeypatch.setattr("capbench.studies.estimate.memory_need", refuse)
    done = capbench("suite", str(tiny), "--dry-run")
    assert done.code == 0
    assert re.search(r"triples × mlp at .* unknown +unknown", done.out)


@pytest.mark.slow
def test_the_largest_runs_of_the_paper_suite_are_planned_without_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shapes build, and memory is counted: measuring it would not fit where nothing is free."""
    monkeypatch.setattr("capbench.engine.memory.free_memory", lambda _: 0)
    registry, suite = load_registry(), load_suite("paper").model_copy(update={"tiers": (16384,)})
    plan = make_plan(suite, registry, ["sequences", "triples"], ["mha", "mlp", "moe", "gla"])
    estimates = [estimate_run(job, registry, None) for job in plan.largest_jobs]
    assert len(estimates) == 8
    assert all(each.bytes_per_lane for each in estimates)
    assert all(abs(each.n_parameters - 16384) <= 0.05 * 16384 for each in estimates)


def test_a_new_result_replaces_the_old_record_of_its_cell(capbench, tiny: Path) -> None:
    capbench("suite", str(tiny), "--archs", "mlp")
    (old,) = Path("records/tiny/triples").iterdir()
    tiny.write_text(tiny.read_text().replace("budget = 5", "budget = 6"))
    capbench("suite", str(tiny), "--archs", "mlp")
    (new,) = Path("records/tiny/triples").iterdir()
    assert new != old


BROKEN = """
import torch
from typing import ClassVar
from capbench import Architecture, Lookup, UnsupportedSignature, hookimpl


class Broken(Architecture):
    "Builds, and then cannot be trained."
    name: ClassVar[str] = "broken"
    width: int = 8

    def build(self, signature):
        if not isinstance(signature, Lookup):
            raise UnsupportedSignature("lookup tasks only")
        return Module(self.width)

    def widths(self, signature):
        return ("width",)


class Module(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.w = torch.nn.Parameter(torch.zeros(width))

    def forward(self, tokens):
        raise RuntimeError("this never works")


@hookimpl
def capbench_architectures():
    return [Broken]
"""


def test_one_pairs_failure_is_recorded_and_does_not_stop_the_others(capbench, distribution, tiny: Path) -> None:
    distribution("capbench-broken", BROKEN)
    tiny.write_text(TINY.replace('["mha", "mlp"]', '["broken", "mlp"]'))
    done = capbench("suite", str(tiny))
    assert done.code == 1
    assert "error: 1 of 2 runs failed; the reasons are in records/tiny/missing.json" in done.err
    (row,) = read_missing(Path("records/tiny/missing.json"))
    assert (row.task, row.architecture, row.tier) == ("triples", "broken", 400)
    assert "this never works" in row.reason
    assert [path.name[:3] for path in Path("records/tiny/triples").iterdir()] == ["mlp"]
    assert "missing: triples × broken at 400: failed: " in done.out
    # A call that does not cover the cell keeps its row.
    assert capbench("suite", str(tiny), "--archs", "mlp").code == 0
    assert read_missing(Path("records/tiny/missing.json")) == [row]


def test_a_tier_out_of_reach_is_missing_with_the_reason(capbench, tiny: Path) -> None:
    tiny.write_text(TINY.replace("[400]", "[400, 20]").replace('["mha", "mlp"]', '["mlp"]'))
    done = capbench("suite", str(tiny))
    assert done.code == 0, done.err
    (row,) = read_missing(Path("records/tiny/missing.json"))
    assert (row.tier, row.reason[:42]) == (20, "mlp cannot come within 5% of 20 parameters")
    assert "missing" in done.out


STATES = """
name = "states"
version = 1
preset = "smoke"
unit = "state"
tasks = ["recall", "triples"]
architectures = ["linear_attention", "mha", "mlp"]
tiers = [80, 40]
seeds = 2
budget = 4
ci_width = 0.5

[[rules]]
tasks = ["triples"]
skip = "its facts are in the weights"

[[rules]]
architectures = ["linear_attention"]
tiers = [40]
set = ["arch.n_heads=1", "arch.d_qk=8", "arch.d_vo=4"]

[[rules]]
architectures = ["mha"]
set = ["arch.n_heads=1", "arch.d_qk=8", "arch.d_vo=8"]
"""


def test_tiers_may_count_the_elements_of_the_state_which_rules_set(capbench, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    suite = declared(tmp_path, STATES)
    plan = make_plan(suite, load_registry(), ["recall"])
    assert {planned.name for planned in plan.cells} == {("recall", "linear_attention", 40), ("recall", "mha", 80)}
    assert all(planned.request.options.params is None for planned in plan.cells)
    reasons = {(row.architecture, row.tier): row.reason for row in plan.missing}
    assert reasons["mha", 40].endswith("within 5% of 40: it has 80 elements"), "five positions of sixteen numbers"
    assert reasons["mlp", 80] == "mlp does not say how large its state is"
    assert capbench("suite", "own.toml", "--tasks", "recall", "--archs", "linear_attention").code == 0
    (path,) = Path("records/states/recall").iterdir()
    record = read_result(path)
    assert record.suite is not None
    assert (record.suite.unit, record.suite.tier, record.architecture.state_size) == ("state", 40, 40)
    assert capbench("leaderboard", "verify", str(path), "--suite", "own.toml", "--sample", "1").code == 0


def test_a_cell_counted_in_parameters_is_written_as_before_units(standard: SuitePlan) -> None:
    assert "unit" not in standard.cells[0].cell.model_dump()


def test_an_interrupted_suite_ends_with_130_and_says_how_to_continue(
    capbench, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = []

    def interrupt_second(*arguments: object) -> object:
        runs.append(arguments)
        if len(runs) > 1:
            raise KeyboardInterrupt
        return original(*arguments)

    original = jobs.execute_jointly
    monkeypatch.setattr(jobs, "execute_jointly", interrupt_second)
    done = capbench("suite", str(tiny))
    assert done.code == 130
    assert "interrupted in triples × mlp at 400, 1 of 2 runs done" in done.err
    assert "the same command continues" in done.err
    assert len(list(Path("records/tiny/triples").iterdir())) == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "takes the name of a suite (paper, recall, smoke, standard) or a .toml file"),
        (("smoke", "--tasks", "rgx"), "no task of this suite named 'rgx'; did you mean 'rgr'?"),
        (("smoke", "--archs", "aot"), "no architecture of this suite named 'aot'"),
        (("smoke", "--shard", "9/8"), "--shard takes PART/PARTS"),
        (("smoke", "--device", "cuda:99", "--archs", "mlp"), "cuda"),
    ],
)
def test_mistakes_on_the_command_line_end_with_2(capbench, tmp_path, monkeypatch, words, message) -> None:
    monkeypatch.chdir(tmp_path)
    done = capbench("suite", *words)
    assert done.code == 2, done.err
    assert message in done.err


def test_the_suites_are_listed_with_version_and_sizes(capbench) -> None:
    done = capbench("suite", "--list")
    assert "standard" in done.out
    assert "128, 256, 512, 1,024, 2,048" in done.out
