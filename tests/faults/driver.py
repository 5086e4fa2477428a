"""Runs the program, and says on a pipe when the store is open and when each trial has been committed."""

from __future__ import annotations

import os
import sys

from capbench.cli.main import main
from capbench.store import Store

pipe = int(sys.argv.pop(1))
store, add = Store.__init__, Store.add_trial


def opened(self, folder):
    store(self, folder)
    os.write(pipe, b"open\n")


def added(self, trial, task, architecture):
    add(self, trial, task, architecture)
    os.write(pipe, f"{trial.key}\n".encode())


Store.__init__, Store.add_trial = opened, added
main()
