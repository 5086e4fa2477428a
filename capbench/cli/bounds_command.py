"""`capbench bounds`: what theory says of a pair, without training."""

from __future__ import annotations

import click

from capbench.cli.completion import archs, tasks
from capbench.cli.plugin_options import PluginOptions


@click.command("bounds")
@click.option("--task", required=True, metavar="NAME", shell_complete=tasks, help="A task (capbench list).")
@click.option("--arch", required=True, metavar="NAME", shell_complete=archs, help="An architecture (capbench list).")
@click.option(
    "--set",
    "sets",
    multiple=True,
    metavar="WHAT.FIELD=VALUE",
    help="Override a field: task.n_items=32, arch.n_heads=8.",
)
@click.option("--preset", default="standard", show_default=True, metavar="NAME", help="smoke, standard or paper sizes.")
@click.option(
    "--at", type=click.IntRange(min=1), metavar="LOAD", help="Evaluate at this load the bounds that depend on one."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def bounds_command(
    plugins: PluginOptions, task: str, arch: str, sets: tuple[str, ...], preset: str, at: int | None, as_json: bool
) -> None:
    """Evaluate every bound that applies to a task and an architecture."""
    from capbench.cli.output import plugins_print_to_stderr
    from capbench.options import RunOptions, build_request
    from capbench.report.result_text import bounds_table
    from capbench.report.text import as_json_text, plain
    from capbench.theory import compare

    with plugins_print_to_stderr():
        registry = plugins.load()
        request = build_request(RunOptions(task, arch, sets=sets, preset=preset, at=at), registry)
        request.check()
        bounds = [provided.cls for provided in registry.bounds.values()]
        records = compare(bounds, request.task.plugin, request.architecture.plugin, at, {})
    if as_json:
        click.echo(as_json_text(records))
        return
    click.echo(bounds_table([r for r in records if r.value is not None]) or "no bound applies to this pair")
    for record in records:
        if record.reason:
            click.echo(plain(f"{record.id} does not apply: {record.reason}"))
