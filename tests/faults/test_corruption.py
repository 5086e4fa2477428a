"""A corrupted store never crashes a command, never gives a changed row, and gives up its whole rows to a repair."""

from __future__ import annotations

import json
import random
import shutil
import sqlite3
from pathlib import Path

import pytest

from capbench.documents.result import Result, Trial, TrialStatus
from capbench.errors import StoreUnavailable
from capbench.store.queries import StoreQuery
from capbench.store.store import Store, store_file
from tests.faults.corruption import corrupted
from tests.leaderboard.synthetic import SyntheticRecord

N_TRIALS, N_RUNS = 126, 3
MIN_SAVED = 0.95
"""Share of the rows that are still whole in the file that a repair saves."""


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


def commands(capbench, folder: Path, trials: dict[str, Trial], runs: dict[str, Result]) -> int:
    """What a user does with a store ends in one line, never in a traceback; how many changed rows were written."""
    table, n_changed = folder / "trials.jsonl", 0
    show = ("results", "show", next(iter(runs)))
    for words in (("results",), ("results", "--trials"), (*show, "--json"), show, ("export", str(table))):
        done = run(capbench, *words)
        if done.code == 0 and words == (*show, "--json"):
            n_changed += Result.model_validate_json(done.out) != runs[words[2]]
        if done.code == 0 and words[0] == "export":
            rows = [json.loads(line) for line in table.read_text().splitlines()]
            n_changed += sum(row["metric.f1"] != trials[row["key"]].metrics["f1"] for row in rows)
    run(capbench, "doctor", "--json")
    return n_changed


def run(capbench, *words: str):
    """A command that ends without a traceback: in one line where it cannot go on."""
    done = capbench(*words)
    assert done.code in (0, 1, 2), (words, done.err)
    assert "Traceback" not in done.err
    assert done.code != 2 or done.err.count("\n") == 1, (words, done.err)
    return done


def merged_rows(capbench, monkeypatch: pytest.MonkeyPatch, good: bytes, damaged: bytes, folder: Path) -> list[Path]:
    """The stores that come of merging a damaged store into an empty one, and a good one into a damaged one."""
    sources = {"empty": (b"", damaged), "damaged": (damaged, good)}
    for name, (own, other) in sources.items():
        for part, content in (("own", own), ("other", other)):
            (folder / name / part).mkdir(parents=True, exist_ok=True)
            if content:
                store_file(folder / name / part).write_bytes(content)
        with monkeypatch.context() as patch:
            patch.setenv("CAPBENCH_HOME", str(folder / name / "own"))
            run(capbench, "results", "merge", str(folder / name / "other"))
    return [folder / name / "own" for name in sources]


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
    whole, capbench, own_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tally, size
) -> None:
    data, trials, runs = whole
    own_store.mkdir(exist_ok=True)
    store_file(own_store).write_bytes(data)
    records, chance = records_of(store_file(own_store), data), random.Random(27)
    assert len(records) == N_TRIALS
    n_stores, n_whole, n_saved, n_changed = size(220, 8), 0, 0, 0
    for n in range(n_stores):
        for left in own_store.glob("*"):
            left.unlink()
        damaged = corrupted(data, chance)
        store_file(own_store).write_bytes(damaged)
        intact = {key for key, record in records.items() if record in damaged}
        n_changed += commands(capbench, own_store, trials, runs)
        n_changed += changed_rows(own_store, trials, runs)
        for merged in merged_rows(capbench, monkeypatch, data, damaged, tmp_path / f"merged-{n}"):
            n_changed += changed_rows(merged, trials, runs)
        shutil.rmtree(tmp_path / f"merged-{n}")
        assert run(capbench, "doctor", "--repair").code == 0
        store = Store(own_store)
        kept = {each.trial.key: each.trial for each in store.find_trials(StoreQuery())}
        assert store.check_integrity() == "ok"
        store.close()
        n_changed += changed_rows(own_store, trials, runs)
        n_whole, n_saved = n_whole + len(intact), n_saved + len(intact & kept.keys())
        assert n_changed == 0, n
    assert n_saved >= MIN_SAVED * n_whole
    tally.add(
        "stores corrupted at random (truncated, bytes flipped, pages zeroed, swapped or random, header changed); "
        "listed, shown, exported, merged both ways, repaired",
        f"{n_stores}: 0 crashes, {n_changed} changed rows returned; "
        f"{n_saved:,} of {n_whole:,} trials that were still whole saved by `doctor --repair`",
    )


@pytest.mark.parametrize("version", [0, 1, 2, 4])
def test_a_store_whose_version_is_damaged_is_not_merged_as_one_without_checksums(
    whole, capbench, own_store: Path, tmp_path: Path, version: int
) -> None:
    data, trials, _ = whole
    source = tmp_path / "source.sqlite"
    source.write_bytes(data)
    key = next(iter(trials))
    with sqlite3.connect(source) as db:
        db.execute("UPDATE trials SET document = replace(document, '\"seed\":', '\"seed\":9') WHERE key = ?", (key,))
        db.execute(f"PRAGMA user_version={version}")
    assert run(capbench, "results", "merge", str(source)).code == 2
    assert Store(own_store).counts() == (0, 0)
