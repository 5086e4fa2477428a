"""Commands killed at any moment have every trial that had ended, and go on to the same numbers."""

from __future__ import annotations

import json
import math
import os
import random
import select
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest

ROOT = Path(__file__).parents[2]
SAME_PARTS = ("run_id", "capacity", "bits", "bounds", "trials", "rates")
PAIR = ("--task", "rgr", "--arch", "mha", "--preset", "smoke", "--device", "cpu", "--json")
AT = ("--at", "20", "--seeds", "24", "--steps", "200")
ROUNDING = 1e-6
"""Relative difference allowed to eager trials of a pool: what trains together rounds together, and a resumed command
trains other trials together (docs/measuring.md, Ways of running)."""
SUITE = """
name = "tiny"
version = 1
preset = "smoke"
tiers = [400]
tasks = ["triples"]
architectures = ["mlp", "aot"]
seeds = 2
budget = 6

[[rules]]
steps = 200
rates = [0.02]
"""
Document = dict[str, Any]
Killed = Literal["command", "worker"]


@dataclass(frozen=True)
class Disturbed:
    """What a command left behind: the trials it said were committed, its documents if it came to an end."""

    committed: set[str]
    documents: list[Document] | None
    seconds: float
    killed: Killed | None


@dataclass(frozen=True)
class KilledCommand:
    """A command, and where the documents of its runs are."""

    words: Callable[[Path], tuple[str, ...]]
    documents: Callable[[str, Path], list[Document]]
    in_pool: bool = True
    """Whether its worker processes train; else it does, on one thread, and its results are equal to the last bit."""


def run_words(home: Path) -> tuple[str, ...]:
    return ("run", *PAIR, "--compile", "off", "--lr", "0.2")


def sweep_words(home: Path) -> tuple[str, ...]:
    return ("sweep", *PAIR, "--compile", "on", "--lr", "0.2", "--grid", "arch.n_heads=1,2", *AT)


def suite_words(home: Path) -> tuple[str, ...]:
    home.mkdir(exist_ok=True)
    (home / "tiny.toml").write_text(SUITE)
    return ("suite", str(home / "tiny.toml"), "--device", "cpu", "--out", str(home / "records"))


def records_of(out: str, home: Path) -> list[Document]:
    paths = sorted((home / "records").rglob("*.json"))
    found = [json.loads(path.read_text()) for path in paths]
    return [document for document in found if isinstance(document, dict) and "run_id" in document]


COMMANDS = {
    "run": KilledCommand(run_words, lambda out, home: [json.loads(out)], in_pool=False),
    "sweep": KilledCommand(sweep_words, lambda out, home: json.loads(out)),
    "suite": KilledCommand(suite_words, records_of),
}


