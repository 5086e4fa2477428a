"""The site: one folder that works from a disk, with no network, and the same bytes for the same records."""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import cache, partial
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined

from capbench.errors import BadSetting
from capbench_leaderboard.board import Board
from capbench_leaderboard.charts import specifications
from capbench_leaderboard.many import Workers
from capbench_leaderboard.pages import Chart, Link, Pages, task_charts
from capbench_leaderboard.ranking import Row
from capbench_leaderboard.record_page import record_page
from capbench_leaderboard.standing import Check
from capbench_leaderboard.wording import counted, shown, tier_text

POLICY = (
    "default-src 'none'; script-src 'self' file:; style-src 'self' file: 'unsafe-inline'; img-src 'self' file: data:; "
    "base-uri 'none'; form-action 'none'"
)
STATIC = ("board.css", "board.js", "theme.js", "LICENSE-vega.txt")
MARK = Path("assets") / "board.js"
"""A folder that has it is a site of ours and may be replaced."""


class RecordJob(NamedTuple):
    """A page to be written, by this process or another."""

    row: Row
    check: Check | None
    page: str
    task_page: str
    architecture_page: str


def write_site(board: Board, folder: Path, pictures: Mapping[str, str], workers: Workers) -> None:
    """Writes the whole site anew."""
    _clear(folder)
    pages = Pages(board)
    _write_assets(folder, pages, pictures)
    _write_overview(folder, pages, pictures)
    _write_tasks(folder, pages, pictures)
    _write_architectures(folder, pages)
    _write_records(folder, pages, workers)


