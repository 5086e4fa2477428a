"""`capbench suite`: every pair of a named suite, one record file each."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import click

from capbench.cli.plugin_options import PluginOptions
from capbench.cli.where_options import where_options


@click.command("suite")
@click.argument("name", required=False)
@click.option("--list", "only_list", is_flag=True, help="List the suites that come with capbench.")
@click.option("--dry-run", is_flag=True, help="Print the plan and train nothing.")
@click.option("--shard", metavar="PART/PARTS", help="Only one of several equal parts of the plan: 3/16.")
@click.option("--tasks", metavar="NAME,…", help="Only these tasks of the suite.")
@click.option("--archs", metavar="NAME,…", help="Only these architectures of the suite.")
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="FOLDER",
    help="Where the records go. Default: leaderboard/records if it is there, else records.",
)
@where_options
@click.pass_obj
def suite_command(
    plugins: PluginOptions,
    name: str | None,
    only_list: bool,
    dry_run: bool,
    shard: str | None,
    tasks: str | None,
    archs: str | None,
    out: Path | None,
    device: str,
    executor: Literal["local", "ray"],
    address: str,
    gpus: float,
) -> None:
    """Measure every fitting pair of a suite: NAME (see --list) or the path of a .toml file.

    Stopped or killed, the same command goes on from there; what is stored is not trained again.
    """
    from capbench.cli.output import plugins_print_to_stderr
    from capbench.cli.series_progress import show_series
    from capbench.errors import BadSetting, RunFailed
    from capbench.plan import make_plan, parse_shard
    from capbench.records import RecordFolder, default_folder
    from capbench.report.suite_text import outcome_text, plan_text, suites_text
    from capbench.store import Store, home
    from capbench.suite import load_suite, suite_names
    from capbench.suite_run import run_plan
    from capbench.where import Where

    if only_list:
        click.echo(suites_text([load_suite(each) for each in suite_names()]))
        return
    if name is None:
        raise BadSetting(f"capbench suite takes the name of a suite ({', '.join(suite_names())}) or a .toml file")
    suite = load_suite(name)
    part = parse_shard(shard) if shard else (1, 1)
    where = Where(device, executor, address, gpus)
    with plugins_print_to_stderr():
        registry = plugins.load()
        plan = make_plan(suite, registry, _names(tasks), _names(archs), where).shard(*part)
    if dry_run:
        click.echo(plan_text(plan))
        return
    with plugins_print_to_stderr(), show_series() as progress:
        folder = RecordFolder(out or default_folder(), suite)
        results, missing = run_plan(plan, registry, Store(home()), folder, progress)
    click.echo(outcome_text(results, missing, suite.tiers))
    click.echo(f"records: {folder.path}", err=True)
    failed = len(missing) - len(plan.missing)
    if failed:
        raise RunFailed(f"{failed} of {len(plan.entries)} runs failed; the reasons are in {folder.path}/missing.json")


def _names(text: str | None) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()] if text else []
