"""`capbench results`: what is stored: listed, shown, deleted, joined with other stores."""

from __future__ import annotations

from pathlib import Path

import click

from capbench.cli.selection_options import selecting
from capbench.selection import Selection


@click.group("results", invoke_without_command=True)
@click.option("--trials", "of_trials", is_flag=True, help="List trials, not runs.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@selecting
@click.pass_context
def results_command(ctx: click.Context, of_trials: bool, as_json: bool, selection: Selection) -> None:
    """List what is stored: runs, or with --trials single trials."""
    if ctx.invoked_subcommand is not None:
        return
    from capbench.report.stored import runs_text, trials_text
    from capbench.report.text import as_json_text
    from capbench.store import Store, home

    store = Store(home())
    if of_trials or selection.status:
        trials = store.find_trials(selection)
        click.echo(as_json_text([each.trial for each in trials]) if as_json else trials_text(trials))
    else:
        runs = store.find_runs(selection)
        click.echo(as_json_text([run.result for run in runs]) if as_json else runs_text(runs))


@results_command.command("show")
@click.argument("run")
@click.option("--json", "as_json", is_flag=True, help="Print the result document.")
def show_command(run: str, as_json: bool) -> None:
    """Show a stored run, by its id or the beginning of it."""
    from capbench.report.result_text import result_text
    from capbench.report.text import as_json_text
    from capbench.store import Store, home

    result = Store(home()).run_like(run)
    click.echo(as_json_text(result) if as_json else result_text(result, "fact"))


@results_command.command("delete")
@click.argument("runs", nargs=-1, metavar="[RUN]...")
@click.option("--trials", "of_trials", is_flag=True, help="Delete trials: they are trained anew when next needed.")
@click.option("--all", "everything", is_flag=True, help="Delete all, where nothing else selects.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@selecting
def delete_command(runs: tuple[str, ...], of_trials: bool, everything: bool, yes: bool, selection: Selection) -> None:
    """Delete runs, by id or by what they are of; or with --trials the trials. Deleting a run keeps its trials."""
    from capbench.errors import BadSetting
    from capbench.report.stored import counted
    from capbench.store import Store, home

    of_trials = of_trials or selection.status is not None
    if not (runs or everything or not selection.is_everything):
        raise BadSetting("delete takes run ids or a selection (--task, --arch, --since, …); --all deletes all")
    if runs and (of_trials or everything or not selection.is_everything):
        raise BadSetting("delete takes run ids or a selection, not both")
    store = Store(home())
    if of_trials:
        chosen = [each.trial.key for each in store.find_trials(selection)]
    elif runs:
        chosen = [store.run_like(run).run_id for run in runs]
    else:
        chosen = [run.result.run_id for run in store.find_runs(selection)]
    words = counted(len(chosen), "trial" if of_trials else "run")
    if chosen and not yes:
        click.confirm(f"delete {words} from {store.path}?", abort=True, err=True)
    store.delete_trials(chosen) if of_trials else store.delete_runs(chosen)
    click.echo(f"deleted {words}")


@results_command.command("merge")
@click.argument("stores", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="STORE...")
def merge_command(stores: tuple[Path, ...]) -> None:
    """Take in the trials and runs of other stores (files or their folders), each once."""
    from capbench.merge import merge
    from capbench.report.stored import counted
    from capbench.report.text import plain
    from capbench.store import Store, home

    own = Store(home())
    for store in stores:
        n_trials, n_runs = merge(own, store)
        click.echo(plain(f"{store}: {counted(n_trials, 'new trial')}, {counted(n_runs, 'new run')}"))
