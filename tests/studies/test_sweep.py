"""Sweeps: every point of a grid, resumable, with failed points shown; tables, pictures, and a fit of them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from capbench.documents.result import TrialStatus
from capbench.errors import BadDocument, BadSetting
from capbench.report.study_text import sweep_text
from capbench.studies.differences import differences
from capbench.studies.jobs import FinishedJob, in_order
from capbench.studies.sweep import Point, parse_grid, read_sweep
from tests.leaderboard.synthetic import SyntheticRecord

AT = ("--task", "rgr", "--arch", "mha", "--preset", "smoke", "--at", "12", "--seeds", "2", "--lr", "0.4")


def test_every_point_of_the_grid_is_a_row_and_a_second_call_trains_nothing(capbench) -> None:
    words = ("sweep", *AT, "--grid", "arch.n_heads=1,2", "--grid", "arch.d_qk=2,4")
    done = capbench(*words)
    assert done.code == 0, done.err
    assert len(re.findall(r"^[12] +[24] +\d+% of trials", done.out, re.MULTILINE)) == 4
    assert "[4/4] arch.n_heads=2 arch.d_qk=4: " in done.err
    again = capbench(*words)
    assert again.out == done.out
    assert again.err.count("(stored)") == 4


def test_points_are_the_runs_of_the_same_options(capbench) -> None:
    results = json.loads(capbench("sweep", *AT, "--grid", "arch.n_heads=1,2", "--json").out)
    assert [r["architecture"]["params"]["n_heads"] for r in results] == [1, 2]
    alone = json.loads(capbench("run", *AT, "--set", "arch.n_heads=2", "--json").out)
    assert alone["run_id"] == results[1]["run_id"]
    assert alone["timing"]["trials_trained"] == 0


def test_loads_and_counts_can_be_swept_too(capbench) -> None:
    words = ("sweep", *AT, "--grid", "at=8,16", "--grid", "params=400,900", "--json")
    results = json.loads(capbench(*words).out)
    assert [r["protocol"]["at"] for r in results] == [8, 8, 16, 16]
    assert [round(r["n_parameters"], -2) for r in results] == [400, 900, 400, 900]


def test_joined_fields_move_together(capbench) -> None:
    words = ("sweep", *AT, "--grid", "arch.n_heads+arch.d_qk=2,4", "--grid", "at+task.n_items=10,12")
    done = capbench(*words, "--json")
    results = json.loads(done.out)
    got = [
        (r["architecture"]["params"]["n_heads"], r["architecture"]["params"]["d_qk"], r["protocol"]["at"])
        for r in results
    ]
    assert got == [(2, 2, 10), (2, 2, 12), (4, 4, 10), (4, 4, 12)]
    assert [r["task"]["params"]["n_items"] for r in results] == [10, 12, 10, 12]
    assert "arch.n_heads+arch.d_qk=4 at+task.n_items=12: " in done.err


def test_an_impossible_point_is_shown_with_the_reason_and_the_others_are_run(capbench) -> None:
    done = capbench("sweep", *AT, "--grid", "task.n_items=3,24")
    assert done.code == 1
    assert re.search(r"^3 +failed", done.out, re.MULTILINE)
    assert re.search(r"^24 +\d+% of trials", done.out, re.MULTILINE)
    assert "failed: task.n_items=3: rgr has 1 to 3 edges at these sizes, got --at 12" in done.out
    assert "error: 1 of 2 points failed" in done.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["arch.n_heads=1,0"], "mha.n_heads: Input should be greater than or equal to 1, got 0"),
        (["arch.heads=1,2"], "no field of mha named 'heads'; did you mean 'n_heads'?"),
        (["arch.n_heads=1,two"], "mha.n_heads: Input should be a valid integer"),
        (["at=12,none"], "at takes whole numbers from 1, got 'none'"),
        (["params=1k,big"], "--params takes a count such as 4096, 10k or 1.5M, got 'big'"),
        (["task.n_items=3,4"], "none of the 2 points can be set up; the first: rgr has 1 to 3 edges"),
    ],
)
def test_a_mistake_in_a_grid_is_refused_before_anything_is_trained(
    words: list[str], message: str, capbench, own_store: Path
) -> None:
    done = capbench("sweep", *AT, *(part for word in words for part in ("--grid", word)))
    assert (done.code, done.out) == (2, "")
    assert message in done.err
    assert not own_store.exists()


def test_a_file_declares_a_sweep_and_typed_options_count_more(capbench, tmp_path: Path) -> None:
    path = tmp_path / "heads.toml"
    path.write_text(
        'task = "rgr"\narch = "mha"\npreset = "smoke"\nat = 12\nseeds = 1\nrates = [0.4]\n'
        'set = ["arch.d_qk=4"]\n[grid]\n"arch.n_heads" = [1, 2]\n"task.graph" = ["random", "hubs"]\n'
    )
    results = json.loads(capbench("sweep", str(path), "--at", "10", "--json").out)
    got = [(r["architecture"]["params"]["n_heads"], r["task"]["params"]["graph"]) for r in results]
    assert got == [(1, "random"), (1, "hubs"), (2, "random"), (2, "hubs")]
    assert {r["protocol"]["at"] for r in results} == {10}
    assert {r["architecture"]["params"]["d_qk"] for r in results} == {4}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('task = "rgr"', "own.toml: arch: is required"),
        ('task = "rgr"\narch = "mha"\ngird = 3', "no field named 'gird'; did you mean 'grid'"),
        ('task = "rgr"\narch = "mha"\n[grid]\nn_heads = [1]', "--grid takes task.FIELD=…"),
        ('task = "rgr"\narch = "mha"\n[grid]\n"arch.n_heads" = []', "one or more different values, got none"),
    ],
)
def test_a_mistake_in_a_file_is_one_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "own.toml"
    path.write_text(text)
    with pytest.raises((BadDocument, BadSetting), match=re.escape(message)):
        read_sweep(path)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "a sweep has 1 to 10,000 points, got 0"),
        (["n_heads=1,2"], "got 'n_heads'"),
        (["arch.n_heads"], "one or more different values, got none"),
        (["arch.n_heads=1,1"], "one or more different values, got 1, 1"),
        (["arch.n_heads=1", "arch.n_heads=2"], "each name once"),
        (["arch.n_heads+arch.n_heads=1"], "each field once, got 'arch.n_heads' 2 times"),
        (["arch.n_heads+heads=1"], "got 'heads'"),
        (["arch.n_heads=1", "arch.d_qk+arch.n_heads=2"], "each field once"),
        (["arch.x=[1"], "or a JSON list"),
        ([f"arch.x{i}=1,2" for i in range(14)], "got 16,384"),
    ],
)
def test_an_invalid_grid_is_refused(words: list[str], message: str) -> None:
    with pytest.raises(BadSetting, match=re.escape(message)):
        parse_grid(words)


def test_values_with_commas_are_given_as_a_json_list() -> None:
    assert parse_grid(['task.vectors=[[[1, 0]], "a,b", 3]']) == {"task.vectors": ("[[1, 0]]", "a,b", "3")}


@pytest.mark.parametrize("ending", ["svg", "png", "html"])
def test_one_field_is_drawn_as_a_line_and_two_as_a_heat_map(capbench, tmp_path: Path, ending: str) -> None:
    line, heat = tmp_path / f"line.{ending}", tmp_path / f"heat.{ending}"
    words = ("sweep", *AT, "--grid", "arch.n_heads=1,2")
    assert capbench(*words, "--plot", str(line)).code == 0
    assert capbench(*words, "--grid", "task.graph=random,hubs", "--plot", str(heat)).code == 0
    assert len(line.read_bytes()) > 2000
    if ending == "svg":
        assert "share of trials that hold" in line.read_text()
        assert "rgr × mha" in line.read_text()
        assert "graph" in heat.read_text()
        assert "hubs" in heat.read_text()


def test_what_cannot_be_drawn_is_refused_before_training(capbench, tmp_path: Path) -> None:
    grids = ("--grid", "arch.n_heads=1,2", "--grid", "arch.d_qk=2,4", "--grid", "at=8,9")
    done = capbench("sweep", *AT, *grids, "--plot", str(tmp_path / "x.svg"))
    assert done.code == 2
    assert "--plot takes a grid of one or two fields, got 3" in done.err
    assert "trials" not in done.err


def test_without_a_file_a_pair_and_a_grid_are_needed(capbench) -> None:
    assert "takes a .toml file, or --task and --arch" in capbench("sweep", "--grid", "arch.n_heads=1").err
    assert "a sweep has 1 to 10,000 points" in capbench("sweep", *AT).err


def test_a_stored_sweep_can_be_fitted_by_the_command_it_names(capbench) -> None:
    words = ("sweep", "--task", "triples", "--arch", "mlp", "--preset", "smoke", "--overload", "--seeds", "2")
    grid = ("--set", "task.n_keys=16", "--set", "task.n_queries=16", "--steps", "60", "--lr", "0.03")
    done = capbench(*words, *grid, "--grid", "arch.d_mlp=1,2,3,5")
    assert done.code == 0, done.err
    (command,) = re.findall(r"capbench (fit --runs \S+ --x arch\.d_mlp --y capacity)", done.out)
    fitted = capbench(*command.split())
    assert fitted.code == 0, fitted.err
    assert "predicts best" in fitted.out


def test_fields_that_move_together_may_have_different_values(capbench) -> None:
    words = (
        "sweep",
        "--preset",
        "smoke",
        "--task",
        "rgr",
        "--arch",
        "mha",
        "--seeds",
        "1",
        "--steps",
        "25",
        "--lr",
        "0.1",
        "--json",
    )
    done = capbench(*words, "--grid", "task.n_items+task.d_item+at=[[8,2,6],[16,4,10]]")
    assert done.code == 0, done.err
    found = [
        (r["task"]["params"]["n_items"], r["task"]["params"]["d_item"], r["protocol"]["at"])
        for r in json.loads(done.out)
    ]
    assert found == [(8, 2, 6), (16, 4, 10)]
    wrong = capbench(*words, "--grid", "task.n_items+task.d_item=[[8,2,3]]")
    assert "takes one value or a list of 2, got [8, 2, 3]" in wrong.out + wrong.err


def test_jobs_that_finish_in_any_order_are_returned_in_the_given_order() -> None:
    seen = []
    finished = (FinishedJob(index, None, None, "", 0.0) for index in (2, 0, 1, 3))

    def watched():
        for each in finished:
            yield each
            seen.append(each.index)

    assert [(each.index, list(seen)) for each in in_order(watched())] == [
        (0, [2]),
        (1, [2, 0]),
        (2, [2, 0]),
        (3, [2, 0, 1]),
    ]


def test_several_architectures_are_one_study_with_one_picture_and_their_ratios(
    capbench, untrained, tmp_path: Path
) -> None:
    picture = tmp_path / "heads.svg"
    words = ("--task", "triples", "--arch", "mha,relu_attention", "--preset", "smoke", "--grid", "arch.n_heads=1,4")
    done = capbench("sweep", *words, "--plot", str(picture))
    assert done.code == 0, done.err
    assert len(re.findall(r"^(?:mha|relu_attention) +[14] +\d", done.out, re.MULTILINE)) == 4
    assert "capacity (triples)" in done.out
    assert len(re.findall(r"^[14] +relu_attention / mha +\d\.\d\d +\d\.\d\d to \d", done.out, re.MULTILINE)) == 2
    drawn = picture.read_text()
    assert ">mha<" in drawn
    assert ">relu_attention<" in drawn


def test_the_tables_of_a_sweep_are_printed_for_documents(capbench, untrained) -> None:
    words = ("sweep", "--task", "rgr", "--arch", "mha,mlp", "--preset", "smoke", "--at", "4", "--seeds", "2")
    markdown, latex = (capbench(*words, "--format", layout).out for layout in ("markdown", "latex"))
    assert markdown.startswith("| arch")
    assert "| mlp − mha" in markdown
    assert latex.count("\\toprule") == 2
    assert "\\%" in latex
    assert latex.isascii(), "pdflatex refuses many other signs"
    alone = capbench(*words, "--arch", "mha", "--grid", "arch.n_heads=1,2", "--format", "latex")
    assert (alone.code, alone.out.count("\\toprule")) == (0, 1), alone.err


def test_a_dry_run_says_what_would_be_trained_and_writes_nothing(capbench, own_store: Path) -> None:
    words = ("--task", "rgr", "--arch", "mha", "--preset", "smoke", "--lr", "0.4")
    run = capbench("run", *words, "--at", "12", "--seeds", "3", "--dry-run")
    assert run.code == 0, run.err
    assert re.search(r"^rgr × mha +514 +3 +1 +3 +\d+ +(?:yes|no) +[\d.]+ MB +unknown$", run.out, re.MULTILINE)
    sweep = capbench("sweep", *words, "--grid", "arch.n_heads=1,2", "--dry-run")
    assert len(re.findall(r"^arch.n_heads=[12] ", sweep.out, re.MULTILINE)) == 2
    told = json.loads(capbench("run", *words, "--at", "12", "--seeds", "3", "--dry-run", "--json").out)
    assert (told["run"], told["n_parameters"], told["n_first"], told["seconds"]) == ("rgr × mha", 514, 3, None)
    listed = json.loads(capbench("sweep", *words, "--grid", "arch.n_heads=1,2", "--dry-run", "--json").out)
    assert [each["run"] for each in listed] == ["arch.n_heads=1", "arch.n_heads=2"]
    assert not own_store.exists()


def test_the_time_of_a_dry_run_is_judged_by_stored_runs(capbench, untrained) -> None:
    words = ("run", "--task", "rgr", "--arch", "mha", "--preset", "smoke", "--lr", "0.4", "--at", "12")
    assert "time: unknown" in capbench(*words, "--dry-run").out
    capbench(*words)
    assert "time: about 0 s" in capbench(*words, "--dry-run", "--seeds", "5").out


def _point(architecture: str, capacity: float, draw: int = 0) -> Point:
    result = SyntheticRecord(architecture=architecture, capacity=capacity, noise=0.5, draw=draw, seeds=12).result()
    return Point((("arch", architecture),), result)


def test_twice_the_capacity_is_a_clear_difference_and_the_same_capacity_none() -> None:
    twice, same = differences([_point("mha", 40), _point("mine", 80), _point("other", 40)])
    assert (twice.architecture, twice.baseline) == ("mine", "mha")
    assert twice.ci_low is not None
    assert 1 < twice.ci_low < twice.value < (twice.ci_high or 0)
    assert twice.is_clear
    assert not same.is_clear


def test_shares_at_a_load_are_compared_seed_by_seed() -> None:
    """Both hold half of the seeds: the same ones, or the others."""

    def at(architecture: str, held: range, n: int = 20) -> Point:
        result = SyntheticRecord(architecture=architecture).result()
        template = result.trials[0]
        statuses = [TrialStatus.HELD if seed in held else TrialStatus.NOT_HELD for seed in range(n)]
        trials = tuple(
            template.model_copy(update={"seed": seed, "status": status, "load": 8, "key": f"{seed:032x}"})
            for seed, status in enumerate(statuses)
        )
        capacity = result.capacity.model_copy(update={"kind": "success_rate", "estimate": len(held) / n})
        return Point((("arch", architecture),), result.model_copy(update={"trials": trials, "capacity": capacity}))

    (alike,) = differences([at("mha", range(10)), at("mine", range(10))])
    (other,) = differences([at("mha", range(10)), at("mine", range(10, 20))])
    (more,) = differences([at("mha", range(4)), at("mine", range(16))])
    assert alike.value == other.value == 0
    widths = [(each.ci_high or 0) - (each.ci_low or 0) for each in (alike, other)]
    assert widths[0] < widths[1] / 3, "pairing removes what both have in common"
    assert more.value == pytest.approx(0.6)
    assert more.is_clear


def test_a_ratio_is_known_from_one_side_where_one_of_its_capacities_is() -> None:
    (more,) = differences([_point("mha", 40), _point("mine", 10_000)])
    assert (more.status, more.ci_high, more.is_clear) == ("at_least", None, True)
    assert 1 < (more.ci_low or 0) <= more.value
    (less,) = differences([_point("mine", 10_000), _point("mha", 40)])
    assert (less.status, less.ci_low, less.is_clear) == ("at_most", None, True)
    assert 1 > (less.ci_high or 0) >= less.value
    (both,) = differences([_point("mha", 10_000), _point("mine", 20_000)])
    assert (both.status, both.ci_low, both.ci_high, both.is_clear) == ("unknown", None, None, False)
    text = sweep_text([_point("mha", 40), _point("mine", 10_000)], {"arch": ("mha", "mine")}, "edge")
    assert re.search(r"^mine / mha +at least \d\S* +\d\S* to open$", text, re.MULTILINE)
    text = sweep_text([_point("mha", 10_000), _point("mine", 20_000)], {"arch": ("mha", "mine")}, "edge")
    assert re.search(r"^mine / mha +unknown +open to open +no clear difference$", text, re.MULTILINE)
