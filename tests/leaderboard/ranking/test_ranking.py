"""Ranking: ranges from posteriors, ties as ranges, never across versions, independent of the order of the files."""

from __future__ import annotations

import math

import pytest

from capbench.documents.result import MissingRecord
from capbench_leaderboard.ranking.comparison import compare_shared_trials, sign_test
from capbench_leaderboard.ranking.entry import BoardEntry, make_entry
from capbench_leaderboard.ranking.ranked_tables import rank, rank_chosen
from tests.leaderboard.synthetic import SyntheticRecord


def entry(record: SyntheticRecord) -> BoardEntry:
    return make_entry(f"{record.suite}/{record.task}/{record.architecture}-{record.draw}.json", record.result())


def test_tables_do_not_depend_on_the_order_of_records() -> None:
    entries = [
        entry(SyntheticRecord(architecture=a, capacity=c, noise=0.5))
        for a, c in (("a", 30), ("b", 33), ("c", 90), ("d", 8))
    ]
    assert rank(entries, ()) == rank(entries[::-1], ())


def test_ties_are_written_as_ranges() -> None:
    (table,) = rank(
        [entry(SyntheticRecord(architecture=a, capacity=c)) for a, c in (("a", 30), ("b", 31), ("c", 150))], ()
    )
    assert (table.rows[0].entry.result.architecture.name, table.rows[0].rank) == ("c", "1")
    assert {row.rank for row in table.rows[1:]} == {"2–3"}


@pytest.mark.parametrize(
    "other",
    [
        SyntheticRecord(architecture="b", task_version=2),
        SyntheticRecord(architecture="b", suite_version=2),
        SyntheticRecord(architecture="b", threshold=0.9),
        SyntheticRecord(architecture="b", tier=4096),
        SyntheticRecord(architecture="b", task="bigrams"),
    ],
)
def test_versions_scorers_and_sizes_are_never_mixed(other: SyntheticRecord) -> None:
    assert len(rank([entry(SyntheticRecord(architecture="a")), entry(other)], ())) == 2


def test_verified_and_self_reported_records_are_ranked_separately() -> None:
    one, two = entry(SyntheticRecord(architecture="a")), entry(SyntheticRecord(architecture="b"))
    tables = rank([one, two], {one.path})
    assert [table.group.is_self_reported for table in tables] == [False, True]


def test_at_least_and_below_have_open_ends() -> None:
    (table,) = rank(
        [entry(SyntheticRecord(architecture=a, capacity=c)) for a, c in (("all", 1e6), ("none", 1), ("some", 50))], ()
    )
    rows = {row.entry.result.architecture.name: row for row in table.rows}
    assert rows["all"].entry.interval[1] == math.inf
    assert rows["none"].entry.interval[0] == -math.inf
    assert [rows[name].rank for name in ("all", "some", "none")] == ["1", "2", "3"]


def test_a_record_outside_a_suite_is_listed_and_not_ranked() -> None:
    (table,) = rank([entry(SyntheticRecord(tier=None))], ())
    assert [row.rank for row in table.rows] == ["–"]


def test_a_missing_record_is_listed_in_the_table_of_its_suite_task_and_tier() -> None:
    gap = MissingRecord(task="rgr", architecture="z", tier=1024, reason="too narrow")
    lonely = MissingRecord(task="sequences", architecture="z", tier=9, reason="failed")
    tables = rank([entry(SyntheticRecord())], (), [("standard", gap), ("standard", lonely)])
    reasons = {table.group.task: [row.reason for row in table.missing] for table in tables}
    assert reasons == {"rgr": ["too narrow"], "sequences": ["failed"]}


def test_the_sign_test_by_hand() -> None:
    assert sign_test(0, 0) == 1
    assert sign_test(6, 0) == pytest.approx(2 / 64)
    assert sign_test(5, 1) == pytest.approx(2 * 7 / 64)


def test_records_are_compared_on_the_trials_they_share_only() -> None:
    mine = {(8, seed): True for seed in range(6)} | {(99, 0): True}
    theirs = {(8, seed): False for seed in range(6)} | {(77, 0): True}
    found = compare_shared_trials("them", mine, theirs)
    assert (found.n_shared, found.only_this, found.only_other, found.relation) == (6, 6, 0, "ahead of")
    assert compare_shared_trials("me", theirs, mine).relation == "behind"
    assert compare_shared_trials("me", mine, mine).relation == "undecided with"


def test_chosen_runs_are_ranked_only_on_the_same_task_and_scorer() -> None:
    same = rank_chosen(
        [entry(SyntheticRecord(architecture="a", tier=None)), entry(SyntheticRecord(architecture="b", capacity=200))]
    )
    assert [row.rank for row in same] == ["1", "2"]
    other = rank_chosen(
        [entry(SyntheticRecord(architecture="a")), entry(SyntheticRecord(architecture="b", task="bigrams"))]
    )
    assert [row.rank for row in other] == ["–", "–"]
