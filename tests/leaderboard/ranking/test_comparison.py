"""Comparison of records: Holm's correction, records of one model, records that are not settled."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from capbench.documents.result import Result
from capbench_leaderboard.build import build_board
from capbench_leaderboard.ranking import board as board_module
from capbench_leaderboard.ranking.comparison import TrialPrint, are_trials_equal, holm
from capbench_leaderboard.ranking.entry import BoardEntry, make_entry
from capbench_leaderboard.ranking.posterior import Standing
from capbench_leaderboard.ranking.ranked_tables import RankedRow, rank, rank_chosen
from capbench_leaderboard.record_text import comparison_text, probability_text, ranking_text
from capbench_leaderboard.table_rows import RANKED_COLUMNS
from tests.leaderboard.synthetic import SyntheticRecord, write_record


def entry(architecture: str, capacity: float, noise: float = 0.0) -> BoardEntry:
    return make_entry(architecture, SyntheticRecord(architecture=architecture, capacity=capacity, noise=noise).result())


def with_settled(result: Result, settled: bool | None) -> Result:
    return result.model_copy(update={"capacity": result.capacity.model_copy(update={"settled": settled})})


def rows_by_name(entries: list[BoardEntry]) -> dict[str, RankedRow]:
    (table,) = rank(entries, ())
    return {row.entry.result.architecture.name: row for row in table.rows}


def test_holm_by_hand() -> None:
    # Four tests, sorted .005, .01, .03, .04: 4 × .005 = .02, 3 × .01 = .03, 2 × .03 = .06, and .04 is raised to .06.
    assert holm([0.01, 0.04, 0.03, 0.005], 4) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.5], 2) == [1.0, 1.0]
    assert holm([], 0) == []


def test_tests_that_were_not_made_count_for_holm() -> None:
    assert holm([0.001], 28) == pytest.approx([0.028])


def test_a_split_that_convinces_for_one_pair_is_undecided_among_many() -> None:
    """Six to nothing has p = 1/32: below 5 % for one pair, and not for three."""
    won, lost = ({(8, seed): held for seed in range(6)} for held in (True, False))
    first, second, third = (entry(name, 50 + i, noise=0.5) for i, name in enumerate("abc"))
    first, second = replace(first, held_by_trial=won), replace(second, held_by_trial=lost)
    third = replace(third, held_by_trial={})

    def found(entries: list[BoardEntry]) -> set[str]:
        return {each.relation for row in rows_by_name(entries).values() for each in row.compared}

    assert found([first, second]) in ({"ahead of"}, {"behind"})
    assert found([first, second, third]) == {"undecided with"}


def test_a_table_says_for_how_many_pairs_it_is_corrected() -> None:
    (table,) = rank([entry(name, 20 + 30 * i) for i, name in enumerate("abcd")], ())
    assert "Holm's correction for 6 pairs" in ranking_text(table)
    (lonely,) = rank([entry("a", 20)], ())
    assert ranking_text(lonely) == ""


def prints(*digests: str) -> dict[tuple[int, int, float | None], TrialPrint]:
    return {(8, seed, 0.1): TrialPrint(digest.startswith("held"), digest) for seed, digest in enumerate(digests)}


def test_records_of_one_model_agree_in_every_shared_trial() -> None:
    short = prints("held", "a", "b", "c", "d")
    assert are_trials_equal(short, prints("held", "a", "b", "c", "d", "e"))
    assert not are_trials_equal(short, prints("held", "a", "b", "c", "x"))
    assert not are_trials_equal(short, prints("held 25", "a", "b", "c", "d"))


def test_trials_that_any_model_would_end_alike_prove_nothing() -> None:
    all_held = prints(*["held"] * 9)
    all_diverged = prints(*["diverged"] * 9)
    assert not are_trials_equal(all_held, all_held)
    assert not are_trials_equal(all_diverged, all_diverged)
    assert not are_trials_equal({}, {})


def test_one_model_under_two_names_takes_one_place() -> None:
    rows = rows_by_name([entry("mha", 50), entry("headsplit", 50), entry("mlp", 150)])
    assert {name: row.rank for name, row in rows.items()} == {"mlp": "1", "mha": "2", "headsplit": "2"}
    assert rows["mha"].same_model_as == ("headsplit",)
    assert comparison_text(rows["headsplit"], {}) == "same model as mha here"
    assert rows["mlp"].same_model_as == ()


def test_equal_metrics_at_another_number_of_parameters_are_another_model() -> None:
    other = entry("headsplit", 50)
    other = replace(other, result=other.result.model_copy(update={"n_parameters": 1}))
    assert rows_by_name([entry("mha", 50), other])["mha"].same_model_as == ()


def test_ranks_do_not_depend_on_the_order_of_records_or_on_their_paths() -> None:
    entries = [entry(name, 30 + i, noise=0.5) for i, name in enumerate("abcdef")]
    results = [each.result for each in entries]
    assert rank(entries, ()) == rank(entries[::-1], ())

    def standings(order: list[int]) -> dict[str, Standing | None]:
        chosen = [replace(entries[i], path=f"{place}-{results[i].run_id}") for place, i in enumerate(order)]
        return {row.entry.result.run_id: row.standing for row in rank_chosen(chosen)}

    assert standings([0, 1, 2, 3, 4, 5]) == standings([4, 2, 0, 5, 3, 1])


def test_a_record_that_is_not_settled_is_listed_last_and_not_ranked() -> None:
    entries = [entry("a", 50), entry("b", 100), entry("c", 200)]
    entries[2] = replace(entries[2], result=with_settled(entries[2].result, False))
    entries[0] = replace(entries[0], result=with_settled(entries[0].result, True))
    (table,) = rank(entries, ())
    assert [(row.entry.path, row.rank) for row in table.rows] == [("b", "1"), ("a", "2"), ("c", "not settled")]
    assert table.n_pairs == 1


def test_a_record_that_was_not_asked_is_not_ranked_in_a_suite_that_settles() -> None:
    def of_suite(name: str, capacity: float, settled: bool | None) -> BoardEntry:
        result = with_settled(SyntheticRecord(architecture=name, capacity=capacity).result(), settled)
        assert result.suite is not None
        cell = result.suite.model_copy(update={"settle": 0.05})
        steps = 100 if settled is None else round(capacity)
        protocol = result.protocol.model_copy(update={"steps": steps})
        return make_entry(name, result.model_copy(update={"suite": cell, "protocol": protocol}))

    # Steps are chosen for each record, so that records with different steps share a table.
    (table,) = rank([of_suite("a", 50, True), of_suite("b", 100, True), of_suite("c", 200, None)], ())
    assert [(row.entry.path, row.rank) for row in table.rows] == [("b", "1"), ("a", "2"), ("c", "not settled")]
    assert "chosen until capacities are settled to 5%" in table.group.training


def test_a_record_that_is_not_settled_is_greyed_on_readme_and_site(tmp_path: Path, monkeypatch) -> None:
    for architecture, capacity in (("mha", 40), ("mlp", 60), ("gqa", 120)):
        write_record(tmp_path / "records", SyntheticRecord(architecture=architecture, capacity=capacity))
    read = board_module.make_entry

    def unsettled_gqa(path: str, result: Result) -> BoardEntry:
        found = read(path, result)
        return replace(found, result=with_settled(found.result, False)) if "gqa" in path else found

    monkeypatch.setattr(board_module, "make_entry", unsettled_gqa)
    build_board(tmp_path / "records", tmp_path)
    (line,) = [line for line in (tmp_path / "README.md").read_text().splitlines() if "gqa-" in line]
    assert line.startswith("| *not settled* | *[gqa](")
    page = (tmp_path / "site" / "tasks" / "rgr.html").read_text()
    assert '<td class="n greyed" data-s="1000000000000">not settled</td>' in page
    used = [column for column in RANKED_COLUMNS if column.label != "bits per element of state"]  # rgr carries no state
    assert page.count(' greyed"') + page.count('"greyed"') == len(used)
    (record,) = (tmp_path / "site" / "records").glob("*gqa*.html")
    assert "not ranked: not settled" in record.read_text()


@pytest.mark.parametrize(
    ("least", "greatest", "text"),
    [(0.623, 0.623, "62 %"), (0.004, 0.004, "<1 %"), (0.9999, 0.9999, ">99 %"), (0.0, 0.975, "0–98 %")],
)
def test_probabilities_as_text(least: float, greatest: float, text: str) -> None:
    assert probability_text(Standing(1, 2, least, greatest)) == text
