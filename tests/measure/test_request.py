"""Requests other than training for a capacity: constructions, overload, analysis."""

from __future__ import annotations

import json
import sys

import pytest

SMOKE = ("--preset", "smoke")


RATES = """
from typing import ClassVar
from capbench import hookimpl
from capbench_plugins.mlp import Mlp
from capbench_plugins.sgd import Sgd

class Doubled(Mlp):
    name: ClassVar[str] = "doubled"
    def learning_rates(self, proposed):
        return tuple(2 * rate for rate in proposed)

class Tenfold(Sgd):
    name: ClassVar[str] = "tenfold"
    def learning_rates(self, proposed):
        return tuple(10 * rate for rate in proposed)

class Empty(Sgd):
    name: ClassVar[str] = "empty"
    def learning_rates(self, proposed):
        return (0.0,)

@hookimpl
def capbench_architectures():
    return [Doubled]

@hookimpl
def capbench_solvers():
    return [Tenfold, Empty]
"""


def document(capbench, *words: str):
    done = capbench("run", *SMOKE, *words, "--json")
    assert done.code == 0, done.err
    return json.loads(done.out)


@pytest.mark.parametrize(
    ("task", "arch", "bound"),
    [("sequences", "mha", "mahdavi2024.examples"), ("bigrams", "aot", "dana2025.associations")],
)
def test_a_construction_reaches_its_theorem_on_the_command_line(capbench, task: str, arch: str, bound: str) -> None:
    result = document(capbench, "--task", task, "--arch", arch, "--solver", "construct")
    guaranteed = next(b for b in result["bounds"] if b["id"] == bound)
    assert result["capacity"]["status"] == "at_least"
    assert result["capacity"]["estimate"] >= guaranteed["value"]
    assert guaranteed["holds"] is True
    assert (result["protocol"]["dtype"], result["rates"], result["timing"]["lane_steps"]) == ("float64", None, 0)


def test_a_trained_result_shows_guaranteed_constructed_and_trained_side_by_side(capbench) -> None:
    words = ("--task", "sequences", "--arch", "mha")
    result = document(capbench, *words)
    assert result["constructed"]["capacity"]["estimate"] >= 9
    text = capbench("run", *SMOKE, *words).out
    assert "examples guaranteed    constructed    trained" in text
    again = document(capbench, *words)
    assert again["timing"]["trials_trained"] == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--task", "triples", "--arch", "aot"), "construct"),
        (
            ("--task", "sequences", "--arch", "mha", "--at", "500"),
            "construct reaches 9 examples on this pair, got --at 500",
        ),
        (("--task", "bigrams", "--arch", "aot", "--lr", "0.1"), "--lr is for training"),
    ],
)
def test_a_construction_that_cannot_be_made_is_one_clear_line(capbench, words: tuple[str, ...], message: str) -> None:
    got = capbench("run", *SMOKE, *words, "--solver", "construct")
    assert (got.code, got.out, got.err.count("\n")) == (2, "", 1)
    assert message in got.err


def test_overload_reads_the_facts_held_when_asked_for_all(capbench) -> None:
    words = ("--task", "bigrams", "--arch", "aot", "--set", "arch.d_model=2", "--set", "arch.n_heads=1", "--overload")
    result = document(capbench, *words, "--seeds", "3", "--lr", "0.03")
    assert result["capacity"]["kind"] == "overload"
    assert {(t["load"], t["steps"]) for t in result["trials"]} == {(144, result["protocol"]["steps"])}
    for trial in result["trials"]:
        chance = 1 / 12
        held = 144 * (trial["metrics"]["accuracy"] - chance) / (1 - chance)
        assert trial["metrics"]["facts_held"] == pytest.approx(max(0, held), abs=1e-3)
    low, mean, high = (result["capacity"][k] for k in ("ci_low", "estimate", "ci_high"))
    assert low < mean < high < 144
    assert "under overload" in capbench("run", *SMOKE, *words, "--seeds", "3", "--lr", "0.03").out


