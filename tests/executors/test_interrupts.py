"""Ctrl-C: the first waits for a good moment, the second does not, and afterwards everything is as before."""

from __future__ import annotations

import signal

import pytest

from capbench.executors.deadline import Deadline
from capbench.executors.interrupts import deferred


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_waits_for_the_next_check(number: signal.Signals, capfd: pytest.CaptureFixture[str]) -> None:
    with deferred() as interrupt:
        interrupt.check()
        signal.raise_signal(number)
        with pytest.raises(KeyboardInterrupt):
            interrupt.check()
    assert "press again to stop at once" in capfd.readouterr().err


def test_the_second_signal_ends_at_once() -> None:
    with deferred():
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_handlers_are_as_before_afterwards() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)]
    with deferred(), Deadline(100).watching():
        assert signal.getsignal(signal.SIGINT) != before[0]
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)] == before
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
