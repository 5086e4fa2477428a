"""`capbench check`: tests whether a plugin follows the contract."""

from __future__ import annotations

import warnings

import click

from capbench.cli import completion
from capbench.cli.shared_options import PluginOptions, plugins_print_to_stderr


@click.command("check")
@click.argument("target", shell_complete=completion.plugins)
@click.option("--no-compile", is_flag=True, help="Skip the check that a step can be compiled, the slowest one.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def check_command(ctx: click.Context, target: str, no_compile: bool, as_json: bool) -> None:
    """Check a plugin: a file, a module, a distribution or a registered name."""
    from capbench.conformance.check import report_text
    from capbench.conformance.kit import check_target
    from capbench.documents.text import as_json_text
    from capbench.registry.containment import PluginWarning

    plugins: PluginOptions = ctx.obj
    with plugins_print_to_stderr(), warnings.catch_warnings():
        warnings.simplefilter("ignore", PluginWarning)  # the report covers it
        report = check_target(target, plugins.load(), plugins.files, compiles=not no_compile)
    click.echo(as_json_text(report) if as_json else report_text(report))
    ctx.exit(1 if report.n_failed else 0)
