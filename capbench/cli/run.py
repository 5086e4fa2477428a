"""`capbench run`: the capacity of one architecture on one task."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from capbench.cli.options import run_options, typed_options
from capbench.cli.shared_options import PluginOptions, detail_options, plugins_print_to_stderr

if TYPE_CHECKING:
    from capbench.report.result_text import Detail


@run_options(required=("task", "arch"))
@click.command("run")
@click.option("--json", "as_json", is_flag=True, help="Print the result document and nothing else on stdout.")
@click.option("--profile", is_flag=True, help="Print the time per phase to stderr.")
@click.option("--readings", is_flag=True, help="Print other readings of the same trials side by side.")
@click.option(
    "--plot", type=click.Path(path_type=Path), metavar="FILE", help="Draw the curve: .svg, .png, .pdf or .html."
)
@click.option("--dry-run", "is_dry", is_flag=True, help="Print what would be trained, and train nothing.")
@detail_options
@click.pass_context
def run_command(
    ctx: click.Context, as_json: bool, profile: bool, readings: bool, plot: Path | None, is_dry: bool, detail: Detail
) -> None:
    """Measure how many facts an architecture holds."""
    from capbench.documents.text import as_json_text
    from capbench.measure.request import build_request, matched_text
    from capbench.measure.run import execute
    from capbench.report.progress import show_progress
    from capbench.report.result_text import profile_text, readings_text, result_text
    from capbench.report.study_text import estimates_text
    from capbench.report.terminal import print_result, terminal_width
    from capbench.store.store import Store, existing_store, home
    from capbench.studies.estimate import estimate_run
    from capbench.studies.jobs import Job

    options = typed_options(ctx)
    if plot:
        from capbench.report.result_plot import check_plot_path, save_plot

        check_plot_path(plot)
    plugins = ctx.find_object(PluginOptions) or PluginOptions()
    with plugins_print_to_stderr(), show_progress(is_quiet=detail == "line") as listener:
        registry = plugins.load()
        request = build_request(options, registry)
        if (options.params or options.match) and detail != "line":
            click.echo(matched_text(request), err=True)
        if is_dry:
            job = Job(f"{options.task} × {options.arch}", request)
            estimate = estimate_run(job, registry, existing_store())
        else:
            result = execute(request, registry, Store(home()), listener)
    if is_dry:
        click.echo(json.dumps(asdict(estimate), indent=1) if as_json else estimates_text([estimate], terminal_width()))
        return
    fact = request.task.plugin.fact
    if as_json:
        click.echo(as_json_text(result))
    else:
        print_result(plugins.with_paths(result_text(result, fact, detail, terminal_width())))
    if readings and not as_json:
        click.echo("\n" + readings_text(result, fact, terminal_width()))
    if profile:
        click.echo(profile_text(result.timing), err=True)
    if plot:
        save_plot(result, fact, plot)
        click.echo(f"plot: {plot}", err=True)
