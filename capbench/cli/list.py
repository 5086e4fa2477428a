"""`capbench list`: the installed plugins, and which pairs fit."""

from __future__ import annotations

import click

from capbench.cli.shared_options import PluginOptions, plugins_print_to_stderr


@click.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def list_command(plugins: PluginOptions, as_json: bool) -> None:
    """List tasks, architectures, bounds and solvers, and which pairs fit."""
    from capbench.documents.text import as_json_text
    from capbench.report.catalogue import build_catalogue, catalogue_text
    from capbench.report.terminal import text_width

    with plugins_print_to_stderr():
        found = build_catalogue(plugins.load())
    click.echo(as_json_text(found) if as_json else catalogue_text(found, text_width()))
