"""The `capbench` command: finds its subcommands, and turns errors into one line and an exit code."""

from __future__ import annotations

import atexit
import gc
import os
import sys
import warnings
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

import click
from click.shell_completion import CompletionItem

from capbench import __version__
from capbench.cli.shared_options import PluginOptions, accept_plugin_files, plugin_file_option
from capbench.errors import CapbenchError, nearest_name

COMMANDS_GROUP = "capbench.commands"
PROGRAM = "capbench"
LONGEST_SENTENCE = 300
"""Characters of help that the list of commands shows at most: no first sentence is cut."""
BUILT_IN = (
    "run",
    "suite",
    "sweep",
    "fit",
    "reproduce",
    "calibrate",
    "theories",
    "results",
    "show",
    "export",
    "bounds",
    "list",
    "describe",
    "plugins",
    "new-plugin",
    "check",
    "completion",
    "doctor",
)


class CommandGroup(click.Group):
    """Built-in commands and those of installed distributions; a command is imported when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Built-ins, the most used first, then the others by name."""
        return [*BUILT_IN, *sorted(self._added())]

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """Imports the command of that name; None if there is none."""
        command: click.Command | None = None
        if name in BUILT_IN:
            module = name.replace("-", "_")
            command = getattr(import_module(f"capbench.cli.{module}"), f"{module}_command")
        elif point := self._added().get(name):
            command = _load(point)
        return command and accept_plugin_files(command)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Finds the command that the words name; suggests the nearest one where there is none."""
        known = self.list_commands(ctx)
        if args and args[0] not in known and not args[0].startswith("-"):
            nearest = nearest_name(args[0], known)
            hint = f"; did you mean {nearest!r}?" if nearest else ""
            raise click.UsageError(f"No such command {args[0]!r}{hint} (capbench --help)", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Lists every command; those of other distributions are listed without being imported."""
        own = {name: point for name, point in self._added().items() if _is_own(point)}
        listed = [
            (name, _short_help(command))
            for name in [*BUILT_IN, *sorted(own)]
            if (command := self.get_command(ctx, name))
        ]
        others = [
            (name, f"from {point.dist.name if point.dist else point.value}")
            for name, point in sorted(self._added().items())
            if name not in own
        ]
        with formatter.section("Commands"):
            formatter.write_dl([*listed, *others])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Completes command names without importing the commands, and the options before them."""
        names = [CompletionItem(name) for name in self.list_commands(ctx) if name.startswith(incomplete)]
        return names + click.Command.shell_complete(self, ctx, incomplete)

    def _added(self) -> dict[str, EntryPoint]:
        """Commands of other distributions; they cannot replace a built-in."""
        return {point.name: point for point in entry_points(group=COMMANDS_GROUP) if point.name not in BUILT_IN}


def _is_own(point: EntryPoint) -> bool:
    """Whether a command comes with capbench, so that importing it runs no foreign code."""
    return point.dist is not None and point.dist.name == PROGRAM


def _short_help(command: click.Command) -> str:
    """The first sentence of a command's help, whole."""
    return command.get_short_help_str(LONGEST_SENTENCE)


def _load(point: EntryPoint) -> click.Command:
    try:
        command = point.load()
    except (Exception, SystemExit) as error:
        source = f"{point.dist.name} {point.dist.version}" if point.dist else point.value
        raise CapbenchError(f"the command {point.name!r} of {source} could not be loaded: {error}") from error
    if not isinstance(command, click.Command):
        raise CapbenchError(f"the command {point.name!r} ({point.value}) is not a click command")
    return command


@click.group(cls=CommandGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="capbench")
@click.option("--strict-plugins", is_flag=True, help="Fail if any plugin cannot be loaded.")
@click.option("--plugin-trace", is_flag=True, help="Print every import and hook call of a plugin to stderr.")
@click.pass_context
def cli(ctx: click.Context, strict_plugins: bool, plugin_files: tuple[Path, ...], plugin_trace: bool) -> None:
    """How many facts can a neural architecture hold, how sure are we, and how close is that to theory?

    Start with: capbench run --task rgr --arch mha
    """
    ctx.obj = PluginOptions(strict_plugins, plugin_files, plugin_trace)


cli.params.insert(2, plugin_file_option())


OBJECTS_PER_COLLECTION = 20_000
"""Importing torch makes half a million objects that stay: looking through them again and again, and once more at the
end, took 0.7 of the 2.4 s of a stored run (Python 3.11, torch 2.13)."""


def main() -> None:
    """Entry point of the program."""
    gc.set_threshold(OBJECTS_PER_COLLECTION)
    atexit.register(gc.freeze)
    _send_other_output_to_stderr()
    shown: set[str] = set()
    warnings.showwarning = lambda message, *_, **__: _show_warning(str(message), shown)
    try:
        code = cli.main(standalone_mode=False)  # the code passed to ctx.exit, if any
        sys.exit(code if isinstance(code, int) else 0)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.ctx.get_help() if error.ctx else error.format_message())
    except click.ClickException as error:
        _fail(error.format_message(), error.exit_code)
    except CapbenchError as error:
        _fail(str(error), error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        _fail("interrupted", 130)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(0)


def _send_other_output_to_stderr() -> None:
    """Keeps stdout for what capbench prints; native code and Ray, which write to its descriptor, get stderr.

    Until the process has ended: Ray says that its workers died when the document has been printed already.
    """
    stdout, stderr, is_replaced = sys.stdout, sys.stderr, sys.stdout is not sys.__stdout__
    if stdout is None or stderr is None or is_replaced:
        return  # by a test or by the program that embeds this one
    own = os.dup(stdout.fileno())
    os.dup2(stderr.fileno(), stdout.fileno())
    buffering = 1 if os.isatty(own) else -1
    # Not closed: it lives until the process has ended.
    sys.stdout = open(own, "w", buffering, stdout.encoding, stdout.errors, closefd=False)  # noqa: SIM115


def _fail(message: str, exit_code: int) -> None:
    from capbench.documents.text import plain

    click.echo(f"error: {plain(' '.join(message.split()))}", err=True)
    sys.exit(exit_code)


def _show_warning(message: str, shown: set[str]) -> None:
    """A warning in one line, once: every group of trials would repeat it."""
    from capbench.documents.text import plain

    line = plain(" ".join(message.split()))
    if line not in shown:
        shown.add(line)
        click.echo(f"warning: {line}", err=True)
