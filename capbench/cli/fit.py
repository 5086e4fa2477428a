"""`capbench fit`: simple laws fitted to the results of a sweep."""

from __future__ import annotations

from pathlib import Path

import click

X_HELP = (
    "A field of each run, or an expression: arch.n_heads, n_parameters, task.n_items*log(task.n_items)/task.d_item."
)


@click.command("fit")
@click.argument("file", required=False, type=click.Path(path_type=Path))
@click.option("--runs", metavar="ID,…", help="Stored runs instead of a file (the last column of a sweep).")
@click.option("--x", required=True, metavar="WHAT", help=X_HELP)
@click.option("--y", default="capacity", show_default=True, metavar="WHAT", help="The same, for the fitted quantity.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def fit_command(file: Path | None, runs: str | None, x: str, y: str, as_json: bool) -> None:
    """Fit simple laws to results. FILE is JSON, one result or a list, as `capbench sweep --json` prints.

    The forms are ranked by how well they predict held-out points, not by R².
    """
    from capbench.documents.text import as_json_text
    from capbench.errors import BadSetting
    from capbench.report.study_text import fit_text
    from capbench.report.terminal import terminal_width
    from capbench.store.store import Store, home
    from capbench.studies.fit import fit_forms
    from capbench.studies.fit_data import points_of, read_results, stored_results

    if (file is None) == (runs is None):
        raise BadSetting("capbench fit takes a file of results or --runs ID,ID,…; give exactly one of them")
    if file is not None:
        results = read_results(file)
    else:
        results = stored_results(
            Store(home()), [run_id.strip() for run_id in (runs or "").split(",") if run_id.strip()]
        )
    points, left_out = points_of(results, x, y)
    report = fit_forms(points, x, y, left_out)
    click.echo(as_json_text(report) if as_json else fit_text(report, terminal_width()))
