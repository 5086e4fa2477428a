"""`capbench suite`: every pair of a named suite, one record file each."""

from __future__ import annotations

from pathlib import Path

import click

from capbench.cli.options import run_options, typed_options
from capbench.cli.shared_options import PluginOptions, plugins_print_to_stderr
from capbench.measure.options import TARGET_FIELDS, RunOptions


@run_options(only=("settle", *TARGET_FIELDS))
@click.command("suite")
@click.argument("name", required=False)
@click.option("--list", "only_list", is_flag=True, help="List the suites that come with capbench.")
@click.option("--dry-run", is_flag=True, help="Print the plan and train nothing.")
@click.option("--shard", metavar="PART/PARTS", help="Only one of several equal parts of the plan: 3/16.")
@click.option("--recheck", metavar="SHARE", help="Measure a random share of the recorded cells again: 10%.")
@click.option("--tasks", metavar="NAME,…", help="Only these tasks of the suite.")
@click.option("--archs", metavar="NAME,…", help="Only these architectures of the suite.")
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="FOLDER",
    help="Where the records go. Default: leaderboard/records if it is there, else records.",
)
@click.pass_context
def suite_command(
    ctx: click.Context,
    name: str | None,
    only_list: bool,
    dry_run: bool,
    shard: str | None,
    recheck: str | None,
    tasks: str | None,
    archs: str | None,
    out: Path | None,
) -> None:
    """Measure every fitting pair of a suite: NAME (see --list) or the path of a .toml file.

    After an interruption, the same command continues; stored trials are not trained again.

    With --recheck, cells are drawn by a fixed generator and measured on other seeds; they go to a folder `checks`
    beside the records, where the leaderboard compares them with the first run.
    """
    from capbench.errors import BadSetting, RunFailed
    from capbench.report.progress import show_study
    from capbench.report.study_text import plan_text, suite_text, suites_text
    from capbench.report.terminal import terminal_width, text_width
    from capbench.store.store import Store, existing_store, home
    from capbench.studies.estimate import estimate_run
    from capbench.studies.recheck import default_check_folder, parse_share, recheck_plan, recorded_cells
    from capbench.studies.records import RecordFolder, default_record_folder
    from capbench.studies.suite import load_suite, suite_file, suite_names
    from capbench.studies.suite_run import make_plan, parse_shard, run_plan

    if only_list:
        click.echo(suites_text([load_suite(each) for each in suite_names()], text_width()))
        return
    if name is None:
        raise BadSetting(f"capbench suite takes the name of a suite ({', '.join(suite_names())}) or a .toml file")
    suite = load_suite(name)
    part = parse_shard(shard) if shard else (1, 1)
    plugins = ctx.find_object(PluginOptions) or PluginOptions()
    typed = typed_options(ctx, RunOptions(task="", arch="", settle=suite.settle_share))
    with plugins_print_to_stderr():
        registry = plugins.load()
        plan = make_plan(suite, registry, _names(tasks), _names(archs), typed.target)
        if recheck is not None:
            plan = recheck_plan(plan, parse_share(recheck), recorded_cells(default_record_folder(), suite))
        plan = plan.shard(*part).settled_to(typed.settle)
        largest = [estimate_run(job, registry, existing_store()) for job in plan.largest_jobs] if dry_run else []
    if dry_run:
        click.echo(plan_text(plan, largest, terminal_width()))
        return
    with plugins_print_to_stderr(), show_study() as progress:
        default = default_record_folder() if recheck is None else default_check_folder()
        folder = RecordFolder(out or default, suite)
        try:
            results, missing = run_plan(plan, registry, Store(home()), folder, progress)
        finally:
            folder.write_log(suite_file(name))
    click.echo(suite_text(results, missing, suite.tiers, terminal_width()))
    click.echo(f"records: {folder.path}", err=True)
    failed = len(missing) - len(plan.missing)
    if failed:
        raise RunFailed(f"{failed} of {len(plan.cells)} runs failed; the reasons are in {folder.path}/missing.json")


def _names(text: str | None) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()] if text else []
