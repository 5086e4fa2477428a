"""A corrupted store never crashes a command, never gives a changed row, and gives up its whole rows to a repair."""

from __future__ import annotations

import random
import sqlite3
from pathlib import Path

import pytest

from capbench.documents.result import Result, Trial, TrialStatus
from capbench.errors import StoreUnavailable
from capbench.store.queries import StoreQuery
from capbench.store.repair import repair_if_damaged
from capbench.store.store import Store, store_file
from tests.faults.corruption import corrupted
from tests.leaderboard.synthetic import SyntheticRecord

N_TRIALS, N_RUNS = 126, 3


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, dict[str, Trial], dict[str, Result]]:
    """The bytes of a store and what is in it."""
    folder = tmp_path_factory.mktemp("whole")
    store = Store(folder)
    runs = [SyntheticRecord(draw=n, seeds=2, capacity=20.0 + 9 * n).result() for n in range(N_RUNS)]
    trials = [_trial(seed) for seed in range(2, N_TRIALS + 2)]
    for each in trials:
        store.add_trials([each], "rgr", "mha")
    for run in runs:
        store.add_run(run)
    store.close()
    return store_file(folder).read_bytes(), {t.key: t for t in trials}, {run.run_id: run for run in runs}


def _trial(seed: int) -> Trial:
    chance = random.Random(seed)
    metrics = {"f1": chance.random(), "bits": 100 * chance.random()}
    return Trial(
        key=chance.randbytes(16).hex(),
        load=100,
        seed=seed,
        learning_rate=0.1,
        status=TrialStatus.NOT_HELD,
        steps=50,
        metrics=metrics,
    )


def records_of(path: Path, data: bytes) -> dict[str, bytes]:
    """The bytes of each trial's record, header included, as SQLite has written them."""
    records = {}
    with sqlite3.connect(path) as db:
        for row in db.execute("SELECT * FROM trials"):
            body = b"".join(v.to_bytes(1, "big") if isinstance(v, int) else v.encode() for v in row)
            start = data.index(body)
            header = next(n for n in range(5, 30) if data[start - n] == n)
            records[row[0]] = data[start - header : start + len(body)]
    return records


def commands(capbench) -> None:
    """What a user does with a store ends in one line, never in a traceback."""
    for words in (("results",), ("results", "--trials"), ("doctor", "--json")):
        done = capbench(*words)
        assert done.code in (0, 1, 2), (words, done.err)
        assert "Traceback" not in done.err
        assert done.code != 2 or done.err.count("\n") == 1


def changed_rows(folder: Path, trials: dict[str, Trial], runs: dict[str, Result]) -> int:
    """How many rows that the store returns are not as they were written; every way of reading is tried."""
    found: list[Trial] = []
    found_runs: list[Result] = []
    for read in (
        lambda store: found.extend(each.trial for each in store.find_trials(StoreQuery())),
        lambda store: found.extend(each.trial for each in store.find_trials(StoreQuery(task="rgr"))),
        lambda store: found.extend(found for key in trials for found in store.trials([key]).values()),
        lambda store: found_runs.extend(each.result for each in store.find_runs(StoreQuery())),
    ):
        try:
            store = Store(folder)
        except StoreUnavailable:
            continue
        try:
            read(store)
        except StoreUnavailable:
            continue
        finally:
            store.close()
    changed = [each for each in found if trials.get(each.key) != each]
    return len(changed) + sum(runs.get(each.run_id) != each for each in found_runs)


@pytest.mark.slow
def test_corrupted_stores_give_no_changed_row_and_up_to_their_last_whole_row(
    whole, capbench, own_store: Path, tally, size
) -> None:
    data, trials, runs = whole
    own_store.mkdir(exist_ok=True)
    store_file(own_store).write_bytes(data)
    records, chance = records_of(store_file(own_store), data), random.Random(27)
    assert len(records) == N_TRIALS
    n_stores, n_whole, n_saved, n_changed = size(220, 12), 0, 0, 0
    for _ in range(n_stores):
        for left in own_store.glob("*"):
            left.unlink()
        damaged = corrupted(data, chance)
        store_file(own_store).write_bytes(damaged)
        intact = {key for key, record in records.items() if record in damaged}
        commands(capbench)
        n_changed += changed_rows(own_store, trials, runs)
        repair_if_damaged(own_store)
        store = Store(own_store)
        kept = {each.trial.key: each.trial for each in store.find_trials(StoreQuery())}
        assert store.check_integrity() == "ok"
        store.close()
        n_changed += changed_rows(own_store, trials, runs)
        n_whole, n_saved = n_whole + len(intact), n_saved + len(intact & kept.keys())
        assert intact <= kept.keys()
    assert (n_changed, n_saved) == (0, n_whole)
    tally.add(
        "stores corrupted at random (truncated, bytes flipped, pages zeroed, swapped or random, header changed)",
        f"{n_stores}: 0 crashes, {n_changed} changed rows returned; "
        f"{n_saved:,} of {n_whole:,} trials that were still whole saved by `doctor --repair`",
    )
