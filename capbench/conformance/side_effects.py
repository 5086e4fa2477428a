"""Side effects of a plugin on its process: at import, tried in a fresh process, and while its methods run."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from capbench.conformance.check import Violation, unexpected_error
from capbench.documents.result import Record
from capbench.engine.trials import seeded
from capbench.registry.plugin_file import load_file

IMPORT_TIMEOUT = 120.0
"""Seconds after which an import counts as one that never ends."""
UNLIKELY_SEED = 7_919_104_729
"""A seed that no plugin would choose, so that one that sets a seed is noticed."""
TORCH_DRAWS = "torch's default generator was drawn from"


@dataclass(frozen=True)
class GlobalState:
    """A snapshot of the process's random generators and torch's defaults, keyed by what a difference means."""

    parts: Mapping[str, str]

    @classmethod
    def now(cls) -> GlobalState:
        """The present state."""
        numpy_state = np.random.get_state(legacy=False)
        return cls(
            {
                "torch was seeded globally": str(torch.initial_seed()),
                TORCH_DRAWS: _digest(torch.default_generator.get_state().numpy().tobytes()),
                "Python's random module was seeded or drawn from": _digest(repr(random.getstate()).encode()),
                "numpy's global generator was seeded or drawn from": _digest(repr(numpy_state).encode()),
                "torch's default dtype was changed": str(torch.get_default_dtype()),
                "torch's default device was changed": str(torch.get_default_device()),
            }
        )

    def changes(self) -> list[str]:
        """What has changed since; seeding torch is not reported as drawing from it as well."""
        now = GlobalState.now().parts
        changed = [meaning for meaning, part in self.parts.items() if now[meaning] != part]
        return changed if len(changed) < 2 else [meaning for meaning in changed if meaning != TORCH_DRAWS]


def refuse_global_changes(action: Callable[[], object]) -> None:
    """Runs an action that may neither seed nor draw from any generator of the process."""
    before = GlobalState.now()
    action()
    _refuse(before.changes())


def refuse_changes_except_torch_draws(action: Callable[[], object]) -> None:
    """Runs an action, such as building a module, whose only side effect may be drawing from torch's generator."""
    with seeded(UNLIKELY_SEED):
        before = GlobalState.now()
        action()
        _refuse([change for change in before.changes() if change != TORCH_DRAWS])


class ImportReport(Record):
    """What importing one module did."""

    error: str | None = None
    seconds: float = 0.0
    printed: str = ""
    changes: tuple[str, ...] = ()


def probe_import(source: str) -> ImportReport:
    """Imports a module, or a file if the source ends in .py, in a fresh process."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    try:
        done = subprocess.run(
            [sys.executable, "-m", "capbench.conformance.side_effects", source],
            capture_output=True,
            text=True,
            env=environment,
            timeout=IMPORT_TIMEOUT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return ImportReport(error=f"it did not end within {IMPORT_TIMEOUT:g} s", seconds=IMPORT_TIMEOUT)
    *before, last = done.stdout.splitlines() or [""]
    if not last.startswith("{"):
        return ImportReport(error=f"the process ended with exit code {done.returncode}", printed=done.stdout)
    report = ImportReport.model_validate_json(last)
    return report.model_copy(update={"printed": "\n".join([*before, report.printed]).strip()})


def _import_here(source: str) -> ImportReport:
    """Imports the source in this process; what any plugin may rely on is imported before the clock starts."""
    import scipy.special  # noqa: F401

    error, printed, before = None, io.StringIO(), GlobalState.now()
    started = time.perf_counter()
    with contextlib.redirect_stdout(printed):
        try:
            load_file(Path(source)) if source.endswith(".py") else __import__(source)
        except (Exception, SystemExit) as raised:  # noqa: BLE001 - the plugin border
            error = unexpected_error(raised).seen
    seconds = time.perf_counter() - started
    return ImportReport(error=error, seconds=seconds, printed=printed.getvalue(), changes=tuple(before.changes()))


def _refuse(changes: list[str]) -> None:
    if changes:
        raise Violation(
            "no global randomness and no change to torch's defaults",
            "; ".join(changes),
            "remove the seed; draw problems from the generator passed in and initial weights from torch.randn and the "
            "like in build; draw nothing elsewhere",
        )


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


if __name__ == "__main__":
    sys.stdout.write(f"\n{_import_here(sys.argv[1]).model_dump_json()}\n")
