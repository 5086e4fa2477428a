"""A process that stores made-up trials: `writer.py HOME NAME COUNT own|shared`; prints a line for each commit."""

from __future__ import annotations

import sys
from pathlib import Path

from capbench.documents.result import Trial, TrialStatus
from capbench.errors import CapbenchError
from capbench.store.store import Store


def trial(key: str, seed: int) -> Trial:
    metrics = {"f1": 1.0, "bits": 12.5}
    return Trial(key=key, load=8, seed=seed, learning_rate=0.1, status=TrialStatus.HELD, steps=5, metrics=metrics)


def write(home: Path, name: str, count: int, shared: bool) -> None:
    store = Store(home)
    for seed in range(count):
        key = f"shared-{seed}" if shared else f"{name}-{seed}"
        if shared and not store.lease([key]):
            continue
        if shared and store.trials([key]):
            continue
        store.add_trials([trial(key, seed)], "rgr", "mha")
        print(key, flush=True)
    store.release_leases()


if __name__ == "__main__":
    try:
        write(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4] == "shared")
    except CapbenchError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
