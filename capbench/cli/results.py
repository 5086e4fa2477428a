"""`capbench results`: list, show, delete and merge stored runs and trials."""

from __future__ import annotations

from pathlib import Path

import click

from capbench.cli.shared_options import layout_option, selection_options
from capbench.cli.show import show_command
from capbench.store.queries import StoreQuery


@click.group("results", invoke_without_command=True)
@click.option("--trials", "of_trials", is_flag=True, help="List trials instead of runs.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@layout_option
@selection_options
@click.pass_context
def results_command(
    ctx: click.Context, of_trials: bool, as_json: bool, layout: str | None, selection: StoreQuery
) -> None:
    """List stored runs, or with --trials stored trials."""
    if ctx.invoked_subcommand is not None:
        return
    from capbench.documents.text import as_json_text, tables_as
    from capbench.report.store_text import MOST_ROWS, run_rows, runs_text, trial_rows, trials_text
    from capbench.report.terminal import terminal_width
    from capbench.store.store import Store, home

    store, of_trials = Store(home()), of_trials or selection.status is not None
    if layout:
        rows = trial_rows(store.find_trials(selection)) if of_trials else run_rows(store.find_runs(selection))
        click.echo(tables_as([rows], layout) or f"no {'trials' if of_trials else 'runs'}", err=len(rows) == 1)
    elif of_trials:
        if as_json:
            click.echo(as_json_text([each.trial for each in store.find_trials(selection)]))
        else:
            click.echo(trials_text(*store.latest_trials(selection, MOST_ROWS), terminal_width()))
    elif as_json:
        click.echo(as_json_text([run.result for run in store.find_runs(selection)]))
    else:
        click.echo(runs_text(*store.latest_runs(selection, MOST_ROWS), terminal_width()))


results_command.add_command(show_command)


@results_command.command("delete")
@click.argument("runs", nargs=-1, metavar="[RUN]...")
@click.option("--trials", "of_trials", is_flag=True, help="Delete trials; they are trained again when needed.")
@click.option("--all", "everything", is_flag=True, help="Delete everything, if nothing else is selected.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@selection_options
def delete_command(runs: tuple[str, ...], of_trials: bool, everything: bool, yes: bool, selection: StoreQuery) -> None:
    """Delete runs by id or by a selection, or with --trials the selected trials. Deleting a run keeps its trials."""
    from capbench.documents.text import pluralize
    from capbench.errors import BadSetting
    from capbench.store.store import Store, home

    of_trials = of_trials or selection.status is not None
    if not (runs or everything or not selection.is_everything):
        raise BadSetting("delete takes run ids or a selection (--task, --arch, --since, …); --all deletes all")
    if runs and (of_trials or everything or not selection.is_everything):
        raise BadSetting("delete takes run ids or a selection, not both")
    store = Store(home())
    if of_trials:
        chosen = [each.trial.key for each in store.find_trials(selection)]
    elif runs:
        chosen = [store.find_run(run).run_id for run in runs]
    else:
        chosen = [run.result.run_id for run in store.find_runs(selection)]
    amount = pluralize(len(chosen), "trial" if of_trials else "run")
    if chosen and not yes:
        click.confirm(f"delete {amount} from {store.path}?", abort=True, err=True)
    store.delete_trials(chosen) if of_trials else store.delete_runs(chosen)
    click.echo(f"deleted {amount}")


@results_command.command("merge")
@click.argument("stores", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="STORE...")
def merge_command(stores: tuple[Path, ...]) -> None:
    """Copy the trials and runs of other stores (files or their folders) that this store does not have."""
    from capbench.documents.text import plain, pluralize
    from capbench.store.merge import merge
    from capbench.store.store import Store, home

    own = Store(home())
    for store in stores:
        n_trials, n_runs = merge(own, store)
        click.echo(plain(f"{store}: {pluralize(n_trials, 'new trial')}, {pluralize(n_runs, 'new run')}"))
