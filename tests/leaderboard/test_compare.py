"""`capbench compare`: who holds more, by how much, how sure, and what it would cost to be surer."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from capbench.documents.colours import architecture_colour
from capbench.documents.result import Result
from capbench.errors import BadSetting
from capbench.measure.options import RunOptions
from capbench.registry.registry import Registry, load_registry
from capbench_leaderboard import compare
from capbench_leaderboard.compare import plan_comparison
from capbench_leaderboard.comparison_picture import comparison_chart
from capbench_leaderboard.ranking.contrast import contrast, sentence
from tests.leaderboard.synthetic import SyntheticRecord


@pytest.fixture(scope="module")
def registry() -> Registry:
    return load_registry()


def result(architecture: str, estimate: float, half: float | None = 0.1, **changes: object) -> Result:
    """A result with an interval from e^-half to e^half times the estimate; without half, open above."""
    made = SyntheticRecord(architecture=architecture, tier=None, capacity=estimate / 4).result()
    high = None if half is None else estimate * math.exp(half)
    low = estimate * math.exp(-(0.1 if half is None else half))
    found = {"estimate": estimate, "ci_low": low, "ci_high": high, "status": "estimated" if half else "at_least"}
    return made.model_copy(update={"capacity": made.capacity.model_copy(update={**found, **changes})})


def test_a_clear_difference_is_stated_with_ratio_interval_and_probability() -> None:
    found = contrast([result("mlp", 100), result("mha", 200)])
    assert (found.more.architecture.name, found.ratio, found.is_sure) == ("mha", 2.0, True)
    deviation = math.hypot(0.1, 0.1) / 1.96
    assert found.low == pytest.approx(2 * math.exp(-1.96 * deviation), rel=0.01)
    assert found.high == pytest.approx(2 * math.exp(1.96 * deviation), rel=0.01)
    text = sentence(found)
    assert text.startswith("On rgr at about 1,007 parameters mha holds 2 times as much as mlp (95 % interval 1.7")
    assert "probability of holding more >99 %" in text
    assert "half the interval would take about 264 more trials, about " in text
    assert text.count("\n") == 0


def test_an_open_question_says_how_many_trials_would_answer_it() -> None:
    found = contrast([result("mlp", 100), result("mha", 108)])
    assert found.probability == pytest.approx(0.857, abs=0.01)
    assert found.times_the_trials == pytest.approx(
        (1.645 * math.hypot(0.1, 0.1) / 1.96 / math.log(1.08)) ** 2, rel=0.01
    )
    assert "whether mha holds more than mlp is open (the ratio is 1.08, 95 % interval 0.9" in sentence(found)
    assert "a probability of 95% would take about 122 more trials" in sentence(found)


def test_equals_are_called_about_equal() -> None:
    assert "would take more than 50 times the 88 trials: they are about equal" in sentence(
        contrast([result("headsplit", 100), result("mha", 100)])
    )


def test_the_answer_holds_for_capacities_with_an_open_end() -> None:
    text = sentence(contrast([result("mha", 300, None), result("mlp", 100)]))
    assert "mha holds at least 2.6 times as much as mlp (95 % interval from 2.6" in text
    lower = contrast([result("mha", 300), result("mlp", 250, None)])
    assert lower.probability < 0.5, "the other may be anywhere above"
    assert "is open (the ratio is at most 1.2, 95 % interval up to 1.3" in sentence(lower)
    both = sentence(contrast([result("mha", 300, None), result("mlp", 300, None)]))
    assert "is open (the ratio is unknown; probability" in both
    assert "interval" not in both
    raised = contrast([result("mha", 300, None, raised_by="n_items"), result("mlp", 100)])
    assert sentence(raised).endswith("; mha may hold more than was asked for: raise task.n_items.")


@pytest.mark.parametrize("order", [1, -1])
def test_of_equal_estimates_the_one_that_may_be_more_is_named_first(order: int) -> None:
    found = contrast([result("mlp", 300), result("mha", 300, None)][::order])
    assert found.more.architecture.name == "mha"
    assert "mha holds more than mlp is open (the ratio is at least 1, 95 % interval from 0.8" in sentence(found)


def test_what_is_not_settled_is_said() -> None:
    found = contrast([result("mha", 200), result("mlp", 100, settled=False)])
    assert "although mlp would hold more with more steps" in sentence(found)


def test_different_sizes_are_both_named() -> None:
    small = result("mlp", 100).model_copy(update={"n_parameters": 500})
    assert "On rgr at 1,007 and 500 parameters" in sentence(contrast([result("mha", 200), small]))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["mha"], "takes two or more architectures, got 1: mha"),
        (["mha", "mlp", "mha"], "takes each architecture once, got 'mha' 2 times"),
        (["mha", "mpl"], "no architecture named 'mpl'; did you mean 'mlp'"),
        (["mha", "aot"], "aot"),
        (["mha", "mlp", "--set", "aot.n_heads=2"], "aot.n_heads"),
        (["mha", "mlp", "--plot", "x.gif"], "--plot takes a file ending in"),
        (["mha", "mlp", "--html", "x.pdf"], "--html writes a page, so it takes a file ending in .html, got 'x.pdf'"),
        (["mha", "mlp", "--html", "nowhere/x.html"], "--html needs an existing folder"),
    ],
)
def test_a_comparison_that_cannot_be_made_is_refused_in_one_line(
    capbench, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    monkeypatch.setattr(compare, "measure", lambda *_: pytest.fail("it trains"))
    done = capbench("compare", *arguments, "--task", "rgr", "--params", "1k")
    assert (done.code, done.out) == (2, "")
    assert message in done.err
    assert len(done.err.strip().splitlines()) == 1


def test_settings_are_for_all_or_for_the_architecture_that_they_name(registry: Registry) -> None:
    options = RunOptions(task="rgr", arch="", set=("task.n_items=32", "mha.n_heads=2", "arch.d_qk=4"))
    requests = [job.request for job in plan_comparison(["mha", "gqa"], options, registry)]
    assert [request.architecture.plugin.n_heads for request in requests] == [2, 4]
    assert {request.architecture.plugin.d_qk for request in requests} == {4}
    assert {request.task.plugin.n_items for request in requests} == {32}
    with pytest.raises(BadSetting):
        plan_comparison(["mha"], options, registry)


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Instead of training, each architecture has a capacity of its own."""
    capacities = {"mha": 200.0, "gqa": 150.0, "mlp": 100.0}

    def found(jobs, *_):
        return [result(name, capacities[name]) for name in (job.request.architecture.plugin.name for job in jobs)]

    monkeypatch.setattr(compare, "measure", found)


