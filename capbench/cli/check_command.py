"""`capbench check`: does a plugin keep its side of the contract?"""

from __future__ import annotations

import warnings

import click

from capbench.cli import completion
from capbench.cli.plugin_options import PluginOptions


@click.command("check")
@click.argument("target", shell_complete=completion.plugins)
@click.option("--no-compile", is_flag=True, help="Leave out the check by torch.compile, the slowest.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def check_command(ctx: click.Context, target: str, no_compile: bool, as_json: bool) -> None:
    """Check a plugin: a file, a module, a distribution or a registered name."""
    from capbench.cli.output import plugins_print_to_stderr
    from capbench.conformance.kit import examine
    from capbench.conformance.report import report_text
    from capbench.registry import PluginWarning
    from capbench.report.text import as_json_text

    plugins: PluginOptions = ctx.obj
    with plugins_print_to_stderr(), warnings.catch_warnings():
        warnings.simplefilter("ignore", PluginWarning)  # what is wrong with the target is in the report
        report = examine(target, plugins.load(), plugins.files, compiles=not no_compile)
    click.echo(as_json_text(report) if as_json else report_text(report))
    ctx.exit(1 if report.n_failed else 0)
