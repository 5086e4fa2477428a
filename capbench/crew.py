"""A crew: processes forked from this one, one thread each, which do pieces of work and tell how it goes."""

from __future__ import annotations

import atexit
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch

from capbench.engine.devices import MOST_THREADS
from capbench.engine.memory import share_memory
from capbench.errors import RunFailed, RunInterrupted
from capbench.interrupts import Interrupt

Work = Callable[[int, "Line"], None]
"""Does the piece of that number, in a process of the crew."""
QUOTA = Path("/sys/fs/cgroup/cpu.max")
"""Where Linux says how much of its cores a container may use: microseconds of each period, or `max`."""


@dataclass(frozen=True)
class Warned:
    """A warning was given there."""

    message: str
    category: type[Warning]
    file: str
    line: int


@dataclass(frozen=True)
class Done:
    """A piece of work has come to its end: done, or given up for a fault."""

    fault: Exception | None = None


@dataclass(frozen=True)
class Died:
    """The process at work on a piece is gone."""

    exit_code: int

    def __str__(self) -> str:
        if self.exit_code >= 0:
            return f"its process ended with exit code {self.exit_code}"
        return f"its process was killed by {signal.Signals(-self.exit_code).name}"


def crew_size(n_pieces: int, device: torch.device) -> int:
    """How many processes so many pieces of work are worth; 1 where this one had better do them all.

    With small models the threads of one process wait for each other: a process a core is quicker. Where there are few
    pieces for many cores, the threads of one process use more of them. OMP_NUM_THREADS, where the user has set it, asks
    for the threads of one process. Forking is for Linux, and not for a process that may have threads of torch at work
    on a GPU.
    """
    is_free = (
        sys.platform == "linux"
        and device.type == "cpu"
        and "OMP_NUM_THREADS" not in os.environ
        and not torch.cuda.is_available()
        and threading.current_thread() is threading.main_thread()
    )
    if not is_free:
        return 1
    n_cores = _n_cores()
    size = min(n_cores, n_pieces)
    return size if 2 * size >= min(n_cores, MOST_THREADS) else 1


def _n_cores() -> int:
    """The cores that this process may use."""
    n_cores = len(os.sched_getaffinity(0))
    with suppress(OSError, ValueError):
        used, period = QUOTA.read_text().split()
        n_cores = min(n_cores, max(1, round(int(used) / int(period))))
    return n_cores


class Line(Interrupt):
    """A process's line to the one that it was forked from; whatever comes over it in the midst of work asks to end."""

    def __init__(self, connection: Connection) -> None:
        super().__init__()
        self._connection = connection

    def tell(self, what: object) -> None:
        """Says something; nobody listening is a reason to end."""
        try:
            self._connection.send(what)
        except OSError:
            self.demand()
            raise KeyboardInterrupt from None

    def check(self) -> None:
        """Raises KeyboardInterrupt if an end is asked for, or nobody is there any more."""
        if self._connection.poll():
            self.demand()
        super().check()


@dataclass
class Member:
    """A process of the crew, and the piece that it is at."""

    process: BaseProcess
    line: Connection
    piece: int


class Crew(AbstractContextManager["Crew"]):
    """Processes are forked as pieces are handed out, and serve until the crew is left.

    `apart` is a scope without what must not be carried into another process.
    """

    def __init__(self, size: int, work: Work, apart: Callable[[], AbstractContextManager[None]]) -> None:
        self._size, self._work, self._apart = size, work, apart
        self._busy: list[Member] = []
        self._free: list[Member] = []
        atexit.register(self._hang_up)  # Python waits for them at its end, should nobody have left the crew by then

    @property
    def has_room(self) -> bool:
        """Whether another piece can be handed out now."""
        return len(self._busy) < self._size

    @property
    def n_pieces(self) -> int:
        """How many pieces are being worked on."""
        return len(self._busy)

    def hand(self, piece: int) -> None:
        """Has a piece of work done."""
        self._free = [member for member in self._free if member.process.is_alive()]
        member = self._free.pop() if self._free else self._fork()
        member.piece = piece
        self._busy.append(member)
        with suppress(OSError):  # of one that has just died `hear` will tell
            member.line.send(piece)

    def hear(self, seconds: float) -> Iterator[tuple[int, Any]]:
        """What is told of pieces, each with its number, after so many seconds at most."""
        by_line = {member.line: member for member in self._busy}
        for line in wait(list(by_line), seconds):
            member = by_line[line]  # type: ignore[index]
            try:
                told = member.line.recv()
            except (EOFError, OSError):
                self._busy.remove(member)
                member.process.join()
                yield member.piece, Died(member.process.exitcode or 0)
                continue
            if isinstance(told, Done):
                self._busy.remove(member)
                self._free.append(member)
            yield member.piece, told

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Asks all processes to end, and waits: they end after their current step. Who is impatient ends them."""
        everybody = [*self._busy, *self._free]
        self._hang_up()
        atexit.unregister(self._hang_up)
        try:
            for member in everybody if kind is not KeyboardInterrupt else ():
                member.process.join()
        finally:
            for member in everybody:
                member.process.kill()
                member.process.join()

    def _hang_up(self) -> None:
        for member in (*self._busy, *self._free):
            member.line.close()

    def _fork(self) -> Member:
        here, there = multiprocessing.Pipe()
        process = multiprocessing.get_context("fork").Process(target=self._serve, args=(there, here))
        with self._apart(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", r".*fork\(\)")  # beside other threads: the child uses nothing of theirs
            try:
                process.start()
            except OSError as error:
                raise RunFailed(
                    f"another process could not be started ({error.strerror}); OMP_NUM_THREADS=1 trains all in one"
                ) from error
        there.close()
        return Member(process, here, -1)

    def _serve(self, connection: Connection, others_end: Connection) -> None:
        """The life of a process: pieces of work, until the line is closed."""
        for number in (signal.SIGINT, signal.SIGTERM):  # the process at the other end hears them too, and hangs up
            signal.signal(number, lambda *_: None)
        for end in (others_end, *(member.line for member in (*self._busy, *self._free))):
            end.close()
        sys.stdout = sys.stderr = sys.__stderr__  # what stands in their place may draw a bar
        torch.set_num_threads(1)  # those that it had before the fork are not here
        share_memory(self._size)
        line = Line(connection)
        warnings.showwarning = lambda message, category, file, number, *_: line.tell(
            Warned(str(message), category if _travels(category) else UserWarning, file, number)
        )
        with suppress(EOFError, OSError, KeyboardInterrupt, RunInterrupted):
            while True:
                line.tell(Done(self._fault_of(connection.recv(), line)))

    def _fault_of(self, piece: int, line: Line) -> Exception | None:
        """Does a piece; the fault for which it was given up, if any."""
        try:
            self._work(piece, line)
        except RunInterrupted:
            raise
        except Exception as fault:  # noqa: BLE001 - told where it is dealt with
            return fault if _travels(fault) else RuntimeError(f"{type(fault).__name__}: {fault}")
        return None


def _travels(what: object) -> bool:
    """Whether something can be sent to another process and read there."""
    try:
        pickle.loads(pickle.dumps(what))
    except Exception:  # noqa: BLE001 - whatever a class of a plugin does there
        return False
    return True
