"""`capbench export`: stored trials or runs as a file for other programs."""

from __future__ import annotations

from pathlib import Path

import click

from capbench.cli.selection_options import selecting
from capbench.selection import Selection


@click.command("export")
@click.argument("file", type=click.Path(path_type=Path), metavar="FILE.csv|.jsonl|.parquet")
@click.option("--runs", "of_runs", is_flag=True, help="A row a run, not a row a trial.")
@selecting
def export_command(file: Path, of_runs: bool, selection: Selection) -> None:
    """Write stored trials, or with --runs the runs, as CSV, JSON lines or Parquet."""
    from capbench.errors import BadSetting
    from capbench.export import check_export_path, run_rows, trial_rows, write_export
    from capbench.report.stored import counted
    from capbench.store import Store, home

    check_export_path(file)
    if of_runs and selection.status:
        raise BadSetting("--status selects trials; leave it out with --runs")
    store = Store(home())
    if of_runs:
        rows = run_rows(store.find_runs(selection))
    else:
        rows = trial_rows(store.find_trials(selection), store.find_runs(Selection()))
    write_export(rows, file)
    click.echo(f"wrote {counted(len(rows), 'run' if of_runs else 'trial')} to {file}", err=True)
