"""`capbench show`: a stored run, as `capbench run` printed it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from capbench.cli.shared_options import PluginOptions, detail_options, plugins_print_to_stderr

if TYPE_CHECKING:
    from capbench.report.result_text import Detail


@click.command("show")
@click.argument("run")
@click.option("--json", "as_json", is_flag=True, help="Print the result document.")
@detail_options
@click.pass_context
def show_command(ctx: click.Context, run: str, as_json: bool, detail: Detail) -> None:
    """Show a stored run, by its id or the start of it; `latest` is the one stored last."""
    from capbench.documents.text import as_json_text
    from capbench.report.result_text import result_text
    from capbench.report.terminal import print_result, terminal_width
    from capbench.store.store import Store, home

    result = Store(home()).find_run(run)
    if as_json:
        click.echo(as_json_text(result))
        return
    plugins = ctx.find_object(PluginOptions) or PluginOptions()
    with plugins_print_to_stderr():
        fact = plugins.load().fact_of(result.task.name)
    print_result(plugins.with_paths(result_text(result, fact, detail, terminal_width())))
