"""`capbench describe`: one plugin and its fields."""

from __future__ import annotations

import click

from capbench.cli import completion
from capbench.cli.shared_options import PluginOptions, plugins_print_to_stderr


@click.command("describe")
@click.argument("name", shell_complete=completion.plugins)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def describe_command(plugins: PluginOptions, name: str, as_json: bool) -> None:
    """Describe a task, architecture, bound or solver and its fields."""
    from capbench.documents.text import as_json_text
    from capbench.report.catalogue import describe, description_text
    from capbench.report.terminal import text_width

    with plugins_print_to_stderr():
        found = [describe(provided) for provided in plugins.load().find(name)]
    if as_json:
        click.echo(as_json_text(found[0] if len(found) == 1 else found))
    else:
        click.echo("\n\n".join(description_text(each, text_width()) for each in found))
