"""Runs the program, and says on a pipe when the store is open and which trials have been committed."""

from __future__ import annotations

import os
import sys

from capbench.cli.main import main
from capbench.store.store import Store

pipe = int(sys.argv.pop(1))
store, add = Store.__init__, Store.add_trials


def opened(self, folder):
    store(self, folder)
    os.write(pipe, b"open\n")


def added(self, trials, task, architecture):
    trials = list(trials)
    add(self, trials, task, architecture)
    os.write(pipe, "".join(f"{trial.key}\n" for trial in trials).encode())


Store.__init__, Store.add_trials = opened, added
main()
