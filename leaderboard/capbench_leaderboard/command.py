"""`capbench leaderboard`: build the board, submit to it, check what others submit."""

from __future__ import annotations

from pathlib import Path

import click

from capbench.cli.plugin_options import PluginOptions

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
    from capbench_leaderboard.build import build, check

    records, out = _places(records, out)
    board = check(records, out) if only_check else build(records, out)
    _tell_broken(board.broken)
    done = "up to date" if only_check else f"written: {out / 'README.md'}, {out / 'site' / 'index.html'}"
    click.echo(f"{len(board.entries):,} records in {len(board.tables):,} tables; {done}")


@leaderboard_command.command("serve")
@records_option
@out_option
@click.option("--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="0: any free one.")
def serve_command(records: Path | None, out: Path | None, port: int) -> None:
    """Build, then show the site on this machine."""
    from contextlib import suppress

    from capbench_leaderboard.build import build
    from capbench_leaderboard.server import make_server

    records, out = _places(records, out)
    _tell_broken(build(records, out).broken)
    with make_server(out / "site", port) as server:
        click.echo(f"http://127.0.0.1:{server.server_address[1]}/ (stop with Ctrl-C)")
        with suppress(KeyboardInterrupt):
            server.serve_forever()


@leaderboard_command.command("submit")
@click.argument("run", metavar="RUN")
@click.option("--out", type=FILE, help="File to write. Default: here, by architecture, parameters and run.")
@click.option("--suite", metavar="NAME", help="The suite that it is a run of: a name or a .toml file.")
@click.pass_obj
def submit_command(plugins: PluginOptions, run: str, out: Path | None, suite: str | None) -> None:
    """Write a stored run as a file that others can check and repeat."""
    from capbench.store import Store, home
    from capbench_leaderboard.submission import file_name, in_suite, place, write_submission

    result = Store(home()).run_like(run)
    if suite is not None:
        result = in_suite(result, suite, plugins.load())
    path = out or Path(file_name(result))
    write_submission(result, path)
    click.echo(f"{path}: {len(result.trials)} trials; check it with: capbench leaderboard verify {path}")
    click.echo(f"then put it into a results repository as records/{place(result)}", err=True)


@leaderboard_command.command("verify")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--sample", type=click.IntRange(min=0), default=8, show_default=True, help="Trials to run again.")
@click.option("--seed", type=int, help="Choose the sample by this seed. Default: it cannot be foreseen.")
@click.option("--suite", metavar="FILE", help="The suite's .toml file, where it does not come with capbench.")
@click.option("--mark", "marks", is_flag=True, help="Note the verdict in verified.json beside the records.")
@click.option("--by", default="", help="Who verified it, for --mark.")
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
    records: Path | None,
) -> None:
    """Check a record or submission: summaries, bounds, search, and a sample of its trials run again."""
    from capbench.cli.output import plugins_print_to_stderr
    from capbench.cli.progress import show_progress
    from capbench.errors import BadSetting
    from capbench.reading import read_result
    from capbench.recheck import Verdict, recheck
    from capbench_leaderboard.submission import mark, record_name
    from capbench_leaderboard.wording import shown

    folder = _places(records, None)[0]
    if marks and not sample:
        raise BadSetting("--mark is for records whose trials were run again, got --sample 0; leave one of them out")
    if marks:
        record_name(file, folder)
    result = read_result(file)
    with plugins_print_to_stderr(), show_progress() as progress:
        found = recheck(result, plugins.load(), progress, sample, seed, suite)
    click.echo(f"{file}: {found.verdict.value}")
    if found.n_sampled or found.verdict is Verdict.VERIFIED:
        click.echo(f"  {found.n_sampled} of {found.n_trials} trials run again; {found.tolerance}")
    for line in found.findings:
        click.echo(f"  {shown(line)}")
    if marks:
        click.echo(f"noted in {mark(file, folder, found, by)}", err=True)
    if found.verdict is not Verdict.VERIFIED:
        raise SystemExit(1)


@leaderboard_command.command("remove")
@click.argument("record", type=click.Path(path_type=Path))
@click.option("--reason", required=True, help="Why; it is published in the removal log.")
@records_option
def remove_command(record: Path, reason: str, records: Path | None) -> None:
    """Take a record down; the log keeps its name and the reason."""
    from capbench_leaderboard.submission import remove

    removal = remove(record, _places(records, None)[0], reason)
    click.echo(f"removed {removal.record}; build the board again: capbench leaderboard build")


def _places(records: Path | None, out: Path | None) -> tuple[Path, Path]:
    from capbench.records import default_folder

    found = records or default_folder()
    return found, out or found.parent


def _tell_broken(lines: tuple[str, ...]) -> None:
    from capbench.report.text import plain

    for line in lines:
        click.echo(f"warning: left out: {plain(line)}", err=True)
