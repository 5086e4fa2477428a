"""Compiling in the background: a process that compiles the steps of trial groups while others train."""

from __future__ import annotations

import signal
import threading
import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

import torch

from capbench.engine.devices import one_thread
from capbench.engine.step import CompileFailed, has_programs, prepare_programs
from capbench.engine.trials import TrialGroup

Shape = tuple[str, int]
"""What decides the compiled step of a group: its setup's identity and its slots."""


class BackgroundCompiler:
    """The parent's side of the compiling process, which every run of a pool may ask."""

    def __init__(self, process: BaseProcess, connection: Connection, device: torch.device) -> None:
        self.process = process
        self.connection = connection
        self._device = device
        self._lock = threading.Lock()
        self._asked: list[Shape] = []
        self._failed: set[Shape] = set()

    def has_compiled_step(self, group: TrialGroup) -> bool | None:
        """Whether the step of a group is compiled; None while it is being compiled, which the first call starts."""
        shape = (group.setup.identity, group.slots)
        with self._lock:
            self._receive()
            if shape in self._failed:
                return False
            with one_thread():  # compiled code depends on the number of threads, and workers have one
                if has_programs(group, self._device):
                    return True
            if shape not in self._asked:
                self._asked.append(shape)
                self._send(group)
        return None

    def _send(self, group: TrialGroup) -> None:
        with suppress(OSError):  # the next call of `_receive` finds that the process is gone
            self.connection.send(replace(group, trials=group.trials[:1]))

    def _receive(self) -> None:
        """Takes note of the steps that could not be compiled; of a process that has died, all."""
        try:
            while self.connection.poll():
                identity, slots, reason = self.connection.recv()
                self._asked.remove((identity, slots))
                if reason:
                    self._failed.add((identity, slots))
                    warnings.warn(reason, CompileFailed, stacklevel=3)
        except (EOFError, OSError):
            self._failed.update(self._asked)


def serve_compiling(connection: Connection, inherited: Sequence[Connection], device: torch.device) -> None:
    """The main loop of the compiling process: one group after the other until the connection is closed."""
    for number in (signal.SIGINT, signal.SIGTERM):  # the parent receives them too, and kills this process
        signal.signal(number, signal.SIG_IGN)
    for end in inherited:
        end.close()
    torch.set_num_threads(1)
    with suppress(EOFError, OSError):
        while True:
            group = connection.recv()
            connection.send((group.setup.identity, group.slots, _compile(group, device)))


def _compile(group: TrialGroup, device: torch.device) -> str:
    """Compiles the step of a group into the folder of compiled steps; returns why it cannot, or nothing."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            prepare_programs(group, device)
        except Exception as error:  # noqa: BLE001 - the plugin border: training fails in the same way, and records it
            return f"the step could not be compiled and runs eagerly: {error}"
    return next((str(w.message) for w in caught if issubclass(w.category, CompileFailed)), "")
