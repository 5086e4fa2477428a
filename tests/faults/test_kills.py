"""A run killed at any moment has every trial that had ended, and goes on to the same numbers."""

from __future__ import annotations

import json
import os
import random
import select
import signal
import sqlite3
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

RUN = ("run", "--task", "rgr", "--arch", "mha", "--preset", "smoke", "--lr", "0.2", "--lr", "0.4", "--device", "cpu")
ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Killed:
    """What came of a run: the trials it said were committed, and its document if it came to an end."""

    committed: set[str]
    document: dict | None
    seconds: float


def run(home: Path, kill_after: float | None = None) -> Killed:
    """Runs the program on a store; kills it some time after it has opened the store."""
    out, into = os.pipe()
    command = [sys.executable, "-m", "tests.faults.driver", str(into), *RUN, "--compile", "off", "--json"]
    environment = {**os.environ, "CAPBENCH_HOME": str(home), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        command, env=environment, cwd=ROOT, pass_fds=[into], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    os.close(into)
    with os.fdopen(out, "rb", buffering=0) as pipe:
        assert pipe.read(5) == b"open\n"
        started = time.monotonic()
        said = b""
        if kill_after is not None:
            said = _read_for(pipe, kill_after)
            process.send_signal(signal.SIGKILL)
        answer, _ = process.communicate(timeout=3600)
        said += pipe.read() or b""
        while more := pipe.read():
            said += more
    document = json.loads(answer) if process.returncode == 0 else None
    whole = said[: said.rfind(b"\n") + 1]
    return Killed(set(whole.decode().split()), document, time.monotonic() - started)


def _read_for(pipe, seconds: float) -> bytes:
    said, deadline = b"", time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        if select.select([pipe], [], [], left)[0]:
            part = pipe.read(65536)
            if not part:
                break
            said += part
    return said


def stored(home: Path) -> tuple[set[str], str]:
    """The keys in a store, and SQLite's verdict on it."""
    with sqlite3.connect(home / "capbench.sqlite") as db:
        keys = {key for (key,) in db.execute("SELECT key FROM trials")}
        (verdict,) = db.execute("PRAGMA integrity_check").fetchone()
    return keys, verdict


@pytest.mark.slow
def test_a_run_killed_at_any_moment_loses_nothing_and_resumes_to_the_same_numbers(tmp_path, tally, size) -> None:
    undisturbed, *again = [run(tmp_path / f"whole-{i}") for i in range(size(2, 1))]
    assert undisturbed.document is not None
    for other in again:
        assert other.document["trials"] == undisturbed.document["trials"], "same seeds, same numbers"
    chance, n_kills, shortest = random.Random(6), size(24, 2), undisturbed.seconds
    kills, n_committed, n_lost = [0], 0, 0  # kills of each store in turn
    while sum(kills) < n_kills or kills[-1]:
        home = tmp_path / f"killed-{len(kills)}"
        done = run(home, chance.uniform(0, 0.9 * shortest) if sum(kills) < n_kills else None)
        keys, verdict = stored(home)
        assert verdict == "ok"
        n_lost += len(done.committed - keys)
        if done.document is None:
            kills[-1] += 1
            n_committed += len(done.committed)
            continue
        for part in ("run_id", "capacity", "bits", "bounds", "trials", "rates"):
            assert done.document[part] == undisturbed.document[part]
        shortest = min(shortest, done.seconds) if kills[-1] == 0 else shortest
        kills.append(0)
    assert n_lost == 0
    _report(tally, len(undisturbed.document["trials"]), bool(again), kills, n_committed, n_lost)


def _report(tally, n_trials: int, is_repeated: bool, kills: list[int], n_committed: int, n_lost: int) -> None:
    if is_repeated:
        tally.add("the same run twice over, fresh stores", f"{n_trials} trials, all metrics identical")
    tally.add(
        "SIGKILL at random moments of `capbench run --preset smoke`",
        f"{sum(kills)} kills, {n_committed} trials committed by the killed processes, {n_lost} lost; every store whole",
    )
    killed = [n for n in kills if n]
    tally.add(
        "the same command again after the kills, to its end",
        f"{len(killed)} stores, killed up to {max(killed)} times each; all results identical to the undisturbed one",
    )
