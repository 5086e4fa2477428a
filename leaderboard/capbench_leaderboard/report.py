"""`capbench report`: one run, or several next to each other, as a page of its own that looks like the board."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from capbench.results import Result
    from capbench_leaderboard.ranking import Row


@click.command("report")
@click.argument("runs", nargs=-1, required=True, metavar="RUN...")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), required=True, help="The HTML file to write.")
def report_command(runs: tuple[str, ...], out: Path) -> None:
    """Write an HTML report of a run, or of several compared. RUN is a run of the store, or a JSON file."""
    from capbench.errors import BadSetting

    text = report_page([_result(run) for run in dict.fromkeys(runs)])
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise BadSetting(f"--out needs a file it can write, got {str(out)!r}: {error}") from error
    click.echo(f"written: {out}")


def report_page(results: Sequence[Result]) -> str:
    """One file with everything in it; its policy lets only its own scripts run."""
    from markupsafe import Markup

    from capbench_leaderboard.site import specs_script, static, templates, vega

    rows = _rows(results)
    scripts = [vega(), specs_script(), static("board.js")]
    hashes = " ".join(_hash(script) for script in (static("theme.js"), *scripts))
    policy = f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data:; base-uri 'none'"
    values = {
        "root": "",
        "policy": policy,
        "title": _title(rows),
        "css": Markup(static("board.css")),
        "theme": Markup(static("theme.js")),
        "scripts": [Markup(script) for script in scripts],
        "records": [_record(row, f"run{i}") for i, row in enumerate(rows)],
        **_comparison(rows),
    }
    return templates().get_template("report.html.j2").render(values)


def _result(run: str) -> Result:
    """A document by its file, or a run of the store by the start of its name."""
    from capbench.reading import read_result
    from capbench.store import Store, home

    is_file = run.endswith(".json") or Path(run).is_file()
    return read_result(Path(run)) if is_file else Store(home()).run_like(run)


def _rows(results: Sequence[Result]) -> tuple[Row, ...]:
    from capbench_leaderboard.entry import make_entry
    from capbench_leaderboard.ranking import side_by_side

    return side_by_side([make_entry(f"{i}-{result.run_id}", result) for i, result in enumerate(results)])


def _title(rows: Sequence[Row]) -> str:
    from capbench_leaderboard.wording import shown

    pairs = dict.fromkeys(f"{r.entry.result.task.name} × {r.entry.result.architecture.name}" for r in rows)
    return shown(", ".join(pairs))


def _record(row: Row, name: str) -> str:
    from capbench_leaderboard.record_page import run_page
    from capbench_leaderboard.site import templates

    page = templates().get_template("report_record.html.j2")
    return page.render(record=run_page(row.entry, name), name=name, root="")


def _comparison(rows: Sequence[Row]) -> dict[str, object]:
    """The table and the charts above several runs; nothing above one."""
    from capbench_leaderboard.columns import RANKED, ranked_cells
    from capbench_leaderboard.grid import Grid
    from capbench_leaderboard.pages import task_charts
    from capbench_leaderboard.wording import shown

    if len(rows) < 2:
        return {"comparison": None, "charts": []}
    labels = {row.entry.path: shown(row.entry.result.architecture.name) for row in rows}
    links = {row.entry.path: f"#run{i}" for i, row in enumerate(rows)}
    cells = [ranked_cells(row, labels, links[row.entry.path]) for row in rows]
    charts = []
    for n, task in enumerate(dict.fromkeys(row.entry.result.task.name for row in rows)):
        own = [row.entry for row in rows if row.entry.result.task.name == task]
        charts += task_charts(own, shown(task), f"task{n}", links)
    return {"comparison": Grid("compared", "Runs compared", RANKED, cells), "charts": charts}


def _hash(script: str) -> str:
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return f"'sha256-{digest}'"
