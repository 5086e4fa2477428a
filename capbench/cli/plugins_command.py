"""`capbench plugins`: what is installed, from where, and what failed to load."""

from __future__ import annotations

import warnings

import click

from capbench.cli.plugin_options import PluginOptions


@click.command("plugins")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--traceback", "with_traceback", is_flag=True, help="Show where each failed plugin failed.")
@click.pass_obj
def plugins_command(plugins: PluginOptions, as_json: bool, with_traceback: bool) -> None:
    """Show installed plugins, who provides them, and what failed to load and why."""
    from capbench.cli.output import plugins_print_to_stderr
    from capbench.registry import PluginWarning
    from capbench.report.catalogue import installed, installed_text
    from capbench.report.text import as_json_text

    with plugins_print_to_stderr(), warnings.catch_warnings():  # this command's own output says it
        warnings.simplefilter("ignore", PluginWarning)
        registry = plugins.load()
    found = installed(registry)
    click.echo(as_json_text(found) if as_json else installed_text(found, with_traceback))
