"""Options that several commands share: which plugins are loaded, and which stored trials and runs are selected."""

from __future__ import annotations

import contextlib
import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
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
    click.option("--tag", "tags", multiple=True, metavar="TEXT", help="Only runs with this tag; may be repeated."),
    click.option(
        "--where",
        "conditions",
        multiple=True,
        metavar="CONDITION",
        help="Only runs that meet it: arch.n_heads>4, task.graph=random, capacity/n_parameters>=0.2; may be repeated.",
    ),
)


@dataclass(frozen=True)
class PluginOptions:
    """How plugins are loaded: the options before the command, which every command gets as its context object."""

    strict: bool = False
    files: tuple[Path, ...] = ()
    """Plugins that are single files, loaded after the installed ones."""
    trace: bool = False
    """Whether every call into a plugin is printed to stderr."""

    def with_paths(self, text: str) -> str:
        """A text with commands that name plugin files, with the paths under which the user named them."""
        for file in self.files:
            text = text.replace(f"--plugin {shlex.quote(file.name)} ", f"--plugin {shlex.quote(str(file))} ")
        return text

    def load(self) -> Registry:
        """Loads the registry, which imports torch."""
        from capbench.registry.registry import load_registry

        return load_registry(strict=self.strict, files=self.files, observer=_print_call if self.trace else None)


def detail_options(command: Callable[..., None]) -> Callable[..., None]:
    """Adds -v and -q; the command gets how much of a result is to be printed as `detail`."""

    @wraps(command)
    def with_detail(*args: Any, is_verbose: bool, is_quiet: bool, **others: Any) -> None:
        if is_verbose and is_quiet:
            raise click.UsageError("-v prints more and -q prints less; give one of them")
        command(*args, detail="full" if is_verbose else "line" if is_quiet else "short", **others)

    quiet = click.option("-q", "--quiet", "is_quiet", is_flag=True, help="Print the answer in one line.")
    verbose = click.option("-v", "--verbose", "is_verbose", is_flag=True, help="Print all tables.")
    return verbose(quiet(with_detail))


def layout_option(command: Callable[..., None]) -> Callable[..., None]:
    """Adds --format; the command gets it as `layout`, None for text."""

    @wraps(command)
    def with_layout(*args: Any, layout: str | None, **others: Any) -> None:
        if layout and others["as_json"]:
            raise click.UsageError("--json and --format are two formats; give one of them")
        command(*args, layout=layout, **others)

    help_text = "Print the tables alone, for a document; latex needs booktabs."
    return click.option("--format", "layout", type=click.Choice(["markdown", "latex"]), help=help_text)(with_layout)


def plugin_file_option(**settings: Any) -> click.Option:
    """The option --plugin, which stands before a command or among its own options."""
    return click.Option(
        ["--plugin", "plugin_files"],
        type=click.Path(path_type=Path, exists=True, dir_okay=False),
        multiple=True,
        metavar="FILE.py",
        help="Use a file as a plugin without installing it; may be repeated.",
        **settings,
    )


def accept_plugin_files(command: click.Command) -> click.Command:
    """Adds --plugin to a command and its subcommands: they take it as `capbench` itself does."""
    if not any("--plugin" in each.opts for each in command.params):
        command.params.append(plugin_file_option(expose_value=False, callback=_add_files))
    if isinstance(command, click.Group):
        for each in command.commands.values():
            accept_plugin_files(each)
    return command


def _add_files(ctx: click.Context, _: click.Parameter, files: tuple[Path, ...]) -> tuple[Path, ...]:
    """Adds the files to those named before the command, for it and its subcommands."""
    options = ctx.find_object(PluginOptions) or PluginOptions()
    ctx.obj = replace(options, files=(*options.files, *(file for file in files if file not in options.files)))
    return files


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
        tags: tuple[str, ...],
        conditions: tuple[str, ...],
        **others: Any,
    ) -> None:
        from capbench.documents.conditions import check_condition
        from capbench.store.queries import StoreQuery

        for condition in conditions:
            check_condition(condition)
        selection = StoreQuery(task, arch, status, _utc_text(since), _utc_text(before), tags, conditions)
        if selection.is_of_runs and (status or others.get("of_trials")):
            raise click.UsageError("--tag and --where select runs; --status and --trials select trials")
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
