"""The README of the board: a table a group and a chart a task, in Markdown that no name can break out of."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from urllib.parse import quote

from tabulate import tabulate

from capbench_leaderboard.address import addresses
from capbench_leaderboard.board import Board
from capbench_leaderboard.charts import charted_text
from capbench_leaderboard.columns import RANKED, ranked_cells
from capbench_leaderboard.grid import Cell
from capbench_leaderboard.ranking import Row, Table
from capbench_leaderboard.wording import conditions_text, counted, group_text, missing_texts, shown

MOST_ROWS = 25
SPECIAL = re.compile(r"([\\`*_{}\[\]()#+!|~$])")
INTRODUCTION = """\
# Leaderboard

How many facts each architecture holds. Built from the files in [`{records}`]({records}) by `capbench leaderboard
build`; not edited by hand. A rank is a range: who has overlapping intervals shares it. Only records of one suite, task,
scorer and size are ranked against each other. *Capacity* is what training reaches, *guaranteed* what a theorem
promises, *constructed* what explicit weights reach. *On shared seeds* compares the trials that two records ran on the
same facts: *ahead of x (7:1)* says that on seven of them only this one held, on one only x, and that equals would
differ so much in less than 5 % of cases (exact sign test); *undecided with* is said where neither these trials nor the
intervals tell the two apart. *Verified* records were run again in part by somebody else; *self-reported* ones were not.
"""


def escaped(text: str) -> str:
    """A stranger's text that Markdown shows as it stands: no markup, no link, no cell border, no mention."""
    return _literal(shown(text))


def _literal(line: str) -> str:
    line = line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    line = SPECIAL.sub(r"\\\1", line)
    return line.replace("://", "&#58;//").replace("www.", "www&#46;").replace("@", "&#64;")


def readme(board: Board, charts: Sequence[str], records: str) -> str:
    """The whole page; `charts` are file names, `records` the folder as the page links to it."""
    parts = [INTRODUCTION.format(records=quote(records)), _counts(board)]
    for task, name in addresses(board.tasks).items():
        parts += [f"## {escaped(task)}", *_charts(board, task, name, charts)]
        parts += [_section(board, table, records) for table in board.tables if table.group.task == task]
    parts += [_removed(board), _broken(board)]
    return "\n\n".join(part.strip("\n") for part in parts if part) + "\n"


def _counts(board: Board) -> str:
    if not board.entries:
        return "There are no records yet. `capbench suite standard` makes them."
    verified = sum(board.is_verified(entry) for entry in board.entries)
    return f"{counted(len(board.entries), 'record')}, {verified:,} of them verified."


def _charts(board: Board, task: str, name: str, charts: Sequence[str]) -> list[str]:
    captions = {"capacity": "capacity against parameters", "bounds": "measured over bound"}
    files = {f"{name}-{kind}.svg": caption for kind, caption in captions.items()}
    what = _literal(charted_text(board.charted(task)))
    return [f"![{escaped(task)}: {files[file]}, {what}](charts/{quote(file)})" for file in files if file in charts]


def _section(board: Board, table: Table, records: str) -> str:
    labels = {row.entry.path: shown(row.entry.result.architecture.name) for row in table.rows}
    top = table.rows[:MOST_ROWS]
    rows = [_cells(row, labels, records) for row in top]
    grid = tabulate(rows, headers=[column.label for column in RANKED], tablefmt="pipe", disable_numparse=True)
    more = len(table.rows) - MOST_ROWS
    notes = [f"And {more:,} more on the site."] if more > 0 else []
    notes += [f"{_literal(labels[r.entry.path])}: {escaped(r.entry.failures)}" for r in top if r.entry.failures]
    missing = missing_texts((row.architecture, row.reason) for row in table.missing)
    notes += [f"Missing: {_literal(names)}: {_literal(reason)}" for names, reason in missing]
    heading, conditions = f"### {escaped(group_text(table.group))}", _literal(conditions_text(table.group))
    parts = (heading, conditions, grid if rows else "", *notes)
    return "\n\n".join(part for part in parts if part)


def _cells(row: Row, labels: Mapping[str, str], records: str) -> list[str]:
    """The cells of the site's table, in Markdown."""
    return [_cell(cell) for cell in ranked_cells(row, labels, quote(f"{records}/{row.entry.path}"))]


def _cell(cell: Cell) -> str:
    text = _literal(cell.text)
    return f"[{text}]({cell.href})" if cell.href else text


def _removed(board: Board) -> str:
    if not board.removals:
        return ""
    lines = [f"- {escaped(r.record)} ({escaped(r.date)}): {escaped(r.reason)}" for r in board.removals]
    return "## Removed\n\n" + "\n".join(lines)


def _broken(board: Board) -> str:
    if not board.broken:
        return ""
    return "## Left out because they are broken\n\n" + "\n".join(f"- {escaped(line)}" for line in board.broken)
