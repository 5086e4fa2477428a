"""docs/reliability.md, from the counts of a full run of the fault suite."""

from __future__ import annotations

import os
import platform
import sqlite3
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

TEXT = """\
# Reliability

Written by `make faults` ({date}); every figure below was counted in that run.

Machine: {machine}; Python {python}, torch {torch}, SQLite {sqlite}, capbench {capbench}.

| what was done | what was found |
|---|---|
{rows}

How it works:

- A trial is one row, committed when it ends (SQLite, write-ahead log, `synchronous=FULL`). A killed process loses the
  trials it was training, none that had ended; the same command continues.
- Processes on one store lease the trials they train; a lease ends with its trial, with its process (on the same
  machine this is seen at once, by process id and start time), or after two minutes without renewal.
- An older store is copied, then upgraded in place; a newer one is refused. Every row has a checksum: one that
  was changed is reported as damage and never returned. A damaged store is reported in one line; `capbench doctor
  --repair` renames it and copies every unchanged row that stands in the bytes of its file into a new store.
- Ctrl-C stops after the current evaluation, with everything stored and the command to continue; a second one stops at
  once.
- A plugin that raises, hangs (`--trial-timeout`), runs out of memory, returns wrong shapes, types or numbers that are
  not finite, or modifies its inputs, costs the trials at fault. They are recorded with a traceback, left out of
  the summary and counted in it, and tried again by the next run.
- A call of C code that never returns is not detected.
- Result documents are read with limits on size, depth and count, strictly by type and range, each key once, finite
  numbers only. A record that cannot be ranked or drawn all the same is left out of the board by name.
- A plugin that changes the process while it is loaded or called (torch's defaults, seeds, environment, working
  directory, functions of torch or capbench) has that undone after the call; one that patches torch or capbench, exits
  or hangs while it is loaded is left out. Both are named. What a plugin does to the functions of other libraries, or in
  threads of its own, is not watched.
"""


def write_document(rows: Mapping[str, str], path: Path) -> None:
    """Fills in the counts and the versions."""
    import torch

    import capbench

    path.parent.mkdir(exist_ok=True)
    text = TEXT.format(
        date=datetime.now(UTC).date(),
        machine=f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        python=platform.python_version(),
        torch=torch.__version__,
        sqlite=sqlite3.sqlite_version,
        capbench=capbench.__version__,
        rows="\n".join(f"| {what} | {found} |" for what, found in rows.items()),
    )
    path.write_text(text, encoding="utf-8")
