"""A worker pool: one-thread processes forked from this one, which train the trial groups of all runs."""

from __future__ import annotations

import atexit
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Self

import torch

from capbench.documents.result import Machine
from capbench.engine.devices import this_machine
from capbench.engine.trials import TrialGroup
from capbench.errors import RunFailed
from capbench.executors.executor import Executor
from capbench.executors.in_flight import GroupLost, GroupReport, Message, RemoteExecutor, ReservedSlots
from capbench.executors.pool_worker import GroupMessage, WorkerWarning, serve
from capbench.registry.settings import Configured

QUOTA = Path("/sys/fs/cgroup/cpu.max")
"""Where Linux says how much of its cores a container may use: microseconds per period, or `max`."""
CANCEL_SECONDS = 20.0
"""How long a cancelled group may take to reach its next evaluation before its worker is killed."""


def pool_size(n_jobs: int, device: torch.device) -> int:
    """How many workers this many units of work can use; 1 where this process should train everything itself.

    With small models the threads of one process wait for each other: one process per core is faster.
    OMP_NUM_THREADS, where the user has set it, asks for the threads of one process. Workers are forked, so only on
    Linux, and not from a process that may have threads of torch running on a GPU.
    """
    can_fork = (
        sys.platform == "linux"
        and device.type == "cpu"
        and "OMP_NUM_THREADS" not in os.environ
        and not torch.cuda.is_available()
        and threading.current_thread() is threading.main_thread()
    )
    return max(1, min(_n_cores(), n_jobs)) if can_fork else 1


def _n_cores() -> int:
    """The cores that this process may use."""
    n_cores = len(os.sched_getaffinity(0))
    with suppress(OSError, ValueError):
        used, period = QUOTA.read_text().split()
        n_cores = min(n_cores, max(1, round(int(used) / int(period))))
    return n_cores


@dataclass(eq=False)
class WorkerProcess:
    """A worker and the parent's end of its connection; while it runs a group it is that group's ticket."""

    process: BaseProcess
    connection: Connection

    def exit_text(self) -> str:
        """How the process ended."""
        self.process.join()
        code = self.process.exitcode or 0
        if code >= 0:
            return f"its process ended with exit code {code}"
        return f"its process was killed by {signal.Signals(-code).name}"


class WorkerPool(ReservedSlots):
    """Workers that are forked when the pool is made and serve until it is left; one that dies is replaced."""

    def __init__(self, device: torch.device, size: int) -> None:
        super().__init__(lambda: size)
        self.device = device
        self._size = size
        self._lock = threading.Lock()
        self._shown: set[WorkerWarning] = set()
        self._idle: list[WorkerProcess] = []
        self._workers: list[WorkerProcess] = []
        atexit.register(self._disconnect)  # Python joins children at exit; close the connections first
        try:
            for _ in range(size):
                self._idle.append(self._fork())
        except BaseException:
            self.__exit__()
            raise

    @property
    def machine(self) -> Machine:
        """This machine; every worker has one thread."""
        return this_machine(self.device).model_copy(update={"threads": 1})

    @property
    def n_parallel_runs(self) -> int:
        """One more than there are workers: while a run plans its next trials, no worker is idle."""
        return self._size + 1

    def prepare(self, plugins: Iterable[Configured[Any]]) -> None:
        """Nothing to do: workers are copies of this process."""

    def executor(self, trial_timeout: float) -> Executor:
        """Trains the groups of one run on the pool's workers."""
        return RemoteExecutor(self, trial_timeout)

    def submit(self, group: TrialGroup, trial_timeout: float) -> WorkerProcess:
        """Sends a group to a free worker."""
        data = pickle.dumps(GroupMessage(replace(group), trial_timeout))
        with self._lock:
            self._idle = [worker for worker in self._idle if worker.process.is_alive()]
            worker = self._idle.pop() if self._idle else self._fork()
        with suppress(OSError):  # `receive` reports a worker that has just died
            worker.connection.send_bytes(data)
        return worker

    def receive(self, tickets: Sequence[WorkerProcess], seconds: float) -> Iterator[tuple[WorkerProcess, Message]]:
        """Messages about the groups that these workers run; waits at most `seconds`."""
        by_connection = {worker.connection: worker for worker in tickets}
        for connection in wait(list(by_connection), seconds):
            worker = by_connection[connection]  # type: ignore[index]
            try:
                message = worker.connection.recv()
            except (EOFError, OSError):
                self._forget(worker)
                yield worker, GroupLost(worker.exit_text())
                continue
            if isinstance(message, WorkerWarning):
                self._show(message)
                continue
            if _is_last(message):
                self._free(worker)
            yield worker, message

    def cancel(self, tickets: Sequence[WorkerProcess]) -> Iterator[tuple[WorkerProcess, Message]]:
        """Asks workers to stop after their current evaluation; those that take too long are killed."""
        waiting = list(tickets)
        for worker in waiting:
            with suppress(OSError):
                worker.connection.send_bytes(b"")
        until = time.monotonic() + CANCEL_SECONDS
        while waiting and time.monotonic() < until:
            for worker, message in self.receive(list(waiting), 0.5):
                if _is_last(message):
                    waiting.remove(worker)
                yield worker, message
        for worker in waiting:
            worker.process.kill()
            self._forget(worker)

    def kill(self) -> None:
        """Kills every worker."""
        for process in self._processes:
            process.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Ends all workers: those that train stop after their current evaluation."""
        self._disconnect()
        atexit.unregister(self._disconnect)
        try:
            for worker in self._workers:
                worker.process.join(CANCEL_SECONDS)
        finally:
            for process in self._processes:
                process.kill()
                process.join()

    @property
    def _processes(self) -> list[BaseProcess]:
        return [worker.process for worker in self._workers]

    def _disconnect(self) -> None:
        for worker in self._workers:
            worker.connection.close()

    def _free(self, worker: WorkerProcess) -> None:
        """A worker has ended its group."""
        with self._lock:
            self._idle.append(worker)
        self.release()

    def _forget(self, worker: WorkerProcess) -> None:
        """A worker has died with its group."""
        with self._lock:
            self._workers.remove(worker)
        self.release()

    def _show(self, warning: WorkerWarning) -> None:
        """Shows a warning once, whichever workers raise it."""
        if warning not in self._shown:
            self._shown.add(warning)
            warnings.showwarning(warning.message, warning.category, warning.filename, warning.lineno)

    def _fork(self) -> WorkerProcess:
        """Forks a worker."""
        parent_end, worker_end = multiprocessing.Pipe()
        inherited = [parent_end, *(worker.connection for worker in self._workers)]
        process = multiprocessing.get_context("fork").Process(
            target=serve, args=(worker_end, inherited, self.device, self._size)
        )
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", r".*fork\(\)")  # the worker uses nothing of this process's threads
            try:
                process.start()
            except OSError as error:
                raise RunFailed(
                    f"another process could not be started ({error.strerror}); OMP_NUM_THREADS=1 trains all in one"
                ) from error
        worker_end.close()
        worker = WorkerProcess(process, parent_end)
        self._workers.append(worker)
        return worker


def _is_last(message: Message) -> bool:
    """Whether no other message about the group follows."""
    return not isinstance(message, GroupReport) or message.cost is not None
