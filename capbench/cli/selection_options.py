"""The options that select stored trials and runs, shared by the commands that read the store."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from functools import wraps
from typing import Any

import click

from capbench.cli.completion import archs, tasks
from capbench.selection import Selection

MOMENTS = click.DateTime(["%Y-%m-%d", "%Y-%m-%dT%H:%M:%S"])
STATUSES = click.Choice(["held", "not_held", "plateau", "diverged", "failed"])
OPTIONS = (
    click.option("--task", metavar="NAME", shell_complete=tasks, help="Only of this task."),
    click.option("--arch", metavar="NAME", shell_complete=archs, help="Only of this architecture."),
    click.option("--status", type=STATUSES, help="Only trials that ended so."),
    click.option("--since", type=MOMENTS, metavar="DATE", help="Only what was stored since; UTC."),
    click.option("--before", type=MOMENTS, metavar="DATE", help="Only what was stored before; UTC."),
)


def selecting(command: Callable[..., None]) -> Callable[..., None]:
    """Adds the options to a command and hands it what they come to, as `selection`."""

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
        selection = Selection(task, arch, status, _moment(since), _moment(before))
        command(*args, selection=selection, **others)

    for option in reversed(OPTIONS):
        with_selection = option(with_selection)
    return with_selection


def _moment(given: datetime | None) -> str | None:
    return None if given is None else given.replace(tzinfo=UTC).isoformat(timespec="seconds")
