"""A store of 200,000 trials: lists and reruns stay quick, and everything else grows with the number of rows."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.store.large import fill

MOST_SECONDS = 2.0
"""For the list and for reading a stored run again, above the time that an empty store takes."""


def seconds(home: Path, *words: str) -> float:
    """The time of a whole command in a process of its own."""
    environment = {**os.environ, "CAPBENCH_HOME": str(home)}
    started = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "capbench.cli", *words], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return time.perf_counter() - started


@pytest.mark.slow
def test_a_large_store_is_listed_and_reused_at_once_and_exported_in_linear_time(tmp_path: Path, tally, size) -> None:
    n_trials = size(200_000, 2_000)
    run = ("run", "--task", "rgr", "--arch", "mha", "--preset", "smoke", "--at", "8", "--seeds", "2", "--json")
    commands = {
        "`results`": ("results",),
        "`results --trials`": ("results", "--trials"),
        "a stored run again": run,
        "`export`": ("export", str(tmp_path / "trials.csv")),
        "`doctor`": ("doctor",),
    }
    homes = {n: tmp_path / str(n) for n in (0, n_trials // 2, n_trials)}
    taken = {}
    for n, home in homes.items():
        fill(home, n)
        seconds(home, *run)  # stores the run, and its compiled programs
        taken[n] = {name: seconds(home, *words) for name, words in commands.items()}
    none, half, whole = taken.values()
    tally.add(
        f"a store of {n_trials:,} trials, whole commands (with half as many; with none)",
        "; ".join(f"{name} {whole[name]:.1f} s ({half[name]:.1f}; {none[name]:.1f})" for name in commands),
    )
    if n_trials == 200_000:  # times say something in the full form only, which runs on a quiet machine
        slow = [name for name in list(commands)[:3] if whole[name] - none[name] > MOST_SECONDS]
        assert not slow, taken
        steep = [name for name in commands if whole[name] - none[name] > 3 * (half[name] - none[name]) + 1]
        assert not steep, taken
