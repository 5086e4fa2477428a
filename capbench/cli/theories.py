"""`capbench theories`: every bound and law against every measured cell."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from capbench.cli.completion import archs, tasks
from capbench.cli.shared_options import PluginOptions, plugins_print_to_stderr

if TYPE_CHECKING:
    from capbench.studies.theories.frozen import ScoreRow
    from capbench.studies.theories.judged import TheoryRow


@click.command("theories")
@click.argument("bounds", nargs=-1, metavar="[BOUND]...")
@click.option("--task", metavar="NAME", shell_complete=tasks, help="Only cells of this task.")
@click.option("--arch", metavar="NAME", shell_complete=archs, help="Only cells of this architecture.")
@click.option(
    "--records",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="Judge by the records in this folder alone. Default: those of leaderboard/records and leaderboard/theories if "
    "they are there, and the store.",
)
@click.option(
    "--max-spread",
    type=click.FloatRange(min=1),
    metavar="FACTOR",
    help="Most that the constant of a law may differ within a series of sizes. Default: 2.",
)
@click.option(
    "--max-error",
    type=click.FloatRange(min=0),
    metavar="ERROR",
    help="Most that a law may err on held-out sizes: rms of log(measured / predicted). Default: 0.35.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the list of bounds as JSON and nothing else on stdout.")
@click.option(
    "--freeze",
    "freeze_to",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write the predictions for cells not measured yet to a new file, with a hash and the date.",
)
@click.option(
    "--score",
    "score_from",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Score the frozen predictions of a file on the cells measured since.",
)
@click.pass_context
def theories_command(
    ctx: click.Context,
    bounds: tuple[str, ...],
    task: str | None,
    arch: str | None,
    records: Path | None,
    max_spread: float | None,
    max_error: float | None,
    as_json: bool,
    freeze_to: Path | None,
    score_from: Path | None,
) -> None:
    """Judge every bound and law, or each BOUND named, by every measured cell, without training.

    Exit code 1: a cell is beyond an upper bound, a bound raises an error, or a law that you name or bring as a
    --plugin file is rejected.
    """
    from capbench.documents.text import as_json_text
    from capbench.errors import RunFailed, UnknownName
    from capbench.report.theories_text import score_text, theories_text
    from capbench.studies.theories.cells import measured_results, read_cells
    from capbench.studies.theories.frozen import freeze, new_cells, read_frozen, score, write_frozen
    from capbench.studies.theories.judge import FAILING, judge
    from capbench.studies.theories.judged import LawLimits

    if freeze_to and score_from:
        raise click.UsageError("--freeze writes predictions and --score scores them; give one of them")
    if score_from and (max_spread or max_error is not None):
        raise click.UsageError("--score judges by the limits that were frozen; leave --max-spread and --max-error out")
    default = LawLimits()
    limits = LawLimits(max_spread or default.spread, default.error if max_error is None else max_error)
    with plugins_print_to_stderr():
        registry = (ctx.find_object(PluginOptions) or PluginOptions()).load()
        for name in bounds:
            if name not in registry.bounds:
                raise UnknownName.among("bound", name, registry.bounds, "capbench list")
        chosen = [each for name, each in registry.bounds.items() if name in bounds or not bounds]
        cells, left_out = read_cells(measured_results(records), registry, task, arch)
        rows: Sequence[TheoryRow | ScoreRow]
        with registry.bound_calls():
            if score_from:
                frozen = read_frozen(score_from)
                cells = new_cells(frozen, cells)
                rows = scored = score(frozen, registry.bounds, cells, bounds)
                text = score_text(scored, len(cells), frozen.frozen)
            else:
                rows = judged = judge([each.cls for each in chosen], cells, limits)
                text = theories_text(judged, cells, left_out, limits)
            if freeze_to:
                made = freeze([each.cls for each in chosen], cells, limits)
                write_frozen(freeze_to, made)
                click.echo(f"frozen: {freeze_to}, {made.frozen}, sha256 {made.hash}", err=True)
    click.echo(as_json_text(rows) if as_json else text)
    own = {each.cls.name for each in chosen if each.cls.name in bounds or each.provenance.is_file}
    against = [row for row in rows if row.verdict in FAILING or (row.verdict == "rejected" and row.bound in own)]
    if against:
        raise RunFailed("the cells contradict " + ", ".join(f"{row.bound} ({row.verdict})" for row in against))
