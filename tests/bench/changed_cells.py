"""Acceptance of a board: does twice the steps, another learning rate or another shape move a cell beyond its interval?

`python tests/bench/changed_cells.py [--cells 10] [--records FOLDER] [--out FILE.md]` draws settled cells at random,
measures each again with one thing changed at a time, on the seeds of the record, and prints a table. The rate is half
as large again as the best one; the shape is the second best of those that were compared.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tabulate import tabulate

from capbench.documents.result import Capacity, Result
from capbench.documents.strict_json import read_result
from capbench.documents.text import number
from capbench.measure.options import RunOptions, parse_command
from capbench.measure.request import build_request
from capbench.registry.registry import load_registry
from capbench.store.store import Store, home
from capbench.studies.jobs import Job, NullStudyListener, run_jobs

DRAW_SEED = 1
"""Seed of the generator that draws the cells: nobody chooses them."""
RATE_FACTOR = 1.5
RECORDS = Path(__file__).parents[2] / "leaderboard" / "records" / "standard"
HEADERS = ("cell", "parameters", "record", "change", "changed", "ratio", "above the interval")


@dataclass(frozen=True)
class Change:
    """A record, what is changed in its run, and the options of the changed run."""

    record: Result
    what: str
    options: RunOptions


def changes_of(record: Result) -> Iterator[Change]:
    """The record's run with one thing changed at a time."""
    own, best = parse_command(record.command), record.rates.best
    assert best is not None
    steps = record.protocol.steps
    yield Change(record, f"{2 * steps:,} steps instead of {steps:,}", own.replaced(steps=2 * steps))
    other = float(f"{best * RATE_FACTOR:.3g}")
    yield Change(record, f"learning rate {other:g} beside {best:g}", own.replaced(rates=(best, other)))
    for shape in record.architecture.shapes_tried[1:2]:
        kept = tuple(text for text in own.set if not text.startswith("arch."))
        fields = tuple(f"arch.{name}={value}" for name, value in shape.params.items() if value is not None)
        differs = [n for n, value in shape.params.items() if value != record.architecture.params[n]]
        text = ", ".join(f"{name}={shape.params[name]}" for name in differs)
        yield Change(record, f"shape {text}", own.replaced(set=(*kept, *fields), rates=(best / 2, best, 2 * best)))


def draw(folder: Path, n_cells: int) -> list[Result]:
    """Settled records, drawn at random."""
    records = [read_result(path) for path in sorted(folder.glob("*/*.json"))]
    settled = [record for record in records if record.capacity.settled and record.rates.best]
    return random.Random(DRAW_SEED).sample(settled, min(n_cells, len(settled)))


def text(capacity: Capacity) -> str:
    """A capacity with its interval; open ends are dots."""
    low, high = ("…" if end is None else number(end) for end in (capacity.ci_low, capacity.ci_high))
    return f"{number(capacity.estimate)} ({low} to {high})"


def row(change: Change, changed: Result) -> list[str]:
    """A line of the table."""
    record, before, after = change.record, change.record.capacity, changed.capacity
    is_above = before.ci_high is not None and after.estimate > before.ci_high
    tier = f" at {record.suite.tier:,}" if record.suite else ""
    cell = f"{record.task.name} × {record.architecture.name}{tier}"
    ratio = f"{after.estimate / before.estimate:.3f}"
    return [cell, number(record.n_parameters), text(before), change.what, text(after), ratio, "yes" if is_above else ""]


def page(rows: Sequence[Sequence[str]], n_cells: int) -> str:
    """What was found, as Markdown."""
    n_above = sum(bool(line[-1]) for line in rows)
    return "\n\n".join(
        [
            "# Cells of the suite with one thing changed",
            "Written by `python tests/bench/changed_cells.py`; do not edit. Each cell was measured again on the seeds "
            "of its record: with twice the steps, with another learning rate beside the chosen one, and in the second "
            "best of the shapes that were compared, at three learning rates. Cells were drawn at random among those "
            "that are settled.",
            f"{n_cells} cells, {len(rows)} changes: in {n_above} the changed estimate lies above the interval of the "
            "record. If a change did nothing, and estimates were independent, this would happen in one of twelve.",
            tabulate(rows, headers=HEADERS, tablefmt="pipe", disable_numparse=True),
        ]
    )


def main(words: Sequence[str] | None = None) -> None:
    """Measures the changed cells and writes the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, default=10)
    parser.add_argument("--records", type=Path, default=RECORDS)
    parser.add_argument("--out", type=Path, help="where the page goes; default: nowhere, it is printed")
    options = parser.parse_args(words)
    registry, records = load_registry(), draw(options.records, options.cells)
    changes = [change for record in records for change in changes_of(record)]
    jobs = [Job(change.what, build_request(change.options, registry)) for change in changes]
    rows: dict[int, list[str]] = {}
    for ended in run_jobs(jobs, registry, Store(home()), NullStudyListener()):
        assert ended.result is not None, ended.reason
        rows[ended.index] = row(changes[ended.index], ended.result)
        print(*rows[ended.index], sep=" | ", flush=True)
    found = page([rows[i] for i in sorted(rows)], len(records))
    print(f"\n{found}")
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(found + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
