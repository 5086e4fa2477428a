"""`capbench sweep`: one run at every point of a grid."""

from __future__ import annotations

from pathlib import Path

import click

from capbench.cli.options import run_options, typed_names, typed_options
from capbench.cli.shared_options import PluginOptions, plugins_print_to_stderr

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
    help="Draw lines (one field) or a heat map (two): .png, .svg or .html.",
)
@click.pass_context
def sweep_command(
    ctx: click.Context, file: Path | None, grid_words: tuple[str, ...], as_json: bool, plot: Path | None
) -> None:
    """Measure at every point of a grid, from --grid or from FILE.toml; takes the options of `capbench run`.

    After an interruption, the same command continues; stored trials are not trained again.
    """
    from capbench.documents.text import as_json_text
    from capbench.errors import BadSetting, RunFailed
    from capbench.report.progress import show_study
    from capbench.report.study_text import sweep_text
    from capbench.store.store import Store, home
    from capbench.studies.sweep import parse_grid, read_sweep, results_of, run_sweep

    declared, grid = read_sweep(file) if file else (None, {})
    if declared is None and not {"task", "arch"} <= typed_names(ctx):
        raise BadSetting("capbench sweep takes a .toml file, or --task and --arch")
    options = typed_options(ctx, declared)
    grid = parse_grid(grid_words) if grid_words or not file else grid
    if plot:
        from capbench.report.sweep_plot import check_sweep_plot, save_sweep_plot

        check_sweep_plot(plot, grid)
    plugins = ctx.find_object(PluginOptions) or PluginOptions()
    with plugins_print_to_stderr(), show_study() as progress:
        points = run_sweep(options, grid, plugins.load(), Store(home()), progress)
    results = results_of(points)
    click.echo(as_json_text(results) if as_json else sweep_text(points, grid))
    if not results:
        raise RunFailed(f"none of the {len(points)} points could be run; the first: {points[0].reason}")
    if plot:
        save_sweep_plot(points, grid, plot)
        click.echo(f"plot: {plot}", err=True)
    failed = len(points) - len(results)
    if failed:
        raise RunFailed(f"{failed} of {len(points)} points failed; the reasons are in the table")
