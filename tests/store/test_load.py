"""Reading a large store: what is listed and what a run needs again is read, and no other row."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from capbench.report.store_text import MOST_ROWS
from capbench.store import store as store_module
from capbench.store.queries import StoreQuery
from capbench.store.store import Store
from tests.store.large import fill

Steps = Callable[[int, Callable[[Store], object]], int]


@pytest.fixture
def steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Steps:
    """How many hundreds of SQLite's instructions an action takes on a store of so many trials."""
    counted = [0]
    connect = sqlite3.connect

    def count() -> int:
        counted[0] += 1
        return 0

    def connect_counting(*args, **kwargs) -> sqlite3.Connection:
        db = connect(*args, **kwargs)
        db.set_progress_handler(count, 100)
        return db

    def measure(n_trials: int, action: Callable[[Store], object]) -> int:
        folder = tmp_path / str(n_trials)
        if not folder.exists():
            fill(folder, n_trials)
        with monkeypatch.context() as patch:
            patch.setattr(store_module.sqlite3, "connect", connect_counting)
            store = Store(folder)
        counted[0] = 0
        action(store)
        store.close()
        return counted[0]

    return measure


def test_a_rerun_takes_no_more_of_a_large_store_than_of_a_small_one(steps: Steps) -> None:
    keys = [f"{seed:032x}" for seed in range(400)]

    def rerun(store: Store) -> None:
        assert len(store.trials(keys)) == 400
        assert store.run(f"{0:012x}") is not None

    small, large = steps(500, rerun), steps(4000, rerun)
    assert 0 < large <= 1.1 * small


@pytest.mark.parametrize("read", ["latest_trials", "latest_runs", "check_integrity", "find_trials"])
def test_eight_times_the_trials_take_at_most_nine_times_the_instructions(steps: Steps, read: str) -> None:
    words = {"latest_trials": (StoreQuery(), MOST_ROWS), "latest_runs": (StoreQuery(), MOST_ROWS)}
    words["find_trials"] = (StoreQuery(task="rgr"),)
    small, large = (steps(n, lambda store: getattr(store, read)(*words.get(read, ()))) for n in (1000, 8000))
    assert large <= 9 * small + 10


def test_a_list_reads_the_documents_that_it_shows_and_counts_the_others(tmp_path: Path, capbench, monkeypatch) -> None:
    fill(tmp_path, 3000, trials_per_run=10)
    monkeypatch.setenv("CAPBENCH_HOME", str(tmp_path))
    n_read = {"read_run": 0, "read_trial": 0}

    def count(name: str) -> None:
        read = getattr(store_module, name)

        def counting(row):
            n_read[name] += 1
            return read(row)

        monkeypatch.setattr(store_module, name, counting)

    for name in n_read:
        count(name)
    for words, noun, n, kind in ((("results",), "runs", 300, "read_run"),
                                 (("results", "--trials"), "trials", 3000, "read_trial")):  # fmt: skip
        done = capbench(*words)
        assert (done.code, n_read[kind]) == (0, MOST_ROWS), done.err
        assert done.out.rstrip().endswith(f"{n:,} {noun}; the latest {MOST_ROWS} are shown")
    assert n_read == {"read_run": MOST_ROWS, "read_trial": MOST_ROWS}


def test_the_latest_are_the_last_of_all_in_the_same_order(tmp_path: Path) -> None:
    fill(tmp_path, 300, trials_per_run=10)
    store = Store(tmp_path)
    for query in (StoreQuery(), StoreQuery(architecture="mha"), StoreQuery(architecture="none")):
        trials, runs = store.find_trials(query), store.find_runs(query)
        assert store.latest_trials(query, 7) == (trials[-7:], len(trials))
        assert store.latest_runs(query, 7) == (runs[-7:], len(runs))
    assert store.find_run("latest") == store.find_runs(StoreQuery())[-1].result
