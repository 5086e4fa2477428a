"""`capbench calibrate`: the ruler against systems whose capacity is known."""

from __future__ import annotations

from pathlib import Path

import click

from capbench.cli.options import run_options, typed_options
from capbench.cli.shared_options import PluginOptions, plugins_print_to_stderr

COMPUTED = ("device", "executor", "address", "gpus", "trial_timeout", "compile_mode")
"""Options of a run that are the user's choice; the others are those of the calibration cells."""


@run_options(only=COMPUTED)
@click.command("calibrate")
@click.argument("bounds", nargs=-1, metavar="[BOUND]...")
@click.option(
    "--ci-width",
    type=click.FloatRange(0.001, 10),
    metavar="SHARE",
    help="Stop when the 95 % interval is within ± this share. Default: 0.02.",
)
@click.option(
    "--budget", type=click.IntRange(min=1), metavar="N", help="Most trials of each system's search. Default: 600."
)
@click.option("--json", "as_json", is_flag=True, help="Print the list of systems as JSON and nothing else on stdout.")
@click.option(
    "--plot",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Draw the measured curves over the exact ones: .svg, .png, .pdf or .html.",
)
@click.option(
    "--write-page",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="FOLDER",
    help="Write the page calibration.md and its figure into this folder.",
)
@click.pass_context
def calibrate_command(
    ctx: click.Context,
    bounds: tuple[str, ...],
    ci_width: float | None,
    budget: int | None,
    as_json: bool,
    plot: Path | None,
    write_page: Path | None,
) -> None:
    """Measure systems whose capacity is known, and print measured / exact with its interval.

    The systems are those that bounds name as their calibration: all of them, or only those of each BOUND.
    """
    from capbench.documents.text import as_json_text
    from capbench.errors import RunFailed
    from capbench.measure.options import RunOptions
    from capbench.report.calibration_plot import save_calibration_plot
    from capbench.report.calibration_text import calibration_text, write_calibration_page
    from capbench.report.progress import show_study
    from capbench.report.result_plot import check_plot_path
    from capbench.store.store import Store, home
    from capbench.studies.calibrate import BUDGET, CI_WIDTH, calibrate, plan_cells

    if plot:
        check_plot_path(plot)
    budget = budget or BUDGET
    declared = RunOptions(task="", arch="", ci_width=ci_width or CI_WIDTH, budget=budget, seeds=budget)
    plugins = ctx.find_object(PluginOptions) or PluginOptions()
    with plugins_print_to_stderr(), show_study() as progress:
        registry = plugins.load()
        cells = plan_cells(registry, bounds, typed_options(ctx, declared))
        systems = calibrate(cells, registry, Store(home()), progress)
    click.echo(as_json_text([system.row() for system in systems]) if as_json else calibration_text(systems))
    failed = [system for system in systems if system.result is None]
    if failed:
        raise RunFailed(f"{len(failed)} of {len(systems)} systems failed; the first: {failed[0].reason}")
    if plot:
        save_calibration_plot(systems, plot)
        click.echo(f"plot: {plot}", err=True)
    if write_page:
        click.echo(f"page: {write_calibration_page(systems, write_page)}", err=True)
