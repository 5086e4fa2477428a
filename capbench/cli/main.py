"""The `capbench` command: finds subcommands, and turns errors into one line and an exit code."""

from __future__ import annotations

import sys
import warnings
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

import click
from click.shell_completion import CompletionItem

from capbench import __version__
from capbench.cli.plugin_options import PluginOptions
from capbench.errors import CapbenchError

COMMANDS_GROUP = "capbench.commands"
BUILT_IN = (
    "run",
    "suite",
    "sweep",
    "fit",
    "reproduce",
    "results",
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


class Commands(click.Group):
    """Built-in commands, and those that installed distributions add; a command is imported when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Built-ins in the order of their importance, then the others by name."""
        return [*BUILT_IN, *sorted(self._added())]

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """The command of that name, imported now."""
        if name in BUILT_IN:
            word = f"{name.replace('-', '_')}_command"
            command: click.Command = getattr(import_module(f"capbench.cli.{word}"), word)
            return command
        point = self._added().get(name)
        return None if point is None else _load(point)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Lists every command; one that a distribution adds is named without being imported."""
        own = [(name, command.get_short_help_str(80)) for name in BUILT_IN if (command := self.get_command(ctx, name))]
        added = [
            (name, f"from {point.dist.name if point.dist else point.value}")
            for name, point in sorted(self._added().items())
        ]
        with formatter.section("Commands"):
            formatter.write_dl([*own, *added])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Commands by name, without importing them, and the options before them."""
        names = [CompletionItem(name) for name in self.list_commands(ctx) if name.startswith(incomplete)]
        return names + click.Command.shell_complete(self, ctx, incomplete)

    def _added(self) -> dict[str, EntryPoint]:
        """Commands that distributions add; they cannot take a built-in's name."""
        return {point.name: point for point in entry_points(group=COMMANDS_GROUP) if point.name not in BUILT_IN}


def _load(point: EntryPoint) -> click.Command:
    try:
        command = point.load()
    except (Exception, SystemExit) as error:
        source = f"{point.dist.name} {point.dist.version}" if point.dist else point.value
        raise CapbenchError(f"the command {point.name!r} of {source} could not be loaded: {error}") from error
    if not isinstance(command, click.Command):
        raise CapbenchError(f"the command {point.name!r} ({point.value}) is not a click command")
    return command


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="capbench")
@click.option("--strict-plugins", is_flag=True, help="Fail if any plugin cannot be loaded.")
@click.option(
    "--plugin",
    "plugin_files",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    multiple=True,
    metavar="FILE.py",
    help="Use a file as a plugin without installing it; may be repeated.",
)
@click.option("--plugin-trace", is_flag=True, help="Tell on stderr every import and hook call of a plugin.")
@click.pass_context
def cli(ctx: click.Context, strict_plugins: bool, plugin_files: tuple[Path, ...], plugin_trace: bool) -> None:
    """How many facts can a neural architecture hold, how sure are we, and how close is that to theory?

    Start with: capbench run --task rgr --arch mha
    """
    ctx.obj = PluginOptions(strict_plugins, plugin_files, plugin_trace)


def main() -> None:
    """Entry point of the program."""
    warnings.showwarning = _show_warning
    try:
        code = cli.main(standalone_mode=False)  # what a command gave to ctx.exit, if it did
        sys.exit(code if isinstance(code, int) else 0)
    except click.ClickException as error:
        _fail(error.format_message(), error.exit_code)
    except CapbenchError as error:
        _fail(str(error), error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        _fail("interrupted", 130)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(0)


def _fail(message: str, exit_code: int) -> None:
    from capbench.report.text import plain

    click.echo(f"error: {plain(' '.join(message.split()))}", err=True)
    sys.exit(exit_code)


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    from capbench.report.text import plain

    click.echo(f"warning: {plain(' '.join(str(message).split()))}", err=True)
