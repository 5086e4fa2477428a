"""A run of 100,000 trials on a cluster, up to its first groups: how long until they are sent, and in what memory."""

from __future__ import annotations

import json
import math
import re
import sys
import time
from pathlib import Path

STARTED = time.monotonic()

from capbench.errors import RunInterrupted  # noqa: E402 - importing is part of what is timed
from capbench.executors.ray.cluster import RayCluster  # noqa: E402
from capbench.measure.options import RunOptions  # noqa: E402
from capbench.measure.request import build_request  # noqa: E402
from capbench.measure.run import execute  # noqa: E402
from capbench.registry.registry import load_registry  # noqa: E402
from capbench.store.store import Store, home  # noqa: E402

N_TRIALS = 100_000
ENOUGH = 1000
"""Trials stored before the run is ended: by then groups come, are stored and are followed by others."""
found: dict[str, float] = {"trials": N_TRIALS}
submit = RayCluster.submit


class Listener:
    """Ends the run as Ctrl-C would, once it has seen enough."""

    n_trained = 0

    def compiling(self) -> None: ...
    def plan(self, *_: object) -> None:
        found["planned_seconds"] = time.monotonic() - STARTED

    def trained(self, *_: object) -> None:
        self.n_trained += 1
        if self.n_trained == ENOUGH:
            raise KeyboardInterrupt

    def step(self, *_: object) -> None: ...


def first_sent(self: RayCluster, group, trial_timeout):
    ticket = submit(self, group, trial_timeout)
    found.setdefault("sent_seconds", time.monotonic() - STARTED)
    found.setdefault("sent_cpu_seconds", time.process_time())
    found.setdefault("sent_megabytes", megabytes())
    return ticket


def megabytes() -> float:
    """The most memory that this program has had so far; getrusage would count what its parent had when it forked."""
    peak = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(peak[1]) / 1024 if peak else math.nan


RayCluster.submit = first_sent
options = RunOptions(
    task="rgr", arch="mha", preset="smoke", at=12, rates=(0.4,), steps=50, seeds=N_TRIALS, compile_mode="off",
    executor="ray", address=sys.argv[1],
)  # fmt: skip
registry = load_registry()
try:
    execute(build_request(options, registry), registry, Store(home()), Listener())
except RunInterrupted:
    found["megabytes"] = megabytes()
    print(json.dumps(found))
