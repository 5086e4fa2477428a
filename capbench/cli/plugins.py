"""`capbench plugins`: the installed plugins, who provides them, and which failed to load."""

from __future__ import annotations

import warnings

import click

from capbench.cli.shared_options import PluginOptions, plugins_print_to_stderr


@click.command("plugins")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--traceback", "with_traceback", is_flag=True, help="Show the traceback of each plugin that failed.")
@click.pass_obj
def plugins_command(plugins: PluginOptions, as_json: bool, with_traceback: bool) -> None:
    """Show installed plugins, who provides them, and which failed to load and why."""
    from capbench.documents.text import as_json_text
    from capbench.registry.containment import PluginWarning
    from capbench.report.catalogue import installed_text, list_installed
    from capbench.report.terminal import text_width

    with plugins_print_to_stderr(), warnings.catch_warnings():  # the output of this command reports the failures
        warnings.simplefilter("ignore", PluginWarning)
        registry = plugins.load()
    found = list_installed(registry)
    click.echo(as_json_text(found) if as_json else installed_text(found, with_traceback, text_width()))
