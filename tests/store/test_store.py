"""The store: nothing committed is lost, older versions are upgraded, damaged files are set aside, work is shared."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path

import pytest

from capbench.documents.result import Trial, TrialStatus
from capbench.errors import BadDocument, StoreDamaged, StoreUnavailable
from capbench.measure.session import WaitingForOtherProcess
from capbench.store.leases import Leases
from capbench.store.merge import merge
from capbench.store.queries import StoreQuery
from capbench.store.repair import repair_if_damaged, repair_store
from capbench.store.store import Store, store_file
from capbench.store.tables import STORE_VERSION, StoreUpgraded

FIXTURES = Path(__file__).parents[1] / "fixtures"
SMOKE = ("run", "--task", "rgr", "--arch", "mha", "--preset", "smoke")


def trial(key: str, status: TrialStatus = TrialStatus.HELD, **fields) -> Trial:
    return Trial(key=key, load=8, seed=0, learning_rate=0.1, status=status, steps=5, metrics={"f1": 1.0}, **fields)


def filled(folder: Path, n_trials: int = 400) -> Store:
    store = Store(folder)
    for i in range(n_trials):
        store.add_trials([trial(f"{i:032}")], "rgr", "mha")
    return store


def damage(folder: Path, at: float) -> None:
    """Overwrites some pages of a store's file."""
    path = store_file(folder)
    data = bytearray(path.read_bytes())
    start = int(len(data) * at) // 4096 * 4096
    data[start : start + 2 * 4096] = b"\xa5" * (2 * 4096)
    path.write_bytes(data)


@pytest.mark.parametrize("version", range(1, STORE_VERSION + 1))
def test_a_store_of_each_version_opens_with_all_its_trials(tmp_path: Path, version: int) -> None:
    shutil.copy(FIXTURES / f"store-v{version}.sqlite", store_file(tmp_path))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", StoreUpgraded)
        store = Store(tmp_path)
    assert store.counts() == (82, 1)
    assert store.check_integrity() == "ok"
    (run,) = store.find_runs(StoreQuery())
    assert len(store.trials(t.key for t in run.result.trials)) == len(run.result.trials) == 50
    copies = list(tmp_path.glob(f"capbench-v{version}-*.sqlite"))
    if version == STORE_VERSION:
        assert (copies, caught) == ([], [])
        return
    assert str(copies[0]) in str(caught[0].message)
    assert copies[0].read_bytes()[:16] == b"SQLite format 3\0"
    with sqlite3.connect(copies[0]) as old:
        assert old.execute("PRAGMA user_version").fetchone() == (version,)
        assert old.execute("SELECT COUNT(*) FROM trials").fetchone() == (82,)
    Store(tmp_path)
    assert list(tmp_path.glob("capbench-v*.sqlite")) == copies, "an upgraded store is not upgraded again"


def test_another_programs_database_is_left_alone(tmp_path: Path) -> None:
    with sqlite3.connect(store_file(tmp_path)) as db:
        db.execute("CREATE TABLE recipes (name TEXT)")
    with pytest.raises(StoreUnavailable, match="another program's database"):
        Store(tmp_path)


