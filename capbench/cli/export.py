"""`capbench export`: stored trials or runs as a CSV, JSON lines or Parquet file."""

from __future__ import annotations

from pathlib import Path

import click

from capbench.cli.shared_options import selection_options
from capbench.store.queries import StoreQuery


@click.command("export")
@click.argument("file", type=click.Path(path_type=Path), metavar="FILE.csv|.jsonl|.parquet")
@click.option("--runs", "of_runs", is_flag=True, help="One row per run instead of one row per trial.")
@selection_options
def export_command(file: Path, of_runs: bool, selection: StoreQuery) -> None:
    """Write stored trials, or runs with --runs, as CSV, JSON lines or Parquet."""
    from capbench.documents.text import pluralize
    from capbench.errors import BadSetting
    from capbench.store.export import check_export_path, run_rows, trial_rows, write_export
    from capbench.store.store import Store, home

    check_export_path(file)
    if of_runs and selection.status:
        raise BadSetting("--status selects trials, not runs; drop --status or --runs")
    store = Store(home())
    if of_runs:
        rows = run_rows(store.find_runs(selection))
    else:
        rows = trial_rows(store.find_trials(selection), store.find_runs(StoreQuery()))
    write_export(rows, file)
    click.echo(f"wrote {pluralize(len(rows), 'run' if of_runs else 'trial')} to {file}", err=True)
