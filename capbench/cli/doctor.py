"""`capbench doctor`: whether everything that a run needs is in order."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from capbench.cli.shared_options import PluginOptions, plugins_print_to_stderr

if TYPE_CHECKING:
    from pydantic import BaseModel


@click.command("doctor")
@click.option("--repair", "repairs", is_flag=True, help="Set a damaged store aside and recover what can be read.")
@click.option("--device", metavar="NAME", help="Test training on cpu, cuda, cuda:N or mps against the CPU.")
@click.option("--lanes", metavar="N[,N…]", help="Group sizes that the test of a device times.")
@click.option("--json", "json_file", is_flag=False, flag_value="-", metavar="[FILE]", help="Print JSON, or write it.")
@click.pass_obj
def doctor_command(
    plugins: PluginOptions, repairs: bool, device: str | None, lanes: str | None, json_file: str | None
) -> None:
    """Check devices, versions, plugins and the store; with --repair, repair the store; with --device, test a device."""
    if device is not None:
        _test_device(plugins, device, lanes, json_file)
    from capbench.documents.text import plain
    from capbench.report.health import check_health, health_text
    from capbench.report.terminal import text_width
    from capbench.store.repair import repair_if_damaged
    from capbench.store.store import home

    if repairs:
        for line in repair_if_damaged(home()):
            click.echo(plain(line), err=True)
    with plugins_print_to_stderr():
        found = check_health(plugins.load())
    _show(found, health_text(found, text_width()), json_file)
    sys.exit(0 if found.healthy else 1)


def _test_device(plugins: PluginOptions, name: str, lanes: str | None, json_file: str | None) -> NoReturn:
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
    _show(found, self_test_text(found, text_width()), json_file)
    sys.exit(0 if found.ready else 1)


def _show(found: BaseModel, text: str, json_file: str | None) -> None:
    """Prints a report as text, which is also written as JSON to a file; or prints JSON alone where that is `-`."""
    from capbench.documents.files import write_whole
    from capbench.documents.text import as_json_text

    click.echo(as_json_text(found) if json_file == "-" else text)
    if json_file and json_file != "-":
        write_whole(Path(json_file), as_json_text(found) + "\n", "name another file with --json")
        click.echo(f"report: {json_file}", err=True)
