"""`capbench compare`: architectures on one task, as a table, a picture and one sentence, without a suite."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from capbench.cli.options import run_options, typed_options
from capbench.cli.shared_options import PluginOptions, plugins_print_to_stderr
from capbench.measure.options import RunOptions

if TYPE_CHECKING:
    from capbench.documents.result import Result
    from capbench.registry.registry import Registry
    from capbench.studies.jobs import Job
    from capbench_leaderboard.ranking.ranked_tables import RankedRow

FILE = click.Path(path_type=Path, dir_okay=False)
OTHER_QUESTIONS = ("at", "minimize", "overload")
SHARED_OPTIONS = tuple(name for name in RunOptions.model_fields if name not in ("arch", "analyse", *OTHER_QUESTIONS))


@run_options(only=SHARED_OPTIONS, required=("task",))
@click.command("compare")
@click.argument("archs", nargs=-1, required=True, metavar="ARCH ARCH...")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document and nothing else on stdout.")
@click.option("--plot", type=FILE, metavar="FILE", help="Draw the success curves: .png, .svg, .pdf or .html.")
@click.option("--html", type=FILE, metavar="FILE", help="Write a page with the table, the picture and every run.")
@click.pass_context
def compare_command(
    ctx: click.Context, archs: tuple[str, ...], as_json: bool, plot: Path | None, html: Path | None
) -> None:
    """Which architecture holds more facts of a task, by how much, and how sure that is.

    They are measured on the same seeds. --set arch.n_heads=4 is for all of them, --set mha.n_heads=4 for mha alone.
    Example: capbench compare mha gqa mlp --task rgr --params 1k. Stored trials are not trained again.
    """
    from capbench.report.progress import show_study
    from capbench.report.terminal import terminal_width
    from capbench.store.store import Store, home
    from capbench_leaderboard.comparison_picture import save_comparison
    from capbench_leaderboard.ranking.contrast import contrast, sentence

    _check_files(plot, html)
    options = typed_options(ctx, RunOptions(task="", arch=""))
    plugins = ctx.find_object(PluginOptions) or PluginOptions()
    with plugins_print_to_stderr():
        registry = plugins.load()
        jobs = plan_comparison(archs, options, registry)
    with plugins_print_to_stderr(), show_study() as progress:
        results = measure(jobs, registry, Store(home()), progress)
    rows, answer = ranked(results), sentence(contrast(results))
    click.echo(
        json.dumps(as_document(rows, answer), indent=1) if as_json else table_text(rows, answer, terminal_width())
    )
    if plot:
        save_comparison(results, jobs[0].request.task.plugin.fact, answer, plot)
        click.echo(f"plot: {plot}", err=True)
    if html:
        _write_page(results, answer, html)


def plan_comparison(archs: Sequence[str], options: RunOptions, registry: Registry) -> list[Job]:
    """A job per architecture; raises in one line where they cannot be compared."""
    from capbench.errors import BadSetting
    from capbench.measure.request import build_request
    from capbench.studies.jobs import Job

    if len(archs) < 2:
        raise BadSetting(f"capbench compare takes two or more architectures, got {len(archs)}: {', '.join(archs)}")
    for name in archs:
        registry.architecture(name)
        if archs.count(name) > 1:
            raise BadSetting(f"capbench compare takes each architecture once, got {name!r} {archs.count(name)} times")
    requests = [
        build_request(options.replaced(arch=name, set=_own(options.set, name, archs)), registry) for name in archs
    ]
    return [Job(f"{request.task.plugin.name} × {request.architecture.plugin.name}", request) for request in requests]


def _own(settings: Sequence[str], name: str, archs: Sequence[str]) -> tuple[str, ...]:
    """The settings for one architecture: the shared ones, then those that name it."""
    shared = [text for text in settings if text.partition(".")[0] not in archs]
    return (*shared, *(f"arch{text[len(name) :]}" for text in settings if text.partition(".")[0] == name))


def measure(jobs: Sequence[Job], registry: Registry, store: Any, listener: Any) -> list[Result]:
    """The results of all jobs in their order; raises RunFailed where one has none."""
    from capbench.errors import RunFailed
    from capbench.studies.jobs import in_order, run_jobs

    results = []
    for finished in in_order(run_jobs(jobs, registry, store, listener)):
        if finished.result is None:
            raise RunFailed(f"{finished.job.label} has no result: {finished.reason}")
        results.append(finished.result)
    return results


def ranked(results: Sequence[Result]) -> tuple[RankedRow, ...]:
    """The results ranked by their joint posterior, with those that share trials compared on them."""
    from capbench_leaderboard.ranking.entry import make_entry
    from capbench_leaderboard.ranking.ranked_tables import rank_chosen

    return rank_chosen([make_entry(f"{i}-{result.run_id}", result) for i, result in enumerate(results)])


def table_text(rows: Sequence[RankedRow], answer: str, width: int | None = None) -> str:
    """The table, the best first, and the sentence, within a width if one is given."""
    from capbench.documents.text import fold, table

    headers, *cells = table_rows(rows)
    return f"{table(cells, headers, width)}\n\n{fold(answer, width) if width else answer}"


def table_rows(rows: Sequence[RankedRow]) -> list[tuple[str, ...]]:
    """Headers, then one row per architecture, the best first; columns without any value are left out."""
    from capbench.documents.text import number
    from capbench_leaderboard.record_text import (
        capacity_text,
        comparison_text,
        drift_text,
        interval_text,
        probability_text,
    )

    labels = {row.entry.path: row.entry.result.architecture.name for row in rows}
    cells: list[tuple[str, ...]] = []
    for row in rows:
        result = row.entry.result
        cells.append(
            (
                str(row.rank),
                probability_text(row.standing) if row.standing else "–",
                result.architecture.name,
                capacity_text(result.capacity),
                interval_text(result.capacity),
                drift_text(result.capacity),
                number(result.n_parameters),
                f"{result.bits_per_parameter:.3g}",
                comparison_text(row, labels),
                result.run_id,
            )
        )
    headers = ("rank", "best", "architecture", "capacity", "95 % interval", "drift", "parameters", "bits per parameter")
    named = [(*headers, "on shared seeds", "run"), *cells]
    used = [i for i, column in enumerate(zip(*cells, strict=True)) if set(column) != {"–"}]
    return [tuple(row[i] for i in used) for row in named]


def as_document(rows: Sequence[RankedRow], answer: str) -> dict[str, Any]:
    """The comparison as JSON."""
    return {"cells": [_cell(row) for row in rows], "sentence": answer}


def _cell(row: RankedRow) -> dict[str, Any]:
    result, standing = row.entry.result, row.standing
    return {
        "task": result.task.name,
        "architecture": result.architecture.name,
        "n_parameters": result.n_parameters,
        "capacity": result.capacity.model_dump(mode="json"),
        "bits_per_parameter": result.bits_per_parameter,
        "rank": [standing.best, standing.worst] if standing else None,
        "probability_best": [standing.least_probability, standing.greatest_probability] if standing else None,
        "run_id": result.run_id,
        "command": result.command,
    }


def _check_files(plot: Path | None, html: Path | None) -> None:
    """Raises BadSetting for files that cannot be written, before any training."""
    from capbench.report.result_plot import check_plot_path
    from capbench_leaderboard.report import check_page_path

    if plot:
        check_plot_path(plot)
    if html:
        check_page_path("--html", html)


def _write_page(results: Sequence[Result], answer: str, path: Path) -> None:
    from capbench.errors import BadSetting
    from capbench_leaderboard.report import report_page

    try:
        path.write_text(report_page(results, answer), encoding="utf-8")
    except OSError as error:
        raise BadSetting(f"--html needs a file it can write, got {str(path)!r}: {error}") from error
    click.echo(f"page: {path}", err=True)
