"""Charts: bits per parameter with intervals and bounds, what is grey, and the overview."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from capbench.documents.colours import UNSETTLED_COLOUR, architecture_colour
from capbench.documents.result import Constructed
from capbench_leaderboard.bits_chart import LABEL_HEIGHT, bits_data
from capbench_leaderboard.chart_style import ChartRow, Datasets
from capbench_leaderboard.charts import capacity_data, chart_specs, render_svg
from capbench_leaderboard.families import FAMILY_OF, family_of
from capbench_leaderboard.front_chart import front_data
from capbench_leaderboard.heat_map import HeatMap
from capbench_leaderboard.heat_svg import heat_svg
from capbench_leaderboard.process_pool import ProcessPool
from capbench_leaderboard.ranking.board import Board, file_digest, read_board
from capbench_leaderboard.ranking.entry import BoardEntry, make_entry
from capbench_leaderboard.ranking.record_status import RecordCheck, add_check
from tests.leaderboard.synthetic import LADDER, SyntheticRecord, write_ladders, write_record


def entry(architecture: str = "mha", tier: int = 1024, capacity: float = 50.0, **fields: object) -> BoardEntry:
    record = replace(SyntheticRecord(architecture=architecture, tier=tier, capacity=capacity, settled=True), **fields)
    return make_entry(f"{architecture}-{tier}.json", record.result())


def with_result(of: BoardEntry, **changes: object) -> BoardEntry:
    return replace(of, result=of.result.model_copy(update=changes))


def with_capacity(of: BoardEntry, **changes: object) -> BoardEntry:
    return with_result(of, capacity=of.result.capacity.model_copy(update=changes))


def rows_of(datasets: Datasets, architecture: str) -> list[ChartRow]:
    return [row for row in datasets["rows"] if row["architecture"] == architecture]


@pytest.fixture(scope="module")
def board(tmp_path_factory: pytest.TempPathFactory) -> Board:
    folder = tmp_path_factory.mktemp("records")
    write_ladders(folder, tasks=("rgr",), tiers=LADDER[:2], seeds=2)
    return read_board(folder, ProcessPool())


def test_the_interval_of_the_bits_is_that_of_the_capacity() -> None:
    one = entry(noise=0.5)
    capacity = one.result.capacity
    assert capacity.ci_low is not None
    (row,) = bits_data([one], {})["rows"]
    assert row["bits"] == pytest.approx(one.result.bits_per_parameter, rel=1e-3)
    assert float(row["low"] or 0) / float(row["bits"] or 1) == pytest.approx(
        capacity.ci_low / capacity.estimate, rel=2e-3
    )


def test_a_bound_on_facts_is_drawn_in_bits_at_the_bits_per_fact_that_were_measured() -> None:
    one = entry()
    bound = next(b for b in one.result.bounds if b.kind == "lower")
    (row,) = [row for row in bits_data([one], {})["bounds"] if row["kind"] == "guaranteed"]
    assert bound.value is not None
    expected = one.result.bits_per_parameter * bound.value / one.result.capacity.estimate
    assert row["bits"] == pytest.approx(expected, rel=1e-3)


def test_a_law_that_holds_for_all_is_one_grey_line_from_end_to_end() -> None:
    entries = []
    for one in (entry("mha"), entry("mha", 4096), entry("mlp")):
        law = one.result.bounds[0].model_copy(
            update={"id": "law", "kind": "law", "quantity": "bits_per_parameter", "value": 0.5}
        )
        entries.append(with_result(one, bounds=(law,)))
    bounds = bits_data(entries, {})["bounds"]
    assert [(row["parameters"], row["bits"], row["architecture"]) for row in bounds] == [
        (1031, 0.5, ""),
        (4103, 0.5, ""),
    ]


def test_what_explicit_weights_reach_is_in_the_picture() -> None:
    one = entry()
    made = one.result.capacity.model_copy(update={"estimate": one.result.capacity.estimate / 2})
    both = with_result(one, constructed=Constructed(solver=one.result.solver, capacity=made, trials=()))
    (row,) = [row for row in bits_data([both], {})["bounds"] if row["kind"] == "constructed"]
    assert row["bits"] == pytest.approx(one.result.bits_per_parameter / 2, rel=1e-3)


def test_a_bound_far_above_all_measured_values_does_not_flatten_them() -> None:
    datasets = bits_data([entry()], {})
    assert [row["kind"] for row in datasets["bounds"]] == ["guaranteed"]
    assert float(datasets["frame"][0]["bits"] or 0) < 4 * float(datasets["rows"][0]["bits"] or 0)


def test_a_record_that_is_not_settled_is_a_grey_point_without_a_line() -> None:
    datasets = bits_data([entry(), entry(tier=4096, settled=False)], {})
    assert [row["colour"] for row in rows_of(datasets, "mha")] == [architecture_colour("mha"), UNSETTLED_COLOUR]
    assert [row["parameters"] for row in datasets["lines"]] == [1031]


def test_an_architecture_has_one_colour_on_every_chart() -> None:
    one = entry()
    for datasets in (bits_data([one], {}), capacity_data([one], {}), front_data([one], {})):
        assert {row["colour"] for row in datasets["rows"]} == {architecture_colour("mha")}


def test_only_one_side_known_is_an_arrow() -> None:
    datasets = bits_data([with_capacity(entry(), status="at_least", ci_high=None), entry("mlp")], {})
    assert [(row["architecture"], row["arrow"]) for row in datasets["arrows"]] == [("mha", "↑")]


def test_names_of_lines_that_end_close_together_are_moved_apart() -> None:
    entries = [entry(f"arch{i}", capacity=50 + i / 100) for i in range(8)]
    datasets = bits_data(entries, {})
    heights = sorted(float(row["bits"] or 0) for row in datasets["labels"])
    gap = float(datasets["frame"][0]["bits"] or 0) * LABEL_HEIGHT / 340
    assert min(b - a for a, b in pairwise(heights)) > 0.95 * gap


def test_architectures_at_one_place_of_the_front_share_a_label() -> None:
    smaller, cheaper = entry("mha", tier=512, steps=300), entry("headsplit")
    entries = [smaller, cheaper, entry("gqa", tier=4096, capacity=100, steps=1000)]
    labels = front_data(entries, {})["labels"]
    assert sorted(sorted(str(row["architecture"]).split(", ")) for row in labels) == [["gqa"], ["headsplit", "mha"]]


def test_a_line_that_ends_early_has_its_name_where_it_ends() -> None:
    labels = bits_data([entry("mha"), entry("mha", 4096), entry("mlp")], {})["labels"]
    assert {row["architecture"]: row["parameters"] for row in labels} == {"mha": 4103, "mlp": 1031}


@pytest.mark.parametrize("estimate", [0.0, 1e15])
def test_charts_survive_capacities_at_the_ends(estimate: float) -> None:
    odd = with_capacity(entry(), estimate=estimate, ci_low=None, ci_high=None)
    entries = [odd, entry("mlp")]
    for kind, datasets in (
        ("bits", bits_data(entries, {})),
        ("capacity", capacity_data(entries, {})),
        ("front", front_data(entries, {})),
    ):
        assert render_svg(chart_specs()[kind], datasets).startswith("<svg")


def test_the_overview_has_every_cell_with_its_uncertainty(board: Board) -> None:
    heat = HeatMap(board)
    assert heat.tiers == {"rgr": list(LADDER[:2])}
    assert heat.main_tier == LADDER[1]
    assert [family for family, _ in heat.families] == ["attention", "recurrence", "mlp", "memory"]
    picture = heat_svg(heat)
    cell = heat.cells["rgr", heat.main_tier, "mha"]
    assert f"{cell.bits.value:.2f}</tspan>" in picture
    assert cell.error_text in picture


def test_the_overview_prefers_a_verified_record(tmp_path: Path) -> None:
    paths = [write_record(tmp_path, SyntheticRecord(settled=True, noise=0.5, draw=draw)) for draw in (1, 2)]
    for path in paths:
        name, digest = path.relative_to(tmp_path).as_posix(), file_digest(path)
        check = RecordCheck(
            record=name, digest=digest, verdict="verified", n_sampled=1, n_trials=44, tolerance="", date="2026-01-01"
        )
        (tmp_path / "verified.json").unlink(missing_ok=True)
        add_check(tmp_path, check)
        (cell,) = HeatMap(read_board(tmp_path, ProcessPool())).cells.values()
        assert cell.entry.path == name
        assert cell.is_verified


def test_an_older_record_gets_the_family_of_the_built_in_with_its_name() -> None:
    assert family_of(entry("deltanet").result) == "recurrence"
    assert family_of(entry("deltanet", family="mine").result) == "mine"
    assert family_of(entry("unheard_of").result) == "other"


def test_older_records_get_the_families_that_the_built_ins_name() -> None:
    from capbench.registry.registry import load_registry

    architectures = {name: provided.cls for name, provided in load_registry().architectures.items()}
    families = {name: architectures[name].family for name in FAMILY_OF if name in architectures}
    assert families == {name: FAMILY_OF[name] for name in families}