def test_a_trial_that_ended_is_never_replaced_and_a_failed_one_is(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.add_trials([trial("a", TrialStatus.FAILED, error="boom")], "rgr", "mha")
    store.add_trials([trial("a", TrialStatus.HELD)], "rgr", "mha")
    assert store.trials(["a"])["a"].status is TrialStatus.HELD
    store.add_trials([trial("a", TrialStatus.FAILED, error="late")], "rgr", "mha")
    assert store.trials(["a"])["a"].status is TrialStatus.HELD
    (found,) = store.find_trials(StoreQuery(status="held"))
    assert found.trial.error is None


@pytest.mark.parametrize("at", [0.3, 0.6, 0.9])
def test_a_damaged_store_is_set_aside_whole_and_what_can_be_read_is_saved(tmp_path: Path, at: float) -> None:
    filled(tmp_path).close()
    damage(tmp_path, at)
    before = store_file(tmp_path).read_bytes()
    saved = repair_store(tmp_path)
    assert saved.set_aside.read_bytes() == before
    assert 200 < saved.n_trials < 400
    store = Store(tmp_path)
    assert (store.counts()[0], store.check_integrity()) == (saved.n_trials, "ok")
    assert repair_store(tmp_path).set_aside != saved.set_aside, "nothing set aside is ever overwritten"


def test_a_run_on_a_damaged_store_names_the_remedy_and_doctor_applies_it(capbench, own_store: Path) -> None:
    filled(own_store).close()
    store_file(own_store).write_bytes(b"x" * 8192)
    refused = capbench(*SMOKE)
    assert (refused.code, refused.out, refused.err.count("\n")) == (2, "", 1)
    assert "capbench doctor --repair sets it aside" in refused.err
    assert store_file(own_store).read_bytes() == b"x" * 8192, "never silently recreated"
    ill = capbench("doctor")
    assert ill.code == 1
    assert "capbench doctor --repair" in ill.out
    mended = capbench("doctor", "--repair")
    assert mended.code == 0, mended.out
    assert "the old file was kept as " in mended.err
    assert len(list(own_store.glob("capbench-torn-*.sqlite"))) == 1
    assert "needs no repair" in capbench("doctor", "--repair").err


def test_doctor_finds_damage_that_a_run_would_not_meet(capbench, own_store: Path) -> None:
    filled(own_store).close()
    damage(own_store, 0.6)
    ill = capbench("doctor", "--json")
    assert ill.code == 1
    assert "capbench doctor --repair" in json.loads(ill.out)["store_status"]
    mended = capbench("doctor", "--repair")
    assert mended.code == 0
    assert "were recovered into the new store" in mended.err


@pytest.mark.parametrize(
    "change",
    ["document = '{}'", "document = replace(document, '1.0', '0.9')", "status = 'failed'", "checksum = ''", "load = 9"],
)
def test_a_row_that_is_not_as_it_was_written_is_damage_too(tmp_path: Path, change: str) -> None:
    """SQLite's own check finds nothing wrong with it."""
    store = filled(tmp_path, 3)
    with sqlite3.connect(store.path) as db:
        db.execute(f"UPDATE trials SET {change} WHERE key = ?", (f"{1:032}",))
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    for read in (lambda: store.trials([f"{1:032}"]), lambda: store.find_trials(StoreQuery()), store.check_integrity):
        with pytest.raises(StoreDamaged, match=r"is not as it was written; capbench doctor --repair"):
            read()
    store.close()
    with pytest.raises(StoreDamaged, match="is not as it was written"):
        merge(Store(tmp_path / "other"), tmp_path)
    saved = repair_store(tmp_path)
    store = Store(tmp_path)
    kept = {each.trial.key: each.trial for each in store.find_trials(StoreQuery())}
    assert {f"{0:032}", f"{2:032}"} <= kept.keys()
    assert all(each == trial(key) for key, each in kept.items()), "the old row may be found, the changed one never"
    assert saved.n_trials == len(kept)


@pytest.mark.parametrize("number", [0, 1, 2, 4, 77, 2**31 - 1])
def test_a_damaged_version_number_is_told_from_a_newer_store(tmp_path: Path, number: int) -> None:
    filled(tmp_path, 3).close()
    with sqlite3.connect(store_file(tmp_path)) as db:
        db.execute(f"PRAGMA user_version={number}")
    with pytest.raises(StoreDamaged, match=f"has version number {number} but not its tables; capbench doctor --repair"):
        Store(tmp_path)
    assert repair_store(tmp_path).n_trials == 3


def test_a_newer_store_is_refused_and_not_repaired(tmp_path: Path) -> None:
    filled(tmp_path, 3).close()
    with sqlite3.connect(store_file(tmp_path)) as db:
        db.execute("ALTER TABLE trials ADD COLUMN something_new TEXT")
        db.execute(f"PRAGMA user_version={STORE_VERSION + 1}")
    with pytest.raises(StoreUnavailable, match="upgrade capbench"):
        repair_if_damaged(tmp_path)
    assert not list(tmp_path.glob("*torn*"))


def test_a_truncated_store_gives_up_every_row_that_stands_in_what_is_left(tmp_path: Path) -> None:
    """Without its last pages SQLite reads nothing at all of it."""
    filled(tmp_path).close()
    path = store_file(tmp_path)
    data = path.read_bytes()
    path.write_bytes(data[: len(data) * 2 // 3])
    left = sum(f'{{"key":"{i:032}"'.encode() in path.read_bytes() for i in range(400))
    assert left > 100
    assert repair_store(tmp_path).n_trials >= left - 1, "one may have been cut through"


def test_a_long_run_is_saved_from_all_its_pages(tmp_path: Path) -> None:
    shutil.copy(FIXTURES / "store-v1.sqlite", store_file(tmp_path))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", StoreUpgraded)
        (before,) = Store(tmp_path).find_runs(StoreQuery())
    assert len(before.result.model_dump_json()) > 3 * 4096
    for name in ("store-v1.sqlite", f"store-v{STORE_VERSION}.sqlite"):
        folder = tmp_path / name
        folder.mkdir()
        shutil.copy(FIXTURES / name, store_file(folder))
        saved = repair_store(folder)
        assert (saved.n_trials, saved.n_runs) == (82, 1)
        (after,) = Store(folder).find_runs(StoreQuery())
        assert after == before


def test_a_lease_keeps_others_off_until_its_trial_is_stored(tmp_path: Path) -> None:
    mine, theirs = Store(tmp_path), Store(tmp_path)
    assert mine.lease(["a", "b"]) == {"a", "b"}
    assert theirs.lease(["a", "b", "c"]) == {"c"}
    assert theirs.leased_elsewhere(["a", "b", "c"]) == {"a", "b"}
    mine.add_trials([trial("a")], "rgr", "mha")
    assert theirs.leased_elsewhere(["a", "b"]) == {"b"}
    mine.release_leases()
    assert theirs.lease(["b"]) == {"b"}


def test_the_leases_of_a_dead_process_are_free_at_once(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys; from pathlib import Path; from capbench.store.store import Store\n"
        "Store(Path(sys.argv[1])).lease(['a']); os.kill(os.getpid(), signal.SIGKILL)"
    )
    killed = subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)
    assert killed.returncode == -signal.SIGKILL
    store = Store(tmp_path)
    assert store.leased_elsewhere(["a"]) == set()
    assert store.drop_dead_leases() == 1
    assert store.lease(["a"]) == {"a"}


LEASE_AND_WAIT = (
    "import sys; from pathlib import Path; from capbench.store.store import Store\n"
    "store = Store(Path(sys.argv[1])); store.lease(['a']); print('leased', flush=True); sys.stdin.read()"
)


def test_a_killed_process_that_nobody_has_waited_for_is_dead_and_a_living_one_is_not(tmp_path: Path) -> None:
    """In a container without an init process the remains of a killed run keep their id."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", LEASE_AND_WAIT, str(tmp_path)], text=True, **pipes) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "leased\n"
        store = Store(tmp_path)
        assert store.leased_elsewhere(["a"]) == {"a"}
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # dead, and still in the table of processes
        assert store.leased_elsewhere(["a"]) == set()
        assert store.lease(["a"]) == {"a"}


def test_a_lease_of_a_process_whose_id_another_now_has_is_free(tmp_path: Path) -> None:
    store, other = Store(tmp_path), Store(tmp_path)
    assert store.lease(["a"]) == {"a"}
    assert other.leased_elsewhere(["a"]) == {"a"}, "this process runs"
    store._db.execute("UPDATE claims SET started = 'before the machine was started again'")
    assert other.leased_elsewhere(["a"]) == set()


def test_leases_of_another_machine_hold_until_they_run_out(tmp_path: Path) -> None:
    store, other = Store(tmp_path), Store(tmp_path)
    assert store.lease(["a"]) == {"a"}
    store._db.execute("UPDATE claims SET host = 'elsewhere', started = 'unknown', pid = 999999999")
    assert other.leased_elsewhere(["a"]) == {"a"}


def test_a_lease_that_is_not_renewed_runs_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Store(tmp_path).lease(["a"])
    other = Store(tmp_path)
    assert other.lease(["a"]) == set()
    moment = time.time()
    monkeypatch.setattr("capbench.store.leases.time.time", lambda: moment + 121)
    assert other.lease(["a"]) == {"a"}


def test_a_lease_is_renewed_now_and_then_and_not_at_every_step(tmp_path: Path) -> None:
    db = Store(tmp_path)._db
    leases = Leases(db)
    leases.take(["a"])
    before = db.total_changes
    for _ in range(100):
        leases.renew()
    assert db.total_changes == before + 1


@pytest.mark.slow
def test_two_runs_at_once_train_no_trial_twice_and_agree(own_store: Path) -> None:
    command = [sys.executable, "-m", "capbench.cli", *SMOKE, "--lr", "0.2", "--compile", "off", "--json"]
    environment = {**os.environ, "CAPBENCH_HOME": str(own_store)}
    runs = [
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    answers = [run.communicate(timeout=300) for run in runs]
    assert [run.returncode for run in runs] == [0, 0], answers
    first, second = (json.loads(out) for out, _ in answers)
    assert first["trials"] == second["trials"]
    assert "locked" not in answers[0][1] + answers[1][1]
    trained = first["timing"]["trials_trained"] + second["timing"]["trials_trained"]
    assert trained == len(first["trials"]), "each trial was trained by one of them"


def test_a_run_waits_for_what_another_process_trains(capbench, own_store: Path) -> None:
    words = (*SMOKE, "--at", "12", "--seeds", "2", "--lr", "0.2", "--json")
    done = {t["key"]: t for t in json.loads(capbench(*words).out)["trials"]}
    store, other = Store(own_store), Store(own_store)
    kept = store.trials(done)
    store.delete_trials(done)
    assert other.lease(done) == set(done)

    def finish() -> None:
        writer = Store(own_store)
        for each in kept.values():
            writer.add_trials([each], "rgr", "mha")

    later = threading.Timer(1.0, finish)
    later.start()
    again = capbench(*words)
    later.join()
    assert f"waiting for {len(done)} trials that another process is training" in again.err
    assert json.loads(again.out)["timing"]["trials_trained"] == 0
    assert issubclass(WaitingForOtherProcess, UserWarning)


def test_merging_adds_what_is_new_and_does_not_change_the_other_store(tmp_path: Path) -> None:
    store, other = Store(tmp_path / "own"), FIXTURES / "store-v1.sqlite"
    before = other.read_bytes()
    assert merge(store, other) == (82, 1)
    assert merge(store, other) == (0, 0)
    assert other.read_bytes() == before
    assert not list(FIXTURES.glob("*-wal")), "not even a file beside it"
    with pytest.raises(BadDocument, match="no store there"):
        merge(store, tmp_path / "nowhere")


def test_a_store_from_elsewhere_is_read_as_strictly_as_a_file_from_elsewhere(tmp_path: Path) -> None:
    copy = tmp_path / "theirs.sqlite"
    shutil.copy(FIXTURES / "store-v1.sqlite", copy)
    with sqlite3.connect(copy) as db:
        db.execute('UPDATE runs SET document = replace(document, \'"n_parameters":514\', \'"n_parameters":"514"\')')
    store = Store(tmp_path / "own")
    with pytest.raises(BadDocument, match="nothing was merged"):
        merge(store, copy)
    assert store.counts() == (0, 0)


@pytest.fixture
def stored(own_store: Path) -> Path:
    own_store.mkdir()
    shutil.copy(FIXTURES / f"store-v{STORE_VERSION}.sqlite", store_file(own_store))
    return own_store


def test_results_are_listed_filtered_and_shown(capbench, stored: Path) -> None:
    listed = capbench("results")
    assert "84b6f9cef354" in listed.out
    assert "1 run" in listed.out
    assert "no runs" in capbench("results", "--task", "triples").out
    assert "no runs" in capbench("results", "--since", "2999-01-01").out
    held = json.loads(capbench("results", "--status", "held", "--json").out)
    assert {each["status"] for each in held} == {"held"}
    assert f"{len(held)} trials" in capbench("results", "--trials", "--status", "held").out
    assert "rgr × mha" in capbench("results", "show", "84b6").out
    assert json.loads(capbench("results", "show", "84b6", "--json").out)["run_id"] == "84b6f9cef354"
    lost = capbench("results", "show", "ffff")
    assert (lost.code, lost.err.count("\n")) == (2, 1)


def test_results_are_deleted_only_when_they_are_named_and_confirmed(
    capbench, stored: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert capbench("results", "delete").code == 2
    assert capbench("results", "delete", "84b6", "--task", "rgr").code == 2
    monkeypatch.setattr("click.confirm", lambda *_, **__: (_ for _ in ()).throw(__import__("click").Abort()))
    assert capbench("results", "delete", "84b6").code != 0
    assert Store(stored).counts() == (82, 1)
    assert "deleted 1 run" in capbench("results", "delete", "84b6", "--yes").out
    assert Store(stored).counts() == (82, 0), "a run's trials stay"
    assert "deleted 9 trials" in capbench("results", "delete", "--status", "plateau", "--yes").out
    assert Store(stored).counts() == (73, 0)
    merged = capbench("results", "merge", str(FIXTURES / "store-v1.sqlite"))
    assert "9 new trials, 1 new run" in merged.out