def test_a_comparison_is_a_table_a_picture_a_page_and_a_sentence(capbench, measured: None, tmp_path: Path) -> None:
    plot, page = tmp_path / "x.svg", tmp_path / "x.html"
    done = capbench(
        "compare", "mlp", "gqa", "mha", "--task", "rgr", "--params", "1k", "--plot", str(plot), "--html", str(page)
    )
    assert done.code == 0, done.err
    lines = done.out.splitlines()
    assert [line.split()[0] for line in lines[2:5]] == ["1", "2", "3"]
    assert lines[-1].startswith("On rgr at about 1,007 parameters mha holds 1.33 times as much as gqa")
    assert "<svg" in plot.read_text()
    assert "mha holds 1.33 times as much as gqa" in page.read_text()


def test_the_json_has_cells_and_the_sentence_and_nothing_else_is_printed(capbench, measured: None) -> None:
    done = capbench("compare", "mha", "mlp", "--task", "rgr", "--params", "1k", "--json")
    document = json.loads(done.out)
    assert document.keys() == {"cells", "sentence"}
    assert [(cell["architecture"], cell["capacity"]["estimate"], cell["rank"]) for cell in document["cells"]] == [
        ("mha", 200.0, [1, 1]),
        ("mlp", 100.0, [2, 2]),
    ]
    assert "mha holds 2 times as much as mlp" in document["sentence"]


def test_every_architecture_has_its_own_colour_and_intervals_in_the_picture() -> None:
    chart = comparison_chart([result("mha", 200), result("mlp", 100, None)], "edge", "why").to_dict()
    colours = {"mha": architecture_colour("mha"), "mlp": architecture_colour("mlp")}
    for layer in chart["layer"]:
        scale = layer["encoding"]["color"]["scale"]
        assert dict(zip(scale["domain"], scale["range"], strict=True)) == colours
    capacities, shares = (chart["datasets"][chart["layer"][i]["data"]["name"]] for i in (0, 3))
    assert [(row["architecture"], row["is_limit"]) for row in capacities] == [("mha", False), ("mlp", True)]
    assert capacities[1]["high"] == 256, "an open end goes to the last load tried"
    assert all(row["low"] <= row["share"] <= row["high"] for row in shares)
    assert {row["architecture"] for row in shares} == {"mha", "mlp"}
