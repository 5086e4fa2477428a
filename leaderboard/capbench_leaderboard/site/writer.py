"""Writing the site: one folder that works from disk without network, with the same bytes for the same records."""

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

from capbench.documents.text import pluralize
from capbench.errors import BadSetting
from capbench_leaderboard.agreement import agreement_text
from capbench_leaderboard.charts import chart_specs
from capbench_leaderboard.heat_map import HeatMap
from capbench_leaderboard.process_pool import ProcessPool
from capbench_leaderboard.ranking.board import Board
from capbench_leaderboard.ranking.ranked_tables import RankedRow
from capbench_leaderboard.ranking.record_status import RecordCheck
from capbench_leaderboard.record_text import plain_line, tier_text
from capbench_leaderboard.site.compare_page import compare_address, compare_script
from capbench_leaderboard.site.heat_table import heat_table
from capbench_leaderboard.site.pages import Chart, Link, SitePages, bits_chart, front_chart, task_charts, with_pictures
from capbench_leaderboard.site.record_page import record_page
from capbench_leaderboard.site.theories_page import PAGE as THEORIES_PAGE
from capbench_leaderboard.site.theories_page import theory_sections

POLICY = (
    "default-src 'none'; script-src 'self' file:; style-src 'self' file: 'unsafe-inline'; img-src 'self' file: data:; "
    "base-uri 'none'; form-action 'none'"
)
STATIC = ("board.css", "board.js", "compare.js", "theme.js", "LICENSE-vega.txt")
SITE_MARKER = Path("assets") / "board.js"
"""A folder that contains this file is a site we wrote and may be replaced."""


class RecordJob(NamedTuple):
    """A record's page to write, in this process or another."""

    row: RankedRow
    check: RecordCheck | None
    page: str
    task_page: str
    architecture_page: str


def write_site(board: Board, folder: Path, pictures: Mapping[str, str], pool: ProcessPool) -> None:
    """Writes the whole site and replaces an earlier one."""
    _clear(folder)
    pages = SitePages(board)
    _write_assets(folder, pages, pictures)
    _write_overview(folder, pages, pictures)
    _write_compare(folder, pages)
    _write_theories(folder, pages)
    _write_tasks(folder, pages, pictures)
    _write_architectures(folder, pages)
    _write_records(folder, pages, pool)


