"""`capbench describe`: one plugin, its fields and what they mean."""

from __future__ import annotations

import click

from capbench.cli import completion
from capbench.cli.plugin_options import PluginOptions


@click.command("describe")
@click.argument("name", shell_complete=completion.plugins)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def describe_command(plugins: PluginOptions, name: str, as_json: bool) -> None:
    """Explain a task, architecture, bound or solver and its parameters."""
    from capbench.cli.output import plugins_print_to_stderr
    from capbench.report.catalogue import description, description_text
    from capbench.report.text import as_json_text

    with plugins_print_to_stderr():
        found = [description(provided) for provided in plugins.load().any(name)]
    if as_json:
        click.echo(as_json_text(found[0] if len(found) == 1 else found))
    else:
        click.echo("\n\n".join(description_text(each) for each in found))
