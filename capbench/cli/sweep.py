"""`capbench sweep`: one run at every point of a grid."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import click

from capbench.cli.options import run_options, typed_options, typed_values
from capbench.cli.shared_options import PluginOptions, layout_option, plugins_print_to_stderr

GRID_HELP = (
    "A field and its values: arch.n_heads=1,2,4,8; also at=… and params=…. Repeat for a grid of several; join those "
    "that move together: arch.d_qk+arch.d_vo=1,2,4."
)


@run_options()
@click.command("sweep")
@click.argument("file", required=False, type=click.Path(path_type=Path))
@click.option("--grid", "grid_words", multiple=True, metavar="WHAT.FIELD=VALUE,…", help=GRID_HELP)
@click.option("--json", "as_json", is_flag=True, help="Print the list of result documents and nothing else on stdout.")
@click.option(
    "--plot",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Draw lines (one field) or a heat map (two): .svg, .png, .pdf or .html.",
)
@click.option("--dry-run", "is_dry", is_flag=True, help="Print what would be trained, and train nothing.")
@layout_option
@click.pass_context
def sweep_command(
    ctx: click.Context,
    file: Path | None,
    grid_words: tuple[str, ...],
    as_json: bool,
    plot: Path | None,
    is_dry: bool,
    layout: str | None,
) -> None:
    """Measure at every point of a grid, from --grid or from FILE.toml; takes the options of `capbench run`.

    Several architectures, --arch mha,mine, are measured at every point and compared with the first of them.

    After an interruption, the same command continues; stored trials are not trained again.
    """
    from capbench.documents.text import as_json_text, tables_as
    from capbench.errors import BadSetting, RunFailed
    from capbench.report.progress import show_study
    from capbench.report.study_text import difference_rows, estimates_text, sweep_rows, sweep_text
    from capbench.report.terminal import terminal_width
    from capbench.store.store import Store, existing_store, home
    from capbench.studies.estimate import estimate_run
    from capbench.studies.sweep import parse_grid, plan_sweep, read_sweep, results_of, run_points, with_architectures

    declared, grid = read_sweep(file) if file else (None, {})
    if declared is None and not {"task", "arch"} <= typed_values(ctx).keys():
        raise BadSetting("capbench sweep takes a .toml file, or --task and --arch")
    options = typed_options(ctx, declared)
    grid = parse_grid(grid_words) if grid_words or (not file and "," not in options.arch) else grid
    options, grid = with_architectures(options, grid)
    if plot:
        from capbench.report.sweep_plot import check_sweep_plot, save_sweep_plot

        check_sweep_plot(plot, grid)
    plugins = ctx.find_object(PluginOptions) or PluginOptions()
    with plugins_print_to_stderr(), show_study() as progress:
        registry = plugins.load()
        fact = registry.task(options.task).cls.fact
        planned = plan_sweep(options, grid, registry)
        if is_dry:
            store = existing_store()
            estimates = [estimate_run(each.job, registry, store) for each in planned if each.job]
        else:
            points = run_points(planned, registry, Store(home()), progress)
    if is_dry:
        click.echo(
            json.dumps(list(map(asdict, estimates)), indent=1)
            if as_json
            else estimates_text(estimates, terminal_width())
        )
        return
    results = results_of(points)
    if as_json:
        click.echo(as_json_text(results))
    elif layout:
        click.echo(tables_as((sweep_rows(points, grid, fact), difference_rows(points, grid)), layout))
    else:
        click.echo(sweep_text(points, grid, fact, terminal_width()))
    if not results:
        raise RunFailed(f"none of the {len(points)} points could be run; the first: {points[0].reason}")
    if plot:
        save_sweep_plot(points, grid, fact, plot)
        click.echo(f"plot: {plot}", err=True)
    failed = len(points) - len(results)
    if failed:
        raise RunFailed(f"{failed} of {len(points)} points failed; the reasons are in the table")
