"""`capbench bounds`: the bounds on a pair, without training."""

from __future__ import annotations

import click

from capbench.cli.options import run_options, typed_options
from capbench.cli.shared_options import PluginOptions, plugins_print_to_stderr


@run_options(only=("task", "arch", "set", "preset"), required=("task", "arch"))
@click.command("bounds")
@click.option(
    "--at", type=click.IntRange(min=1), metavar="LOAD", help="Evaluate the bounds that depend on the load at this load."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def bounds_command(ctx: click.Context, at: int | None, as_json: bool) -> None:
    """Evaluate every bound that applies to a task and an architecture."""
    from capbench.documents.text import as_json_text, plain
    from capbench.measure.request import build_request
    from capbench.measure.theory import compare
    from capbench.report.result_text import bounds_table
    from capbench.report.terminal import terminal_width

    plugins: PluginOptions = ctx.obj
    with plugins_print_to_stderr():
        registry = plugins.load()
        request = build_request(typed_options(ctx).replaced(at=at), registry)
        bounds = [provided.cls for provided in registry.bounds.values()]
        with registry.bound_calls():
            records = compare(bounds, request.task.plugin, request.architecture.plugin, at, {})
    if as_json:
        click.echo(as_json_text(records))
        return
    shown = bounds_table([r for r in records if r.value is not None], request.task.plugin.fact, terminal_width())
    click.echo(shown or "no bound applies to this pair")
    for record in records:
        if record.reason:
            click.echo(plain(f"{record.id} does not apply: {record.reason}"))
