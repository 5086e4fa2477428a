"""A deadline stops a plugin that makes no progress, and nothing else."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest

from capbench.errors import TrialTimedOut
from capbench.executors.deadline import TICKS, Deadline


def tick(times: int) -> None:
    for _ in range(times):
        signal.raise_signal(signal.SIGALRM)


def test_a_deadline_raises_when_nothing_has_moved_and_never_while_a_trial_is_stored() -> None:
    deadline = Deadline(1000)
    with deadline.watching():
        tick(TICKS - 1)
        with deadline.paused():
            tick(2 * TICKS)
        tick(TICKS - 1)
        with pytest.raises(TrialTimedOut, match="no progress for 1000 s"):
            tick(1)


def test_the_time_for_which_a_process_was_stopped_does_not_count() -> None:
    code = (
        "import time; from capbench.executors.deadline import Deadline\n"
        "with Deadline(2).watching():\n  print('on', flush=True); time.sleep(0.5)\nprint('whole')"
    )
    stopped = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert stopped.stdout is not None
    assert stopped.stdout.readline() == "on\n"
    stopped.send_signal(signal.SIGSTOP)
    time.sleep(4)
    stopped.send_signal(signal.SIGCONT)
    assert stopped.communicate(timeout=600)[0] == "whole\n"


def test_a_limit_of_zero_never_raises() -> None:
    with Deadline(0).watching():
        assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
