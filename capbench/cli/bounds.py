"""`capbench bounds`: the bounds on a pair, without training."""

from __future__ import annotations

import click

from capbench.cli.completion import archs, tasks
from capbench.cli.shared_options import PluginOptions, plugins_print_to_stderr


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
    "--at", type=click.IntRange(min=1), metavar="LOAD", help="Evaluate the bounds that depend on the load at this load."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def bounds_command(
    plugins: PluginOptions, task: str, arch: str, sets: tuple[str, ...], preset: str, at: int | None, as_json: bool
) -> None:
    """Evaluate every bound that applies to a task and an architecture."""
    from capbench.documents.text import as_json_text, plain
    from capbench.measure.options import RunOptions
    from capbench.measure.request import build_request
    from capbench.measure.theory import compare
    from capbench.report.result_text import bounds_table

    with plugins_print_to_stderr():
        registry = plugins.load()
        request = build_request(RunOptions(task=task, arch=arch, set=sets, preset=preset, at=at), registry)
        bounds = [provided.cls for provided in registry.bounds.values()]
        records = compare(bounds, request.task.plugin, request.architecture.plugin, at, {})
    if as_json:
        click.echo(as_json_text(records))
        return
    click.echo(bounds_table([r for r in records if r.value is not None]) or "no bound applies to this pair")
    for record in records:
        if record.reason:
            click.echo(plain(f"{record.id} does not apply: {record.reason}"))
