"""A full disk ends a run in one line; what was said to be stored is there, and the store is whole."""

from __future__ import annotations

import os
import resource
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from capbench.store.store import Store

ROOT = Path(__file__).parents[2]


def limited(n_bytes: int):
    """A process that can write no file larger than this, which SQLite sees as it sees a full disk."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, n_bytes))

    return limit


@pytest.mark.slow
def test_a_disk_that_fills_up_costs_only_what_was_not_said_to_be_stored(tmp_path: Path, tally, size) -> None:
    n_kept, sizes = 0, [round(100_000 * 1.2**i) for i in range(size(20, 3))]
    for n_bytes in sizes:
        home = tmp_path / str(n_bytes)
        command = [sys.executable, "-m", "tests.faults.writer", str(home), "w", "100000", "own"]
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, preexec_fn=limited(n_bytes), check=False
        )
        assert done.returncode == 2, done.stderr
        assert done.stderr.startswith("error: the store")
        assert done.stderr.count("\n") == 1
        assert "make room on the disk" in done.stderr
        said, store = done.stdout.split(), Store(home)
        assert len(store.trials(said)) == len(said)
        assert store.check_integrity() == "ok"
        n_kept += len(said)
    tally.add(
        "disk full while trials are stored (file size limit)",
        f"{len(sizes)} times, one line each; {n_kept} trials said to be stored, 0 of them missing, every store whole",
    )


def test_a_real_run_on_a_full_disk_ends_in_one_line(tmp_path: Path) -> None:
    words = ("run", "--task", "rgr", "--arch", "mha", "--preset", "smoke", "--lr", "0.2", "--compile", "off")
    home = tmp_path / "home"
    Store(home).close()
    done = subprocess.run(
        [sys.executable, "-m", "capbench.cli", *words],
        env={**os.environ, "CAPBENCH_HOME": str(home)},
        capture_output=True,
        text=True,
        preexec_fn=limited(70_000),
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert done.stderr.splitlines()[-1].startswith("error: the store")
    assert "Traceback" not in done.stderr
    with sqlite3.connect(home / "capbench.sqlite") as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_a_home_that_nobody_may_write_to_is_one_line(capbench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CAPBENCH_HOME", "/proc/capbench")
    done = capbench("results")
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert "set CAPBENCH_HOME to a folder you can write to" in done.err