def test_overload_is_refused_where_a_task_does_not_measure_it(capbench) -> None:
    got = capbench("run", *SMOKE, "--task", "rgr", "--arch", "mha", "--overload")
    assert got.code == 2
    assert "rgr has no reading of facts held under overload" in got.err


def test_analysis_on_request_puts_tensor_ranks_into_the_result(capbench) -> None:
    words = ("--task", "triples", "--arch", "aot", "--at", "20", "--seeds", "1", "--lr", "0.02")
    plain = document(capbench, *words)
    assert "layer_cp_rank_estimate" not in plain["data"]
    analysed = document(capbench, *words, "--analyse")
    assert analysed["data"]["layer_rank_by_value"] <= 8
    assert analysed["data"]["database_rank_lower"] <= analysed["data"]["database_rank_upper"] <= 20
    layer = next(bound for bound in analysed["bounds"] if bound["id"] == "wong2025.layer_rank")
    assert (layer["measured"], layer["holds"]) == (analysed["data"]["layer_rank_lower"], True)
    assert {f"tau_{tau}_rank_lower" for tau in ("0.5", "0.95", "0.99")} <= set(analysed["data"])


def test_the_assumptions_of_the_theorem_are_in_the_result(capbench) -> None:
    result = document(capbench, "--task", "sequences", "--arch", "mha", "--at", "20", "--seeds", "1", "--lr", "0.05")
    shares = {name: result["data"][name] for name in ("context_rank_share", "query_kruskal_share")}
    assert shares == {"context_rank_share": 1.0, "query_kruskal_share": 1.0}
    assert result["data"]["query_kruskal_rank"] >= 1
    assert all(trial["data"] for trial in result["trials"])


def test_analysis_is_refused_where_neither_task_nor_architecture_has_one(capbench) -> None:
    got = capbench("run", *SMOKE, "--task", "dichotomies", "--arch", "perceptron", "--analyse")
    assert (got.code, got.err.count("\n")) == (2, 1)
    assert "dichotomies has no analysis of trained models, nor has perceptron on it" in got.err


def test_an_architecture_tells_of_its_inside_on_request(capbench) -> None:
    words = ("--task", "sequences", "--arch", "mha", "--at", "9", "--seeds", "1")
    trained = document(capbench, *words, "--lr", "0.05", "--analyse")
    assert 0 <= trained["data"]["saturation_share"] <= 1
    assert trained["data"]["query_kruskal_share"] == 1
    written = document(capbench, *words, "--solver", "construct", "--analyse")
    assert written["data"]["saturation_share"] > trained["data"]["saturation_share"]  # saturated on purpose


def test_a_model_that_holds_all_it_was_asked_for_was_not_overloaded(capbench) -> None:
    words = ("--task", "bigrams", "--arch", "aot", "--overload", "--at", "10", "--seeds", "2", "--lr", "0.03")
    capacity = document(capbench, *words)["capacity"]
    assert (capacity["status"], capacity["ci_high"]) == ("at_least", None)


def test_an_architecture_and_then_a_solver_propose_learning_rates(capbench, untrained, tmp_path, monkeypatch) -> None:
    (tmp_path / "own_rates.py").write_text(RATES)
    monkeypatch.delitem(sys.modules, "own_rates", raising=False)
    pair = ("--plugin", str(tmp_path / "own_rates.py"), "--task", "rgr", "--at", "4", "--seeds", "1")

    def rates(*words: str) -> list[float]:
        found: list[float] = document(capbench, *pair, *words)["protocol"]["learning_rates"]
        return found

    usual = rates("--arch", "mlp")
    assert rates("--arch", "doubled") == pytest.approx([2 * rate for rate in usual])
    assert rates("--arch", "doubled", "--solver", "tenfold") == pytest.approx([20 * rate for rate in usual])
    assert rates("--arch", "doubled", "--solver", "tenfold", "--lr", "0.5") == [0.5]
    refused = capbench("run", *SMOKE, *pair, "--arch", "mlp", "--solver", "empty")
    assert (refused.code, refused.out) == (2, "")
    assert "empty must propose learning rates above 0" in refused.err
    sys.modules.pop("own_rates", None)