@cache
def load_templates() -> Environment:
    """The templates; every value is escaped unless it is already markup."""
    environment = Environment(
        loader=PackageLoader("capbench_leaderboard"),
        autoescape=True,
        undefined=StrictUndefined,
        auto_reload=False,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["plain_line"] = plain_line
    return environment


def read_static(name: str) -> str:
    """A file of the package that is copied into the site."""
    return (files("capbench_leaderboard") / "static" / name).read_text(encoding="utf-8")


@cache
def vega_script() -> str:
    """Vega, Vega-Lite and vega-embed in one script, as vl-convert bundles them."""
    import vl_convert

    script: str = vl_convert.javascript_bundle()  # type: ignore[call-arg]  # the stub requires an argument that the code does not
    return script


def specs_script() -> str:
    """The chart specifications as a script, because a page opened from disk may not fetch JSON."""
    return f"window.CAPBENCH_SPECS={json.dumps(chart_specs(), sort_keys=True, separators=(',', ':'))};\n"


def check_site_folder(folder: Path) -> None:
    """Raises BadSetting for a folder with files that no build wrote."""
    if folder.exists() and not (folder / SITE_MARKER).is_file() and (folder.is_file() or any(folder.iterdir())):
        raise BadSetting(f"the site goes into a folder of its own, got {str(folder)!r} with other files; choose --out")


def _clear(folder: Path) -> None:
    check_site_folder(folder)
    shutil.rmtree(folder, ignore_errors=True)
    for name in ("assets", "charts", "tasks", "architectures", "records"):
        (folder / name).mkdir(parents=True, exist_ok=True)


def _write_assets(folder: Path, pages: SitePages, pictures: Mapping[str, str]) -> None:
    assets = {name: read_static(name) for name in STATIC}
    assets |= {"vega.js": vega_script(), "specs.js": specs_script(), "search.js": _search_script(pages)}
    for name, text in assets.items():
        (folder / "assets" / name).write_text(text, encoding="utf-8")
    for name, text in pictures.items():
        (folder / "charts" / name).write_text(text, encoding="utf-8")


def _search_script(pages: SitePages) -> str:
    """The search index as a script: labels with their pages, tasks and architectures first."""
    index = [[f"{plain_line(name)} (task)", page] for name, page in pages.tasks.items()]
    index += [[f"{plain_line(name)} (architecture)", page] for name, page in pages.architectures.items()]
    for entry in pages.board.entries:
        result = entry.result
        label = f"{result.task.name} × {result.architecture.name}, {result.n_parameters:,} parameters, {result.run_id}"
        index.append([plain_line(label), pages.records[entry.path]])
    return f"window.CAPBENCH_SEARCH={json.dumps(index, separators=(',', ':'))};\n"


def _render(folder: Path, page: str, template: str, values: Mapping[str, object]) -> None:
    root = "../" * page.count("/")
    text = load_templates().get_template(template).render({**values, "root": root, "policy": POLICY})
    (folder / page).write_bytes(text.encode())


def _write_overview(folder: Path, pages: SitePages, pictures: Collection[str]) -> None:
    board, links = pages.board, pages.links("")
    entries = [(task, pages.task_slugs[task], board.drawn_entries(task)) for task in pages.tasks]
    bits = [_drawn(bits_chart(own, plain_line(task), name, links), pictures) for task, name, own in entries]
    fronts = [_drawn(front_chart(own, plain_line(task), name, links), pictures) for task, name, own in entries]
    records, architectures = (
        pluralize(len(board.entries), "record"),
        pluralize(len(pages.architectures), "architecture"),
    )
    counts = f"{records} of {architectures} on {pluralize(len(pages.tasks), 'task')}"
    agreed = f" {agreement_text(board.agreement)}" if board.agreement else ""
    values = {
        "title": "Leaderboard",
        "counts": f"{counts}; {len(board.verified):,} verified.{agreed}"
        if board.entries
        else "There are no records yet.",
        "broken": board.broken,
        "removals": board.removals,
        "tasks": [_task_link(pages, task) for task in pages.tasks],
        "architectures": [Link(plain_line(name), page) for name, page in pages.architectures.items()],
        "table": pages.overview(),
        "heat": heat_table(HeatMap(board), pages),
        "front": pages.front(),
        "fronts": [chart for found in fronts for chart in found],
        "charts": [chart for found in bits for chart in found],
    }
    _render(folder, "index.html", "index.html.j2", values)


def _drawn(chart: Chart, pictures: Collection[str]) -> list[Chart]:
    """The chart with its picture, if there is enough to draw."""
    return with_pictures([chart], pictures)


def _write_compare(folder: Path, pages: SitePages) -> None:
    (folder / "assets" / "compare-data.js").write_text(compare_script(pages), encoding="utf-8")
    _render(folder, "compare.html", "compare.html.j2", {"title": "Compare architectures"})


def _write_theories(folder: Path, pages: SitePages) -> None:
    values = {"title": "Theories on trial", "sections": theory_sections(pages)}
    _render(folder, THEORIES_PAGE, "theories.html.j2", values)


def _charts(
    pages: SitePages, task: str, pictures: Collection[str] = (), architecture: str | None = None
) -> list[Chart]:
    """The charts of a task, optionally of one architecture only, for a page one folder down."""
    own = pages.board.drawn_entries(task)
    if architecture is not None:
        own = tuple(e for e in own if e.result.architecture.name == architecture)
    return task_charts(own, plain_line(task), pages.task_slugs[task], pages.links("../"), pictures)


def _task_link(pages: SitePages, task: str) -> Link:
    """Links to a task, with its number of records and who may be first at the largest size."""
    tables = [t for t in pages.board.tables if t.group.task == task and t.rows]
    ranked = [t for t in tables if t.group.is_ranked]
    text = pluralize(sum(len(table.rows) for table in tables), "record")
    if ranked:
        last = max(ranked, key=lambda t: (t.group.suite_version, t.group.tier))
        names = list(dict.fromkeys(plain_line(r.entry.result.architecture.name) for r in last.rows if r.may_be_first))
        few = ", ".join(names[:6]) + (" and others" if len(names) > 6 else "")
        text += f"; first at {tier_text(last.group.tier)}: {few}"
    return Link(plain_line(task), pages.tasks[task], text)


def _write_tasks(folder: Path, pages: SitePages, pictures: Collection[str]) -> None:
    for task, page in pages.tasks.items():
        charts, sections = _charts(pages, task, pictures), pages.task_sections(task)
        values = {
            "title": plain_line(task),
            "kind": "task",
            "compare": compare_address(task),
            "charts": charts,
            "sections": sections,
        }
        _render(folder, page, "task.html.j2", values)


def _write_architectures(folder: Path, pages: SitePages) -> None:
    for name, page in pages.architectures.items():
        charts = [_charts(pages, task, architecture=name)[:1] for task in pages.tasks]
        values = {
            "title": plain_line(name),
            "kind": "architecture",
            "compare": compare_address(next(iter(pages.tasks)), name),
            "charts": [chart for first in charts for chart in first],
            "sections": [pages.architecture_section(name)],
        }
        _render(folder, page, "task.html.j2", values)


def _write_records(folder: Path, pages: SitePages, pool: ProcessPool) -> None:
    """Writes one page per record, in several processes if there are many."""
    rows = [row for table in pages.board.tables for row in table.rows]
    jobs = [_job(pages, row) for row in rows]
    for _ in pool.map(partial(_write_record, folder), jobs):
        pass


def _job(pages: SitePages, row: RankedRow) -> RecordJob:
    result = row.entry.result
    slim_entry = replace(row.entry, held_by_trial={}, prints={})  # fields that the page does not show
    return RecordJob(
        replace(row, compared=(), entry=slim_entry),
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
