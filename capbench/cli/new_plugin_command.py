"""`capbench new-plugin`: a whole distribution to start from."""

from __future__ import annotations

from pathlib import Path

import click

from capbench.cli.plugin_options import PluginOptions

KINDS = ("architecture", "task", "bound", "solver")


@click.command("new-plugin")
@click.argument("name")
@click.option("--kind", type=click.Choice(KINDS), default=KINDS[0], show_default=True, help="What it provides.")
@click.option(
    "--dir",
    "parent",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path(),
    metavar="FOLDER",
    help="Where its folder is made; here by default.",
)
@click.pass_obj
def new_plugin_command(plugins: PluginOptions, name: str, kind: str, parent: Path) -> None:
    """Write a new plugin: a module that runs, its test and all that packaging needs."""
    from capbench.cli.output import plugins_print_to_stderr
    from capbench.scaffold import Scaffold, next_steps

    scaffold = Scaffold.named(name, kind)
    with plugins_print_to_stderr():
        scaffold.refuse_taken(plugins.load())
    folder = scaffold.write(parent)
    click.echo(next_steps(scaffold, folder))