@cache
def templates() -> Environment:
    """The templates; every value is escaped unless it is markup already."""
    found = Environment(
        loader=PackageLoader("capbench_leaderboard"),
        autoescape=True,
        undefined=StrictUndefined,
        auto_reload=False,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters["shown"] = shown
    found.filters["tier"] = tier_text
    return found


def static(name: str) -> str:
    """A file of the package that goes into the site as it is."""
    return (files("capbench_leaderboard") / "static" / name).read_text(encoding="utf-8")


@cache
def vega() -> str:
    """Vega, Vega-Lite and vega-embed in one script, as vl-convert bundles them."""
    import vl_convert

    script: str = vl_convert.javascript_bundle()  # type: ignore[call-arg]  # the stub wants what the code does not
    return script


def specs_script() -> str:
    """The chart specifications as a script: a page on a disk may not fetch JSON."""
    return f"window.CAPBENCH_SPECS={json.dumps(specifications(), sort_keys=True, separators=(',', ':'))};\n"


def _clear(folder: Path) -> None:
    if folder.exists() and not (folder / MARK).is_file() and any(folder.iterdir()):
        raise BadSetting(f"the site goes into a folder of its own, got {str(folder)!r} with other files; choose --out")
    shutil.rmtree(folder, ignore_errors=True)
    for name in ("assets", "charts", "tasks", "architectures", "records"):
        (folder / name).mkdir(parents=True, exist_ok=True)


def _write_assets(folder: Path, pages: Pages, pictures: Mapping[str, str]) -> None:
    assets = {name: static(name) for name in STATIC}
    assets |= {"vega.js": vega(), "specs.js": specs_script(), "search.js": _search_script(pages)}
    for name, text in assets.items():
        (folder / "assets" / name).write_text(text, encoding="utf-8")
    for name, text in pictures.items():
        (folder / "charts" / name).write_text(text, encoding="utf-8")


def _search_script(pages: Pages) -> str:
    """What can be searched for, and its page: names of tasks and architectures first."""
    index = [[f"{shown(name)} (task)", page] for name, page in pages.tasks.items()]
    index += [[f"{shown(name)} (architecture)", page] for name, page in pages.architectures.items()]
    for entry in pages.board.entries:
        result = entry.result
        words = f"{result.task.name} × {result.architecture.name}, {result.n_parameters:,} parameters, {result.run_id}"
        index.append([shown(words), pages.records[entry.path]])
    return f"window.CAPBENCH_SEARCH={json.dumps(index, separators=(',', ':'))};\n"


def _render(folder: Path, page: str, template: str, values: Mapping[str, object]) -> None:
    root = "../" * page.count("/")
    text = templates().get_template(template).render({**values, "root": root, "policy": POLICY})
    (folder / page).write_bytes(text.encode())


def _write_overview(folder: Path, pages: Pages, pictures: Collection[str]) -> None:
    board = pages.board
    charts = [_charts(pages, task, "", pictures)[:1] for task in pages.tasks]
    verified = sum(board.is_verified(entry) for entry in board.entries)
    records, architectures = counted(len(board.entries), "record"), counted(len(pages.architectures), "architecture")
    counts = f"{records} of {architectures} on {counted(len(pages.tasks), 'task')}"
    values = {
        "title": "Leaderboard",
        "counts": f"{counts}; {verified:,} verified." if board.entries else "There are no records yet.",
        "broken": board.broken,
        "removals": board.removals,
        "tasks": [_task_link(pages, task) for task in pages.tasks],
        "architectures": [Link(shown(name), page) for name, page in pages.architectures.items()],
        "table": pages.overview(),
        "charts": [chart for first in charts for chart in first],
    }
    _render(folder, "index.html", "index.html.j2", values)


def _charts(
    pages: Pages, task: str, root: str, pictures: Collection[str] = (), architecture: str | None = None
) -> list[Chart]:
    """The charts of a task, of one architecture where that is asked for."""
    own = pages.board.charted(task)
    if architecture is not None:
        own = tuple(e for e in own if e.result.architecture.name == architecture)
    return task_charts(own, shown(task), pages.names[task], pages.links(root), pictures)


def _task_link(pages: Pages, task: str) -> Link:
    """A task with how many records it has and who may be first at the largest size."""
    tables = [t for t in pages.board.tables if t.group.task == task and t.rows]
    ranked = [t for t in tables if t.group.is_ranked]
    text = counted(sum(len(table.rows) for table in tables), "record")
    if ranked:
        last = max(ranked, key=lambda t: (t.group.suite_version, t.group.tier))
        names = list(dict.fromkeys(shown(r.entry.result.architecture.name) for r in last.rows if r.best == 1))
        few = ", ".join(names[:6]) + (" and others" if len(names) > 6 else "")
        text += f"; first at {tier_text(last.group.tier)}: {few}"
    return Link(shown(task), pages.tasks[task], text)


def _write_tasks(folder: Path, pages: Pages, pictures: Collection[str]) -> None:
    for task, page in pages.tasks.items():
        charts, sections = _charts(pages, task, "../", pictures), pages.task_sections(task)
        values = {"title": shown(task), "kind": "task", "charts": charts, "sections": sections}
        _render(folder, page, "task.html.j2", values)


def _write_architectures(folder: Path, pages: Pages) -> None:
    for name, page in pages.architectures.items():
        charts = [_charts(pages, task, "../", architecture=name)[:1] for task in pages.tasks]
        values = {
            "title": shown(name),
            "kind": "architecture",
            "charts": [chart for first in charts for chart in first],
            "sections": [pages.architecture_section(name)],
        }
        _render(folder, page, "task.html.j2", values)


def _write_records(folder: Path, pages: Pages, workers: Workers) -> None:
    """A page a record; many are written by several processes."""
    rows = [row for table in pages.board.tables for row in table.rows]
    jobs = [_job(pages, row) for row in rows]
    for _ in workers.map(partial(_write_record, folder), jobs):
        pass


def _job(pages: Pages, row: Row) -> RecordJob:
    result = row.entry.result
    return RecordJob(
        replace(row, compared=(), entry=replace(row.entry, outcomes={})),  # what the page does not show
        pages.board.checks.get(row.entry.path),
        pages.records[row.entry.path],
        f"../{pages.tasks[result.task.name]}",
        f"../{pages.architectures[result.architecture.name]}",
    )


def _write_record(folder: Path, job: RecordJob) -> None:
    page = record_page(job.row, job.check)
    values = {
        "title": f"{page.task} × {page.architecture}",
        "task_href": job.task_page,
        "architecture_href": job.architecture_page,
        "record": page,
    }
    _render(folder, job.page, "record.html.j2", values)
