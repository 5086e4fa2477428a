"""`capbench new-plugin`: writes a plugin distribution to start from."""

from __future__ import annotations

from pathlib import Path

import click

from capbench.cli.shared_options import PluginOptions, plugins_print_to_stderr

KINDS = ("architecture", "task", "bound", "solver")


@click.command("new-plugin")
@click.argument("name")
@click.option("--kind", type=click.Choice(KINDS), default=KINDS[0], show_default=True, help="Kind of plugin.")
@click.option(
    "--dir",
    "parent",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path(),
    metavar="FOLDER",
    help="Folder in which its own folder is created; the current one by default.",
)
@click.pass_obj
def new_plugin_command(plugins: PluginOptions, name: str, kind: str, parent: Path) -> None:
    """Write a new plugin: a working module, its test and the packaging files."""
    from capbench.scaffold.scaffold import Scaffold, next_steps

    scaffold = Scaffold.named(name, kind)
    with plugins_print_to_stderr():
        scaffold.refuse_taken(plugins.load())
    folder = scaffold.write(parent)
    click.echo(next_steps(scaffold, folder))
