"""Runs are found again: by name, by tag, by what they are, and the latest one."""

from __future__ import annotations

import json
import re
from contextlib import closing
from pathlib import Path

import pytest

import capbench as capbench_package
from capbench.documents.conditions import check_condition, meets
from capbench.errors import BadSetting, UnknownName
from capbench.store.queries import StoreQuery
from capbench.store.store import Store
from tests.leaderboard.synthetic import SyntheticRecord

SMALL = SyntheticRecord(architecture="mha", capacity=20).result()
LARGE = SyntheticRecord(architecture="mlp", capacity=90).result()


@pytest.mark.parametrize(
    ("condition", "is_met"),
    [
        ("arch.d_model>4", True),
        ("arch.d_model > 8", False),
        ("arch.d_model>=8", True),
        ("8<=arch.d_model", True),
        ("arch.d_model==8", True),
        ("arch.d_model!=8", False),
        ("capacity/n_parameters<1", True),
        ("preset=standard", True),
        ("preset!=standard", False),
        ("solver=sgd", False),
        ("arch.n_heads>4", False),
    ],
)
def test_a_condition_compares_numbers_and_words(condition: str, is_met: bool) -> None:
    check_condition(condition)
    assert meets(SMALL, condition) is is_met


@pytest.mark.parametrize("condition", ["arch.n_heads", ">4", "arch.n_heads>four(", "import os > 3"])
def test_what_is_no_condition_is_refused(condition: str) -> None:
    with pytest.raises(BadSetting):
        check_condition(condition)


def test_runs_are_selected_by_tags_and_conditions(tmp_path: Path) -> None:
    with closing(Store(tmp_path)) as store:
        store.add_run(SMALL.model_copy(update={"tags": ("a", "b")}))
        store.add_run(LARGE.model_copy(update={"tags": ("b",)}))

        def found(**fields: tuple[str, ...]) -> list[str]:
            return [run.result.architecture.name for run in store.find_runs(StoreQuery(**fields))]

        assert sorted(found(tags=("b",))) == ["mha", "mlp"]
        assert found(tags=("a", "b")) == ["mha"]
        assert found(conditions=("capacity>50",)) == ["mlp"]


def test_a_field_that_no_run_has_is_refused_with_the_nearest_one(capbench, own_store: Path) -> None:
    with closing(Store(own_store)) as store:
        assert store.find_runs(StoreQuery(conditions=("arch.n_hedas>4",))) == [], "there is nothing to compare it with"
        store.add_run(SMALL)
    for words in (("results",), ("results", "--json"), ("export", "--runs", str(own_store / "runs.csv"))):
        refused = capbench(*words, "--where", "arch.d_modle>4")
        assert (refused.code, refused.out) == (2, "")
        assert "no stored run has a field 'arch.d_modle'; did you mean 'arch.d_model'?" in refused.err
    with pytest.raises(BadSetting, match="did you mean 'preset'"):
        capbench_package.runs(where=["presett=any"])
    with pytest.raises(BadSetting, match="did you mean 'n_parameters'"):
        capbench_package.runs(where=["capacity>n_parameter"])
    assert capbench("results", "--where", "preset=smoke").out.startswith("no runs")


def test_a_run_is_found_by_its_name_and_the_latest_by_that_word(tmp_path: Path) -> None:
    with closing(Store(tmp_path)) as store:
        with pytest.raises(UnknownName, match="no run with the name 'latest'"):
            store.find_run("latest")
        store.add_run(SMALL.model_copy(update={"name": "narrow"}))
        store.add_run(LARGE)
        assert store.find_run("narrow").run_id == SMALL.run_id
        assert store.find_run("latest").run_id == LARGE.run_id
        assert store.find_run(LARGE.run_id[:5]).run_id == LARGE.run_id


def test_a_run_that_trained_nothing_new_only_gets_its_new_labels(tmp_path: Path) -> None:
    again = SMALL.timing.model_copy(update={"trials_trained": 0, "trials_reused": 44})
    with closing(Store(tmp_path)) as store:
        store.add_run(SMALL.model_copy(update={"name": "first", "tags": ("a",)}))
        store.add_run(SMALL.model_copy(update={"name": "second", "timing": again}))
        kept = store.find_run(SMALL.run_id)
    assert (kept.name, kept.tags) == ("second", ("a",))
    assert kept.timing == SMALL.timing


def test_the_command_line_lists_labels_and_selects_by_them(capbench, untrained, tmp_path: Path) -> None:
    words = ("run", "--task", "rgr", "--arch", "mha", "--preset", "smoke", "--at", "3", "--lr", "0.4")
    assert capbench(*words, "--name", "three", "--tag", "x", "--tag", "y").code == 0
    assert capbench(*words, "--set", "arch.n_heads=8", "--set", "arch.d_qk=2").code == 0
    assert "three" in capbench("results", "--tag", "x").out
    assert "\n1 run" in capbench("results", "--where", "arch.n_heads>4").out
    assert capbench("results", "show", "three", "-q").out.startswith("rgr × mha: ")
    assert capbench("show", "latest", "--json").out == capbench("results", "show", "latest", "--json").out != ""
    page = tmp_path / "latest.html"
    assert capbench("report", "latest", "--out", str(page)).code == 0
    assert "rgr × mha" in page.read_text()
    assert "three" in capbench("results", "--format", "markdown").out
    refused = capbench("results", "--trials", "--tag", "x")
    assert (refused.code, refused.out) == (2, "")
    assert "--tag and --where select runs" in refused.err


def test_stored_runs_and_trials_are_listed_as_latex(capbench, untrained) -> None:
    none = capbench("results", "--format", "latex")
    assert (none.code, none.out, none.err) == (0, "", "no runs\n")
    words = ("run", "--task", "rgr", "--arch", "mha", "--preset", "smoke", "--lr", "0.4")
    document = json.loads(capbench(*words, "--json").out)
    runs, trials = (capbench("results", *more, "--format", "latex").out for more in ((), ("--trials",)))
    assert len(re.findall(rf"^ {document['run_id']} .*\\\\$", runs, re.MULTILINE)) == 1
    stored = json.loads(capbench("results", "--trials", "--json").out)
    assert len(re.findall(r" not held | held ", trials)) == len(stored) >= len(document["trials"])
    assert runs.isascii()
    assert capbench("results", "--json", "--format", "latex").code == 2
