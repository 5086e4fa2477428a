"""The worker side of a pool: a forked process that trains trial groups and reports their trials to its parent."""

from __future__ import annotations

import pickle
import signal
import sys
import time
import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection

import torch

from capbench.documents.result import Trial
from capbench.engine.cost import Cost
from capbench.engine.memory import share_memory
from capbench.engine.trials import TrialGroup
from capbench.executors.in_flight import GroupError, GroupReport
from capbench.executors.local import LocalExecutor

REPORT_SECONDS = 0.1
"""Time between two reports of a group in which no trial has ended."""


@dataclass(frozen=True)
class GroupMessage:
    """A trial group on its way to a worker, with its timeout."""

    group: TrialGroup
    trial_timeout: float


@dataclass(frozen=True)
class WorkerWarning:
    """A warning that was raised in a worker."""

    message: str
    category: type[Warning]
    filename: str
    lineno: int


def serve(connection: Connection, inherited: Sequence[Connection], device: torch.device, pool_size: int) -> None:
    """The main loop of a worker: trains group after group until the connection is closed."""
    for number in (signal.SIGINT, signal.SIGTERM):  # the parent receives them too, and closes the connection
        signal.signal(number, lambda *_: None)
    for end in inherited:
        end.close()
    sys.stdout = sys.stderr = sys.__stderr__  # the parent's may be redirected into a progress display
    torch.set_num_threads(1)  # threads do not survive a fork
    share_memory(pool_size)
    warnings.showwarning = lambda message, category, filename, lineno, *_: _send_warning(
        connection, message, category, filename, lineno
    )
    worker = GroupWorker(connection, device)
    with suppress(EOFError, OSError):
        while True:
            data = connection.recv_bytes()
            if data:  # an empty message cancels a group that has ended by now
                connection.send(worker.run(data))


class GroupWorker:
    """Runs groups in a worker process and reports their trials."""

    def __init__(self, connection: Connection, device: torch.device) -> None:
        self._connection = connection
        self._device = device
        self._executors: dict[float, LocalExecutor] = {}
        self._ended: list[Trial] = []
        self._reported = 0.0

    def run(self, data: bytes) -> GroupReport | GroupError:
        """Runs a group to its end, or until it is cancelled; returns the last message about it."""
        self._ended = []
        try:
            cost = self._run(pickle.loads(data))
        except Exception as error:  # noqa: BLE001 - raised again in the parent
            return GroupError(error if can_be_sent(error) else RuntimeError(f"{type(error).__name__}: {error}"))
        return GroupReport(tuple(self._ended), 0, 0, cost=cost)

    def _run(self, message: GroupMessage) -> Cost:
        # One executor for all groups: it keeps compiled steps and remembers how many lanes fit in memory.
        if message.trial_timeout not in self._executors:
            self._executors[message.trial_timeout] = LocalExecutor(self._device, message.trial_timeout)
        try:
            return self._executors[message.trial_timeout].run([message.group], self._keep, self._report)
        except KeyboardInterrupt:
            return Cost()

    def _keep(self, trials: Sequence[Trial]) -> None:
        self._ended.extend(trials)

    def _report(self, step: int, n_alive: int) -> None:
        """Sends the trials that have ended; stops the group where the parent has cancelled it, or is gone."""
        now = time.monotonic()
        if self._ended or now - self._reported >= REPORT_SECONDS:
            self._reported = now
            try:
                self._connection.send(GroupReport(tuple(self._ended), step, n_alive))
            except OSError:
                raise KeyboardInterrupt from None
            self._ended = []
        if self._connection.poll():
            raise KeyboardInterrupt


def _send_warning(
    connection: Connection, message: Warning | str, category: type[Warning], filename: str, lineno: int
) -> None:
    sendable = category if can_be_sent(category) else UserWarning
    connection.send(WorkerWarning(str(message), sendable, filename, lineno))


def can_be_sent(value: object) -> bool:
    """Whether a value can be pickled and read again in another process."""
    try:
        pickle.loads(pickle.dumps(value))
    except Exception:  # noqa: BLE001 - whatever a plugin's class does there
        return False
    return True
