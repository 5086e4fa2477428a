"""`capbench report`: one run, or several compared, as a single HTML file that looks like the board."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from capbench.documents.result import Result
    from capbench_leaderboard.ranking.ranked_tables import RankedRow


MAX_ANSWER = 600
"""Characters of the sentence above a comparison."""


@click.command("report")
@click.argument("runs", nargs=-1, required=True, metavar="RUN...")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), required=True, help="The HTML file to write.")
def report_command(runs: tuple[str, ...], out: Path) -> None:
    """Write an HTML report of a run, or of several compared. RUN is the id of a stored run, or a file of `capbench run
    --json` or `capbench sweep --json`."""
    from capbench.errors import BadSetting

    check_page_path("--out", out)
    text = report_page([result for run in dict.fromkeys(runs) for result in read_runs(run)])
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise BadSetting(f"--out needs a file it can write, got {str(out)!r}: {error}") from error
    click.echo(f"written: {out}")


def check_page_path(option: str, path: Path) -> None:
    """Raises BadSetting for a path that no page can be written to."""
    from capbench.errors import BadSetting

    if path.suffix.lower() not in (".html", ".htm"):
        raise BadSetting(f"{option} writes a page, so it takes a file ending in .html, got {path.name!r}")
    if not path.parent.is_dir():
        raise BadSetting(f"{option} needs an existing folder, got {str(path.parent)!r}")


def report_page(results: Sequence[Result], answer: str = "") -> str:
    """A page with everything inline; its content security policy allows only its own scripts."""
    from markupsafe import Markup

    from capbench_leaderboard.record_text import plain_line
    from capbench_leaderboard.site.writer import load_templates, read_static, specs_script, vega_script

    rows = _rows(results)
    scripts = [vega_script(), specs_script(), read_static("board.js")]
    hashes = " ".join(_hash(script) for script in (read_static("theme.js"), *scripts))
    policy = f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data:; base-uri 'none'"
    values = {
        "root": "",
        "policy": policy,
        "title": _title(rows),
        "answer": plain_line(answer, MAX_ANSWER),
        "css": Markup(read_static("board.css")),
        "theme": Markup(read_static("theme.js")),
        "scripts": [Markup(script) for script in scripts],
        "records": [_record(row, f"run{i}") for i, row in enumerate(rows)],
        **_comparison(rows),
    }
    return load_templates().get_template("report.html.j2").render(values)


def read_runs(run: str) -> list[Result]:
    """The results in a JSON file, as `run --json` and `sweep --json` write it, or a run of the store by its id."""
    from capbench.store.store import Store, home
    from capbench.studies.fit_data import read_results

    is_file = run.endswith(".json") or Path(run).is_file()
    return read_results(Path(run)) if is_file else [Store(home()).find_run(run)]


def _rows(results: Sequence[Result]) -> tuple[RankedRow, ...]:
    from capbench_leaderboard.ranking.entry import make_entry
    from capbench_leaderboard.ranking.ranked_tables import rank_chosen

    return rank_chosen([make_entry(f"{i}-{result.run_id}", result) for i, result in enumerate(results)])


def _title(rows: Sequence[RankedRow]) -> str:
    from capbench_leaderboard.record_text import plain_line

    pairs = dict.fromkeys(f"{r.entry.result.task.name} × {r.entry.result.architecture.name}" for r in rows)
    return plain_line(", ".join(pairs))


def _record(row: RankedRow, name: str) -> str:
    from capbench_leaderboard.site.record_page import run_page
    from capbench_leaderboard.site.writer import load_templates

    page = load_templates().get_template("report_record.html.j2")
    return page.render(record=run_page(row.entry, name), name=name, root="")


def _comparison(rows: Sequence[RankedRow]) -> dict[str, object]:
    """The table and the charts that compare several runs; empty for one."""
    from capbench_leaderboard.record_text import plain_line
    from capbench_leaderboard.site.html_table import HtmlTable
    from capbench_leaderboard.site.pages import task_charts
    from capbench_leaderboard.table_rows import RANKED_COLUMNS, ranked_cells, without_unused

    if len(rows) < 2:
        return {"comparison": None, "charts": []}
    labels = {row.entry.path: plain_line(row.entry.result.architecture.name) for row in rows}
    links = {row.entry.path: f"#run{i}" for i, row in enumerate(rows)}
    cells = [ranked_cells(row, labels, links[row.entry.path]) for row in rows]
    charts = []
    for n, task in enumerate(dict.fromkeys(row.entry.result.task.name for row in rows)):
        own = [row.entry for row in rows if row.entry.result.task.name == task]
        charts += task_charts(own, plain_line(task), f"task{n}", links)
    return {
        "comparison": HtmlTable("compared", "Runs compared", *without_unused(RANKED_COLUMNS, cells)),
        "charts": charts,
    }


def _hash(script: str) -> str:
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return f"'sha256-{digest}'"
