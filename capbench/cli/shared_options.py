"""Options that several commands share: which plugins are loaded, and which stored trials and runs are selected."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from capbench.cli.completion import archs, tasks

if TYPE_CHECKING:
    from capbench.registry.registry import PluginCall, Registry

DATES = click.DateTime(["%Y-%m-%d", "%Y-%m-%dT%H:%M:%S"])
STATUSES = click.Choice(["held", "not_held", "plateau", "diverged", "failed"])
SELECTION_OPTIONS = (
    click.option("--task", metavar="NAME", shell_complete=tasks, help="Only of this task."),
    click.option("--arch", metavar="NAME", shell_complete=archs, help="Only of this architecture."),
    click.option("--status", type=STATUSES, help="Only trials with this status."),
    click.option("--since", type=DATES, metavar="DATE", help="Only what was stored at or after this date (UTC)."),
    click.option("--before", type=DATES, metavar="DATE", help="Only what was stored before this date (UTC)."),
)


@dataclass(frozen=True)
class PluginOptions:
    """How plugins are loaded: the options before the command, which every command gets as its context object."""

    strict: bool = False
    files: tuple[Path, ...] = ()
    """Plugins that are single files, loaded after the installed ones."""
    trace: bool = False
    """Whether every call into a plugin is printed to stderr."""

    def load(self) -> Registry:
        """Loads the registry, which imports torch."""
        from capbench.registry.registry import load_registry

        return load_registry(strict=self.strict, files=self.files, observer=_print_call if self.trace else None)


def plugins_print_to_stderr() -> contextlib.AbstractContextManager[object]:
    """Redirects stdout to stderr while plugin code runs, so that stdout holds the answer alone."""
    return contextlib.redirect_stdout(sys.stderr)


def selection_options(command: Callable[..., None]) -> Callable[..., None]:
    """Adds the options that select stored trials and runs; the command gets them as `selection`."""

    @wraps(command)
    def with_selection(
        *args: Any,
        task: str | None,
        arch: str | None,
        status: str | None,
        since: datetime | None,
        before: datetime | None,
        **others: Any,
    ) -> None:
        from capbench.store.queries import StoreQuery

        selection = StoreQuery(task, arch, status, _utc_text(since), _utc_text(before))
        command(*args, selection=selection, **others)

    for option in reversed(SELECTION_OPTIONS):
        with_selection = option(with_selection)
    return with_selection


def _print_call(call: PluginCall) -> None:
    from capbench.documents.text import plain

    origin = f"{call.provenance.distribution} {call.provenance.version}, entry point {call.provenance.entry_point}"
    line = f"trace: {call.what} [{origin}] -> {call.returned or 'nothing'} ({1000 * call.seconds:.1f} ms)"
    click.echo(plain(" ".join(line.split())), err=True)


def _utc_text(date: datetime | None) -> str | None:
    return None if date is None else date.replace(tzinfo=UTC).isoformat(timespec="seconds")
