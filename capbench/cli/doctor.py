"""`capbench doctor`: whether everything that a run needs is in order."""

from __future__ import annotations

import sys
from typing import NoReturn

import click

from capbench.cli.shared_options import PluginOptions, plugins_print_to_stderr


@click.command("doctor")
@click.option("--repair", "repairs", is_flag=True, help="Set a damaged store aside and recover what can be read.")
@click.option("--device", metavar="NAME", help="Test training on cpu, cuda, cuda:N or mps against the CPU.")
@click.option("--lanes", metavar="N[,N…]", help="Group sizes that the test of a device times.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def doctor_command(plugins: PluginOptions, repairs: bool, device: str | None, lanes: str | None, as_json: bool) -> None:
    """Check devices, versions, plugins and the store; with --repair, repair the store; with --device, test a device."""
    if device is not None:
        _test_device(plugins, device, lanes, as_json)
    from capbench.documents.text import as_json_text, plain
    from capbench.report.health import check_health, health_text
    from capbench.report.terminal import text_width
    from capbench.store.repair import repair_if_damaged
    from capbench.store.store import home

    if repairs:
        for line in repair_if_damaged(home()):
            click.echo(plain(line), err=True)
    with plugins_print_to_stderr():
        found = check_health(plugins.load())
    click.echo(as_json_text(found) if as_json else health_text(found, text_width()))
    sys.exit(0 if found.healthy else 1)


def _test_device(plugins: PluginOptions, name: str, lanes: str | None, as_json: bool) -> NoReturn:
    from capbench.documents.text import as_json_text
    from capbench.engine.devices import resolve_device
    from capbench.errors import BadSetting
    from capbench.report.health import self_test_text
    from capbench.report.terminal import text_width
    from capbench.studies.self_test import check_device

    sizes = lanes.split(",") if lanes else []
    if not all(size.isdecimal() and int(size) > 1 for size in sizes):
        raise BadSetting(f"--lanes takes whole numbers above 1, separated by commas, got {lanes!r}")
    with plugins_print_to_stderr():
        found = check_device(resolve_device(name), plugins.load(), [int(size) for size in sizes])
    click.echo(as_json_text(found) if as_json else self_test_text(found, text_width()))
    sys.exit(0 if found.ready else 1)
