"""Acceptance of settled capacities: is a capacity still the same when the steps are doubled once more by hand?

`python tests/bench/settled_pairs.py [--preset standard] [--params 1k] [PAIR...]` prints a table. A pair is TASK:ARCH.
Each is run with `--params COUNT --settle`; then shape, rate and doubled steps of the result are given by hand, so that
seeds are those of the measurement. The last lines compare headsplit with mha on rgr, each settled for itself.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence

from tabulate import tabulate

from capbench.api import run
from capbench.documents.result import Capacity, Result
from capbench.documents.text import number

PAIRS = ("bigrams:aot", "triples:aot", "sequences:mha", "rgr:mha", "rgr:headsplit")
MOST_DRIFT = 0.05


def settled_and_doubled(pair: str, preset: str, params: str) -> tuple[Result, Result]:
    """The settled result of a pair, and that with its shape and rate at twice the steps."""
    task, arch = pair.split(":")
    settled = run(task=task, arch=arch, preset=preset, params=params, settle=0.05).result
    fields = {f"arch.{name}": value for name, value in settled.architecture.params.items()}
    rates, steps = settled.protocol.learning_rates, 2 * settled.protocol.steps
    doubled = run(task=task, arch=arch, preset=preset, settings=fields, learning_rates=rates, steps=steps).result
    return settled, doubled


def row(pair: str, settled: Result, doubled: Result) -> list[str]:
    """A line of the table."""
    before, after = settled.capacity, doubled.capacity
    rise = after.estimate / before.estimate - 1
    flag = {True: "yes", False: "no", None: "–"}[before.settled]
    within = "yes" if abs(rise) < MOST_DRIFT else "within the intervals" if overlap(before, after) else "NO"
    drift = "–" if before.drift is None else f"{before.drift:+.1%}"
    steps = f"{settled.protocol.steps:,}"
    return [pair, f"{settled.n_parameters:,}", flag, drift, steps, text(before), text(after), f"{1 + rise:.3f}", within]


def text(capacity: Capacity) -> str:
    """A capacity with its interval; open ends are dots."""
    low, high = ("…" if end is None else number(end) for end in (capacity.ci_low, capacity.ci_high))
    return f"{number(capacity.estimate)} ({low} to {high})"


def overlap(one: Capacity, other: Capacity) -> bool:
    """Whether two intervals have a common value."""
    low = max(one.ci_low or 0.0, other.ci_low or 0.0)
    return low <= min(one.ci_high or math.inf, other.ci_high or math.inf)


def main(words: Sequence[str] | None = None) -> None:
    """Prints the table, line by line as runs end, and whether headsplit and mha can be told apart."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pairs", nargs="*", default=PAIRS, metavar="PAIR")
    parser.add_argument("--preset", default="standard")
    parser.add_argument("--params", default="1k")
    options = parser.parse_args(words)
    rows, capacities = [], {}
    for pair in options.pairs:
        settled, doubled = settled_and_doubled(pair, options.preset, options.params)
        capacities[pair] = settled.capacity
        rows.append(row(pair, settled, doubled))
        print(*rows[-1], sep=" | ", flush=True)
    heads = ["pair", "parameters", "settled", "drift", "steps", "capacity", "at doubled steps", "ratio", "below 5 %"]
    print("\n" + tabulate(rows, heads, disable_numparse=True))
    if {"rgr:mha", "rgr:headsplit"} <= capacities.keys():
        is_same = overlap(capacities["rgr:mha"], capacities["rgr:headsplit"])
        print(f"\nheadsplit and mha on rgr: {'not distinguishable' if is_same else 'DIFFERENT'} by their intervals")


if __name__ == "__main__":
    main()
