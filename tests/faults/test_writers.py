"""Several processes on one store lose nothing, meet no lock, and do not do the same work twice."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from capbench.store.store import Store

ROOT = Path(__file__).parents[2]


def write_together(home: Path, n_writers: int, n_trials: int, kind: str) -> list[str]:
    """What each of the writers says it committed."""
    command = [sys.executable, "-m", "tests.faults.writer", str(home)]
    writers = [
        subprocess.Popen(
            [*command, f"w{i}", str(n_trials), kind],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for i in range(n_writers)
    ]
    committed = []
    for writer in writers:
        out, err = writer.communicate(timeout=600)
        assert (writer.returncode, err) == (0, "")
        committed += out.split()
    return committed


@pytest.mark.slow
def test_four_writers_at_once_lose_no_trial_and_meet_no_lock(tmp_path: Path, tally, size) -> None:
    n_trials = size(500, 40)
    committed = write_together(tmp_path, 4, n_trials, "own")
    store = Store(tmp_path)
    assert len(committed) == len(store.trials(committed)) == store.counts()[0] == 4 * n_trials
    assert store.check_integrity() == "ok"
    tally.add(
        f"four processes × {n_trials} trials on one new store, all at once",
        f"{len(committed)} committed, {len(committed) - store.counts()[0]} lost, no lock errors",
    )


@pytest.mark.slow
def test_four_processes_that_want_the_same_trials_do_each_once(tmp_path: Path, tally, size) -> None:
    n_trials = size(500, 40)
    done = write_together(tmp_path, 4, n_trials, "shared")
    assert sorted(done) == sorted(f"shared-{i}" for i in range(n_trials))
    assert Store(tmp_path).counts()[0] == n_trials
    tally.add(f"four processes that want the same {n_trials} trials", f"{len(done)} done, {len(done) - n_trials} twice")
