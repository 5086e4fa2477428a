"""The README of the board: one table per group and charts per task, with every name escaped for Markdown."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from urllib.parse import quote

from tabulate import tabulate

from capbench_leaderboard.charts import charted_text
from capbench_leaderboard.ranking.board import Board
from capbench_leaderboard.ranking.ranked_tables import RankedRow, RankedTable
from capbench_leaderboard.record_text import (
    conditions_text,
    count_text,
    group_text,
    missing_texts,
    plain_line,
    ranking_text,
)
from capbench_leaderboard.slugs import unique_slugs
from capbench_leaderboard.table_rows import RANKED_COLUMNS, Cell, ranked_cells

MAX_ROWS = 25
SPECIAL = re.compile(r"([\\`*_{}\[\]()#+!|~$])")
INTRODUCTION = """\
# Leaderboard

How many facts each architecture holds. Built from the files in [`{records}`]({records}) by `capbench leaderboard
build`; do not edit it by hand. Only records of the same suite, task, scorer and size are ranked against each other.

*Rank* is a range, and *best* the probability of having the largest capacity of the table. Both come from draws of all
capacities at once, each from a posterior with the record's estimate as its median and the shape of its interval. With
95 % probability all ranges of a table hold at once. An *at least* may be anywhere above: where that decides who is
best, *best* is a range too. Records of one model (equal parameters, and equal results in every trial that they share)
take one place and are called *same model as x here*. Records in italics are not settled: more steps would raise their
capacity, so they are not ranked.

*Capacity* is what training reaches, *guaranteed* what a theorem promises, *constructed* what explicit weights reach.
*On shared seeds* compares two records on the trials in which both had the same facts: *ahead of x (12:0)* means that
only this record held in twelve of them and only x in none. The exact sign test decides, with Holm's correction for all
pairs of the table: if all records were equally good, a table would show any such line in less than 5 % of cases.
*Undecided with* means that neither these trials nor the ranks separate the two. *Verified* records were checked by
someone else with `capbench leaderboard verify`, which runs a sample of the trials again; *self-reported* ones were not.
"""


def escape_markdown(text: str) -> str:
    """Untrusted text that Markdown shows literally: no markup, no link, no cell border, no mention."""
    return _escape_line(plain_line(text))


def _escape_line(line: str) -> str:
    line = line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    line = SPECIAL.sub(r"\\\1", line)
    return line.replace("://", "&#58;//").replace("www.", "www&#46;").replace("@", "&#64;")


def readme(board: Board, charts: Sequence[str], records: str) -> str:
    """The whole page; `charts` are file names, `records` the folder as the page links to it."""
    parts = [INTRODUCTION.format(records=quote(records)), _counts(board)]
    for task, name in unique_slugs(board.tasks).items():
        parts += [f"## {escape_markdown(task)}", *_charts(board, task, name, charts)]
        parts += [_section(board, table, records) for table in board.tables if table.group.task == task]
    parts += [_removed(board), _broken(board)]
    return "\n\n".join(part.strip("\n") for part in parts if part) + "\n"


def _counts(board: Board) -> str:
    if not board.entries:
        return "There are no records yet. `capbench suite standard` makes them."
    verified = sum(board.is_verified(entry) for entry in board.entries)
    return f"{count_text(len(board.entries), 'record')}, {verified:,} of them verified."


def _charts(board: Board, task: str, name: str, charts: Sequence[str]) -> list[str]:
    captions = {"capacity": "capacity against parameters", "bounds": "measured over bound"}
    files = {f"{name}-{kind}.svg": caption for kind, caption in captions.items()}
    what = _escape_line(charted_text(board.charted_entries(task)))
    return [
        f"![{escape_markdown(task)}: {files[file]}, {what}](charts/{quote(file)})" for file in files if file in charts
    ]


def _section(board: Board, table: RankedTable, records: str) -> str:
    labels = {row.entry.path: plain_line(row.entry.result.architecture.name) for row in table.rows}
    top = table.rows[:MAX_ROWS]
    rows = [_cells(row, labels, records) for row in top]
    grid = tabulate(rows, headers=[column.label for column in RANKED_COLUMNS], tablefmt="pipe", disable_numparse=True)
    more = len(table.rows) - MAX_ROWS
    notes = [f"And {more:,} more on the site."] if more > 0 else []
    notes += [
        f"{_escape_line(labels[r.entry.path])}: {escape_markdown(r.entry.failures)}" for r in top if r.entry.failures
    ]
    missing = missing_texts((row.architecture, row.reason) for row in table.missing)
    notes += [f"Missing: {_escape_line(names)}: {_escape_line(reason)}" for names, reason in missing]
    heading, conditions = f"### {escape_markdown(group_text(table.group))}", _escape_line(conditions_text(table.group))
    parts = (heading, conditions, _escape_line(ranking_text(table)), grid if rows else "", *notes)
    return "\n\n".join(part for part in parts if part)


def _cells(row: RankedRow, labels: Mapping[str, str], records: str) -> list[str]:
    """The cells of a record's row, in Markdown."""
    return [_cell(cell) for cell in ranked_cells(row, labels, quote(f"{records}/{row.entry.path}"))]


def _cell(cell: Cell) -> str:
    text = _escape_line(cell.text)
    text = f"[{text}]({cell.href})" if cell.href else text
    return f"*{text}*" if cell.is_greyed else text


def _removed(board: Board) -> str:
    if not board.removals:
        return ""
    lines = [
        f"- {escape_markdown(r.record)} ({escape_markdown(r.date)}): {escape_markdown(r.reason)}"
        for r in board.removals
    ]
    return "## Removed\n\n" + "\n".join(lines)


def _broken(board: Board) -> str:
    if not board.broken:
        return ""
    return "## Left out because they are broken\n\n" + "\n".join(f"- {escape_markdown(line)}" for line in board.broken)
