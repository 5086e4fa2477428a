"""`capbench doctor`: whether everything that a run needs is in order."""

from __future__ import annotations

import sys

import click

from capbench.cli.shared_options import PluginOptions, plugins_print_to_stderr


@click.command("doctor")
@click.option("--repair", "repairs", is_flag=True, help="Set a damaged store aside and recover what can be read.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def doctor_command(plugins: PluginOptions, repairs: bool, as_json: bool) -> None:
    """Check devices, versions, plugins and the store; with --repair, repair the store."""
    from capbench.documents.text import as_json_text, plain
    from capbench.report.health import check_health, health_text
    from capbench.store.repair import repair_if_damaged
    from capbench.store.store import home

    if repairs:
        for line in repair_if_damaged(home()):
            click.echo(plain(line), err=True)
    with plugins_print_to_stderr():
        found = check_health(plugins.load())
    click.echo(as_json_text(found) if as_json else health_text(found))
    sys.exit(0 if found.healthy else 1)
