"""`capbench doctor`: is everything here that a run needs?"""

from __future__ import annotations

import sys

import click


@click.command("doctor")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def doctor_command(strict_plugins: bool, as_json: bool) -> None:
    """Check devices, versions, plugins and the store."""
    from capbench.cli.output import plugins_print_to_stderr
    from capbench.registry import load_registry
    from capbench.report.health import health, health_text
    from capbench.report.text import as_json_text

    with plugins_print_to_stderr():
        found = health(load_registry(strict=strict_plugins))
    click.echo(as_json_text(found) if as_json else health_text(found))
    sys.exit(0 if found.healthy else 1)