def start(command: KilledCommand, home: Path, kill_after: float | None = None, kills_worker: bool = False) -> Disturbed:
    """Runs a command on a store; kills it, or one of its workers, some time after it has opened the store."""
    out, into = os.pipe()
    words = [sys.executable, "-m", "tests.faults.driver", str(into), *command.words(home)]
    environment = {**os.environ, "CAPBENCH_HOME": str(home), "OMP_NUM_THREADS": "1"}
    if command.in_pool:
        del environment["OMP_NUM_THREADS"]
    process = subprocess.Popen(
        words, env=environment, cwd=ROOT, pass_fds=[into], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    os.close(into)
    with os.fdopen(out, "rb", buffering=0) as pipe:
        assert pipe.read(5) == b"open\n"
        started, said, killed = time.monotonic(), b"", None
        if kill_after is not None:
            said = _read_for(pipe, kill_after)
            killed = _kill(process, kills_worker)
        answer, _ = process.communicate(timeout=3600)
        while more := pipe.read():
            said += more
    documents = command.documents(answer.decode(), home) if process.returncode == 0 else None
    whole = said[: said.rfind(b"\n") + 1]
    committed = set(whole.decode().split()) - {"open"}
    return Disturbed(committed, documents, time.monotonic() - started, killed)


def _read_for(pipe, seconds: float) -> bytes:
    said, deadline = b"", time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        if select.select([pipe], [], [], left)[0]:
            part = pipe.read(65536)
            if not part:
                break
            said += part
    return said


def _kill(process: subprocess.Popen[bytes], kills_worker: bool) -> Killed | None:
    """Kills a command, or the first of its workers where it has any; None if it had ended already."""
    workers = _children(process.pid) if kills_worker else []
    if process.poll() is not None:
        return None
    with suppress(ProcessLookupError):
        os.kill(workers[0] if workers else process.pid, signal.SIGKILL)
    return "worker" if workers else "command"


def _children(pid: int) -> list[int]:
    """The living children of a process."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, IndexError):
            state, parent = stat.read_text(errors="replace").rpartition(")")[2].split()[:2]
            if int(parent) == pid and state != "Z":
                found.append(int(stat.parent.name))
    return sorted(found)


def stored(home: Path) -> tuple[set[str], str]:
    """The keys in a store, and SQLite's verdict on it."""
    with sqlite3.connect(home / "capbench.sqlite") as db:
        keys = {key for (key,) in db.execute("SELECT key FROM trials")}
        (verdict,) = db.execute("PRAGMA integrity_check").fetchone()
    return keys, verdict


def agree(one: Any, other: Any, tolerance: float) -> bool:
    """Whether two JSON values are equal, numbers up to a relative tolerance."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(agree(one[key], other[key], tolerance) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(agree, one, other, [tolerance] * len(one)))
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=tolerance, abs_tol=tolerance)
    return bool(one == other)


def same_parts(documents: list[Document]) -> list[list[Any]]:
    return [[document[part] for part in SAME_PARTS] for document in documents]


@dataclass
class Kills:
    """What came of a command that was killed again and again."""

    n_kills: int = 0
    n_of_workers: int = 0
    n_stores: int = 0
    n_committed: int = 0
    n_lost: int = 0


def kill_again_and_again(command: KilledCommand, folder: Path, n_kills: int) -> Kills:
    """Kills a command and starts it again, store after store; each comes to the results of an undisturbed one."""
    undisturbed = start(command, folder / "whole")
    assert undisturbed.documents
    chance, longest, found = random.Random(6), 0.9 * undisturbed.seconds, Kills()
    while found.n_kills < n_kills:
        home, n_of_store, done = folder / f"killed-{found.n_stores}", 0, None
        found.n_stores += 1
        while done is None or done.documents is None:
            kills_worker = command.in_pool and chance.random() < 0.25
            is_left_alone = found.n_kills >= n_kills
            done = start(command, home, None if is_left_alone else chance.uniform(0, longest), kills_worker)
            keys, verdict = stored(home)
            assert verdict == "ok"
            found.n_lost += len(done.committed - keys)
            found.n_kills += done.killed is not None
            found.n_of_workers += done.killed == "worker"
            n_of_store += done.killed is not None
            found.n_committed += len(done.committed) if done.killed == "command" else 0
            assert done.documents is not None or done.killed == "command", "it failed without being killed"
        tolerance = ROUNDING if command.in_pool else 0.0
        assert agree(same_parts(done.documents), same_parts(undisturbed.documents), tolerance)
        longest = min(longest, 0.9 * done.seconds) if n_of_store == 0 else longest
    assert found.n_lost == 0
    return found


def report(tally, name: str, found: Kills) -> None:
    workers = f" ({found.n_of_workers} of workers alone)" if found.n_of_workers else ""
    tally.add(
        f"SIGKILL at random moments of `capbench {name}`, then the same command again",
        f"{found.n_kills} kills{workers} on {found.n_stores} stores; {found.n_committed} trials committed before that, "
        f"{found.n_lost} lost; every store whole, all results those of the undisturbed one",
    )


@pytest.mark.slow
@pytest.mark.parametrize(("name", "full", "short"), [("run", 40, 1), ("sweep", 25, 1), ("suite", 25, 1)])
def test_a_command_killed_at_any_moment_loses_nothing_and_resumes_to_the_same_numbers(
    tmp_path: Path, tally, size, name: str, full: int, short: int
) -> None:
    report(tally, name, kill_again_and_again(COMMANDS[name], tmp_path, size(full, short)))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:unclosed file <_io.TextIOWrapper name='[^']*/ray/session:ResourceWarning")
@pytest.mark.filterwarnings("ignore:subprocess \\d+ is still running:ResourceWarning")
def test_a_driver_of_ray_killed_at_any_moment_loses_nothing_and_resumes_to_the_same_numbers(
    tmp_path: Path, tally, size
) -> None:
    """The short form is in tests/executors/ray, which has a cluster anyway."""
    if size(1, 0) == 0:
        pytest.skip("starts a cluster of its own: make faults")
    from tests.executors.nodes import two_nodes

    with two_nodes(tmp_path) as nodes:
        command = KilledCommand(
            lambda home: (*run_words(home), "--executor", "ray", "--address", nodes.address),
            COMMANDS["run"].documents,
        )
        report(tally, "run --executor ray", kill_again_and_again(command, tmp_path, size(10, 1)))


def test_the_kills_of_the_full_form_are_a_hundred() -> None:
    numbers = [mark.args[1] for mark in _parametrised()]
    assert sum(full for cases in numbers for _, full, _ in cases) + 10 == 100


def _parametrised() -> list[Any]:
    test = test_a_command_killed_at_any_moment_loses_nothing_and_resumes_to_the_same_numbers
    return [mark for mark in test.pytestmark if mark.name == "parametrize"]


@pytest.mark.slow
def test_the_same_run_twice_over_gives_equal_trials(tmp_path: Path, tally) -> None:
    one, other = (start(COMMANDS["run"], tmp_path / str(i)) for i in range(2))
    assert one.documents is not None
    assert other.documents is not None
    assert one.documents[0]["trials"] == other.documents[0]["trials"], "same seeds, same numbers"
    n_trials = len(one.documents[0]["trials"])
    tally.add("the same run twice over, fresh stores", f"{n_trials} trials, all metrics identical")
