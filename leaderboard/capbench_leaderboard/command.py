"""`capbench leaderboard`: build the board, submit to it, verify what others submit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from capbench.cli.shared_options import PluginOptions, plugins_print_to_stderr

FILE = click.Path(path_type=Path, dir_okay=False)
FOLDER = click.Path(path_type=Path, file_okay=False)
records_option = click.option(
    "--records", type=FOLDER, help="Folder of records. Default: leaderboard/records, or records."
)
out_option = click.option(
    "--out", type=FOLDER, help="Where README.md, charts and site go. Default: beside the records."
)


@click.group("leaderboard")
def leaderboard_command() -> None:
    """Ranked results with error bars: build, submit, verify, serve."""


@leaderboard_command.command("build")
@records_option
@out_option
@click.option("--check", "only_check", is_flag=True, help="Write nothing; fail if README.md or a chart is stale.")
def build_command(records: Path | None, out: Path | None, only_check: bool) -> None:
    """Write README.md, charts/ and site/ from the records."""
    from capbench.documents.text import pluralize
    from capbench_leaderboard.build import build_board, check_board

    records, out = _folders(records, out)
    board = check_board(records, out) if only_check else build_board(records, out)
    _warn_broken(board.broken)
    done = "up to date" if only_check else f"written: {out / 'README.md'}, {out / 'site' / 'index.html'}"
    click.echo(f"{pluralize(len(board.entries), 'record')} in {pluralize(len(board.tables), 'table')}; {done}")


@leaderboard_command.command("serve")
@records_option
@out_option
@click.option("--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="0: any free port.")
def serve_command(records: Path | None, out: Path | None, port: int) -> None:
    """Build, then serve the site on this machine only."""
    from contextlib import suppress

    from capbench_leaderboard.build import build_board
    from capbench_leaderboard.site.server import make_server

    records, out = _folders(records, out)
    _warn_broken(build_board(records, out).broken)
    with make_server(out / "site", port) as server:
        click.echo(f"http://127.0.0.1:{server.server_address[1]}/ (stop with Ctrl-C)")
        with suppress(KeyboardInterrupt):
            server.serve_forever()


@leaderboard_command.command("submit")
@click.argument("run", metavar="RUN")
@click.option("--out", type=FILE, help="File to write. Default: ARCH-PARAMETERS-RUN.json in this folder.")
@click.option("--suite", metavar="NAME", help="The suite that the run belongs to: a name or a .toml file.")
@click.pass_obj
def submit_command(plugins: PluginOptions, run: str, out: Path | None, suite: str | None) -> None:
    """Write a run as a file that others can verify and repeat. RUN is the id of a stored run, or a JSON file.

    A run that is incomplete, not settled, or of another version than its suite is refused, before others verify it.
    """
    from capbench.errors import BadSetting
    from capbench.studies.verify.submittable import refuse_unfit
    from capbench_leaderboard.report import read_runs
    from capbench_leaderboard.submission import as_suite_record, record_file_name, record_path, write_submission

    results = read_runs(run)
    if len(results) != 1:
        raise BadSetting(f"submit takes one run, got {len(results)} in {run}; submit each by its id (capbench results)")
    (result,) = results
    if suite is not None or result.suite is not None:
        result = as_suite_record(result, suite, plugins.load())
    refuse_unfit(result)
    path = out or Path(record_file_name(result))
    write_submission(result, path)
    click.echo(f"{path}: {len(result.trials)} trials; check it with: capbench leaderboard verify {path}")
    click.echo(f"then put it into a results repository as records/{record_path(result)}", err=True)


@leaderboard_command.command("verify")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--sample", type=click.IntRange(min=0), default=8, show_default=True, help="Trials to run again.")
@click.option("--seed", type=int, help="Seed that chooses the sample. Default: unpredictable.")
@click.option("--suite", metavar="FILE", help="The suite's .toml file, if the suite does not come with capbench.")
@click.option("--mark", "marks", is_flag=True, help="Save the verdict in verified.json beside the records.")
@click.option("--by", default="", help="Who verified it, for --mark.")
@click.option(
    "--limits/--no-limits",
    "is_limited",
    default=True,
    show_default=True,
    help="Limit time, memory, disk, processes, and what the document may ask for; in a process of its own.",
)
@click.option("--time-limit", type=click.FloatRange(min=0, min_open=True), metavar="SECONDS", help="Default: 1800.")
@click.option("--memory-limit", type=click.FloatRange(min=0, min_open=True), metavar="GIB", help="Default: 4.")
@records_option
@click.pass_obj
def verify_command(
    plugins: PluginOptions,
    file: Path,
    sample: int,
    seed: int | None,
    suite: str | None,
    marks: bool,
    by: str,
    is_limited: bool,
    time_limit: float | None,
    memory_limit: float | None,
    records: Path | None,
) -> None:
    """Check a record or submission: summaries, bounds, search, and a sample of its trials run again."""
    from capbench.documents.strict_json import read_result
    from capbench.errors import BadSetting
    from capbench.report.progress import show_progress
    from capbench.studies.verify.limits import Limits, VerifyTask, verify_within_limits
    from capbench.studies.verify.verify import VerificationStatus
    from capbench_leaderboard.ranking.board import file_digest
    from capbench_leaderboard.record_text import plain_line
    from capbench_leaderboard.submission import path_in_records, save_verdict

    folder = _folders(records, None)[0]
    if marks and not sample:
        raise BadSetting("--mark needs trials that were run again, got --sample 0; drop one of the two options")
    if marks:
        path_in_records(file, folder)
    digest, result = file_digest(file) if file.is_file() else "", read_result(file)
    task = VerifyTask(result, plugins.load, show_progress, sample, seed, suite)
    limits = Limits()
    limits = replace(
        limits,
        seconds=time_limit or limits.seconds,
        memory=int(memory_limit * 2**30) if memory_limit else limits.memory,
    )
    with plugins_print_to_stderr():
        verification = verify_within_limits(task, limits) if is_limited else task.run()
    if digest != file_digest(file):
        raise BadSetting(f"{file} was changed while it was verified; verify it again")
    click.echo(f"{file}: {verification.verdict.value}")
    if verification.n_sampled or verification.verdict is VerificationStatus.VERIFIED:
        click.echo(f"  {verification.n_sampled} of {verification.n_trials} trials run again; {verification.tolerance}")
    if verification.chance:
        click.echo(f"  {verification.chance}")
    if verification.verdict is VerificationStatus.VERIFIED:
        click.echo("  as stated, not checked: machine, versions of libraries, time and cost, name and tags")
    for line in verification.findings:
        click.echo(f"  {plain_line(line)}")
    if marks:
        click.echo(f"saved in {save_verdict(file, folder, verification, by)}", err=True)
    if verification.verdict is not VerificationStatus.VERIFIED:
        raise SystemExit(1)


@leaderboard_command.command("check")
@click.argument("base")
@click.argument("head")
@click.option("--repository", type=FOLDER, default=Path(), help="The git repository. Default: this folder.")
@click.option("--records", "folder", default="records", show_default=True, help="Folder of records, in the repository.")
@click.option("--write", "writes", is_flag=True, help="Write the changed records into the repository's folder.")
def check_command(base: str, head: str, repository: Path, folder: str, writes: bool) -> None:
    """Check what a pull request changes: HEAD since it left BASE. Prints the records that are to be verified.

    It may add and change records, at names that every system can hold, and nothing else.
    """
    from capbench_leaderboard.pull_request import check_pull_request, write_records
    from capbench_leaderboard.record_text import plain_line

    records, refusals = check_pull_request(repository, base, head, folder)
    for line in refusals:
        click.echo(f"refused: {plain_line(line)}", err=True)
    if refusals:
        raise SystemExit(1)
    for path in write_records(repository, records) if writes else [repository / each.path for each in records]:
        click.echo(path)


@leaderboard_command.command("remove")
@click.argument("record", type=click.Path(path_type=Path))
@click.option("--reason", required=True, help="Why; published in removed.json and on the board.")
@records_option
def remove_command(record: Path, reason: str, records: Path | None) -> None:
    """Delete a record; removed.json keeps its name and the reason."""
    from capbench_leaderboard.submission import remove_record

    removal = remove_record(record, _folders(records, None)[0], reason)
    click.echo(f"removed {removal.record}; build the board again: capbench leaderboard build")


def _folders(records: Path | None, out: Path | None) -> tuple[Path, Path]:
    from capbench.studies.records import default_record_folder

    folder = records or default_record_folder()
    return folder, out or folder.parent


def _warn_broken(lines: tuple[str, ...]) -> None:
    from capbench.documents.text import plain

    for line in lines:
        click.echo(f"warning: left out: {plain(line)}", err=True)
