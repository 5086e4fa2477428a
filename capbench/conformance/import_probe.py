"""Imports a plugin in a process of its own, where nothing else has touched it, and tells what that did."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
import time
from pathlib import Path

from capbench.results import Record

TIME_LIMIT = 120.0
"""Seconds after which an import counts as one that never ends."""


class ImportReport(Record):
    """What importing one module did."""

    error: str | None = None
    seconds: float = 0.0
    printed: str = ""
    changes: tuple[str, ...] = ()


def probe_import(source: str) -> ImportReport:
    """Imports a module, or a file where the source ends in .py, in a fresh process."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    try:
        done = subprocess.run(
            [sys.executable, "-m", "capbench.conformance.import_probe", source],
            capture_output=True,
            text=True,
            env=environment,
            timeout=TIME_LIMIT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return ImportReport(error=f"it did not end within {TIME_LIMIT:g} s", seconds=TIME_LIMIT)
    *before, last = done.stdout.splitlines() or [""]
    if not last.startswith("{"):
        return ImportReport(error=f"the process ended with exit code {done.returncode}", printed=done.stdout)
    report = ImportReport.model_validate_json(last)
    return report.model_copy(update={"printed": "\n".join([*before, report.printed]).strip()})


def _import_here(source: str) -> ImportReport:
    """The same in this process. What plugins may take for granted is imported before the clock starts."""
    import scipy.special  # noqa: F401
    import torch  # noqa: F401

    from capbench.conformance.global_state import GlobalState
    from capbench.conformance.outcome import unforeseen
    from capbench.plugin_file import load_file

    error, printed, before = None, io.StringIO(), GlobalState.now()
    started = time.perf_counter()
    with contextlib.redirect_stdout(printed):
        try:
            load_file(Path(source)) if source.endswith(".py") else __import__(source)
        except (Exception, SystemExit) as raised:  # noqa: BLE001 - the plugin border
            error = unforeseen(raised).seen
    seconds = time.perf_counter() - started
    return ImportReport(error=error, seconds=seconds, printed=printed.getvalue(), changes=tuple(before.changes()))


if __name__ == "__main__":
    sys.stdout.write(f"\n{_import_here(sys.argv[1]).model_dump_json()}\n")
