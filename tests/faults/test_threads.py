"""One thread or two: trials end in the same verdicts, as docs/measuring.md states."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from capbench.documents.result import Result, Trial, TrialStatus
from capbench.studies.verify.tolerance import MAX_DEVIATING_SHARE, deviations

ROOT = Path(__file__).parents[2]
RUN = ("run", "--task", "rgr", "--arch", "mha", "--preset", "smoke", "--lr", "0.2", "--device", "cpu", "--json")


def run(home: Path, n_threads: int, mode: str, n_seeds: int) -> Result:
    """A run in one process with a number of threads, at a load that about half of the trials hold."""
    words = (*RUN, "--compile", mode, "--at", "89", "--seeds", str(n_seeds))
    environment = {**os.environ, "CAPBENCH_HOME": str(home), "OMP_NUM_THREADS": str(n_threads)}
    command = [sys.executable, "-m", "capbench.cli", *words]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = Result.model_validate_json(done.stdout)
    assert found.environment.threads == n_threads
    return found


@pytest.mark.slow
@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="needs two cores")
@pytest.mark.parametrize("mode", ["on", "off"])
def test_one_thread_and_two_give_verdicts_that_agree_as_stated(tmp_path: Path, tally, size, mode: str) -> None:
    n_seeds = size(64, 8)
    one, two = (run(tmp_path / str(n), n, mode, n_seeds) for n in (1, 2))
    pairs = list(zip(one.trials, two.trials, strict=True))
    assert all(first.key == second.key for first, second in pairs)
    assert len({_holds(first) for first in one.trials}) == 2, "a load at which the verdict is open"
    off = [line for first, second in pairs for line in deviations(first, second, one, is_same_kind=False)]
    assert len(off) <= MAX_DEVIATING_SHARE * len(pairs), off
    n_same = sum(_holds(first) == _holds(second) for first, second in pairs)
    n_equal = sum(first == second for first, second in pairs)
    tally.add(
        f"the same trials on one thread and on two, steps {'compiled' if mode == 'on' else 'eager'}",
        f"{len(pairs)} trials: {n_same} equal verdicts, {n_equal} equal to the last bit, {len(pairs) - len(off)} "
        "within the tolerance of `verify`",
    )


def _holds(trial: Trial) -> bool:
    return trial.status is TrialStatus.HELD
