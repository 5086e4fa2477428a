"""`capbench doctor`: is everything here that a run needs?"""

from __future__ import annotations

import sys

import click

from capbench.cli.plugin_options import PluginOptions


@click.command("doctor")
@click.option("--repair", "repairs", is_flag=True, help="Set a torn store aside and save what can be read of it.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def doctor_command(plugins: PluginOptions, repairs: bool, as_json: bool) -> None:
    """Check devices, versions, plugins and the store; with --repair, mend the store."""
    from capbench.cli.output import plugins_print_to_stderr
    from capbench.report.health import health, health_text, repair
    from capbench.report.text import as_json_text, plain

    if repairs:
        for line in repair():
            click.echo(plain(line), err=True)
    with plugins_print_to_stderr():
        found = health(plugins.load())
    click.echo(as_json_text(found) if as_json else health_text(found))
    sys.exit(0 if found.healthy else 1)
