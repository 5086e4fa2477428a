"""`capbench list`: what there is, and what fits together."""

from __future__ import annotations

import click

from capbench.cli.plugin_options import PluginOptions


@click.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def list_command(plugins: PluginOptions, as_json: bool) -> None:
    """List tasks, architectures, bounds and solvers, and which pairs fit."""
    from capbench.cli.output import plugins_print_to_stderr
    from capbench.report.catalogue import catalogue, catalogue_text
    from capbench.report.text import as_json_text

    with plugins_print_to_stderr():
        found = catalogue(plugins.load())
    click.echo(as_json_text(found) if as_json else catalogue_text(found))
