"""The `capbench` command: finds its subcommands, and turns errors into one line and an exit code."""

from __future__ import annotations

import sys
import warnings
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

import click
from click.shell_completion import CompletionItem

from capbench import __version__
from capbench.cli.shared_options import PluginOptions
from capbench.errors import CapbenchError

COMMANDS_GROUP = "capbench.commands"
BUILT_IN = (
    "run",
    "suite",
    "sweep",
    "fit",
    "reproduce",
    "calibrate",
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


class CommandGroup(click.Group):
    """Built-in commands and those of installed distributions; a command is imported when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Built-ins, the most used first, then the others by name."""
        return [*BUILT_IN, *sorted(self._added())]

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """Imports the command of that name; None if there is none."""
        if name in BUILT_IN:
            module = name.replace("-", "_")
            command: click.Command = getattr(import_module(f"capbench.cli.{module}"), f"{module}_command")
            return command
        point = self._added().get(name)
        return None if point is None else _load(point)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Lists every command; those of other distributions are listed without being imported."""
        own = [(name, command.get_short_help_str(80)) for name in BUILT_IN if (command := self.get_command(ctx, name))]
        added = [
            (name, f"from {point.dist.name if point.dist else point.value}")
            for name, point in sorted(self._added().items())
        ]
        with formatter.section("Commands"):
            formatter.write_dl([*own, *added])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Completes command names without importing the commands, and the options before them."""
        names = [CompletionItem(name) for name in self.list_commands(ctx) if name.startswith(incomplete)]
        return names + click.Command.shell_complete(self, ctx, incomplete)

    def _added(self) -> dict[str, EntryPoint]:
        """Commands of other distributions; they cannot replace a built-in."""
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


@click.group(cls=CommandGroup, context_settings={"help_option_names": ["-h", "--help"]})
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
@click.option("--plugin-trace", is_flag=True, help="Print every import and hook call of a plugin to stderr.")
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
        code = cli.main(standalone_mode=False)  # the code passed to ctx.exit, if any
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
    from capbench.documents.text import plain

    click.echo(f"error: {plain(' '.join(message.split()))}", err=True)
    sys.exit(exit_code)


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    from capbench.documents.text import plain

    click.echo(f"warning: {plain(' '.join(str(message).split()))}", err=True)
