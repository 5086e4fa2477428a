"""The README of the board: a table a group and a chart a task, in Markdown that no name can break out of."""

from __future__ import annotations

import re
from collections.abc import Sequence
from urllib.parse import quote

from tabulate import tabulate

from capbench.report.text import number
from capbench_leaderboard.address import addresses
from capbench_leaderboard.board import Board
from capbench_leaderboard.ranking import Row, Table
from capbench_leaderboard.wording import (
    capacity_text,
    constructed_text,
    group_text,
    guaranteed,
    interval_text,
    paired_text,
    ratios_text,
    seconds_text,
    shown,
)

MOST_ROWS = 25
SPECIAL = re.compile(r"([\\`*_{}\[\]()#+!|~$])")
HEADERS = (
    "rank",
    "architecture",
    "parameters",
    "capacity",
    "95 % interval",
    "guaranteed",
    "constructed",
    "measured / lower bound",
    "bits a parameter",
    "on shared seeds",
    "time",
)
INTRODUCTION = """\
# Leaderboard

How many facts each architecture holds. Built from the files in [`{records}`]({records}) by `capbench leaderboard
build`; not edited by hand. A rank is a range: who has overlapping intervals shares it. Only records of one suite, task,
scorer and size are ranked against each other. *Capacity* is what training reaches, *guaranteed* what a theorem
promises, *constructed* what explicit weights reach. *On shared seeds* compares the trials that two records ran on the
same facts (exact sign test, 5 %). *Verified* records were run again in part by somebody else; *self-reported* ones were
not.
"""


def escaped(text: str) -> str:
    """Text that Markdown shows as it stands: no markup, no link, no cell border, no mention."""
    line = shown(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    line = SPECIAL.sub(r"\\\1", line)
    return line.replace("://", "&#58;//").replace("www.", "www&#46;").replace("@", "&#64;")


def readme(board: Board, charts: Sequence[str], records: str) -> str:
    """The whole page; `charts` are file names, `records` the folder as the page links to it."""
    parts = [INTRODUCTION.format(records=quote(records)), _counts(board)]
    for task, name in addresses({table.group.task for table in board.tables}).items():
        parts += [f"## {escaped(task)}", *_charts(task, name, charts)]
        parts += [_section(board, table, records) for table in board.tables if table.group.task == task]
    parts += [_removed(board), _broken(board)]
    return "\n\n".join(part.strip("\n") for part in parts if part) + "\n"


def _counts(board: Board) -> str:
    if not board.entries:
        return "There are no records yet. `capbench suite standard` makes them."
    verified = sum(board.is_verified(entry) for entry in board.entries)
    return f"{len(board.entries):,} records, {verified:,} of them verified."


def _charts(task: str, name: str, charts: Sequence[str]) -> list[str]:
    captions = {"capacity": "capacity against parameters", "bounds": "measured over bound"}
    files = {f"{name}-{kind}.svg": caption for kind, caption in captions.items()}
    return [f"![{escaped(task)}: {files[file]}](charts/{quote(file)})" for file in files if file in charts]


def _section(board: Board, table: Table, records: str) -> str:
    labels = {row.entry.path: escaped(row.entry.result.architecture.name) for row in table.rows}
    rows = [_cells(row, labels, records) for row in table.rows[:MOST_ROWS]]
    rows += [("–", escaped(gap.architecture), "", f"missing: {escaped(gap.reason)}") for gap in table.missing]
    text = tabulate(rows, headers=HEADERS, tablefmt="pipe", disable_numparse=True)
    more = len(table.rows) - MOST_ROWS
    notes = [f"And {more:,} more on the site."] if more > 0 else []
    notes += [
        f"{labels[r.entry.path]}: {escaped(r.entry.failures)}" for r in table.rows[:MOST_ROWS] if r.entry.failures
    ]
    scorer = f"Held: {escaped(table.group.scorer)}." if table.group.scorer else ""
    return "\n\n".join(part for part in (f"### {escaped(group_text(table.group))}", scorer, text, *notes) if part)


def _cells(row: Row, labels: dict[str, str], records: str) -> tuple[str, ...]:
    result = row.entry.result
    link = quote(f"{records}/{row.entry.path}")
    return (
        row.rank,
        f"[{labels[row.entry.path]}]({link})",
        number(result.n_parameters),
        capacity_text(result.capacity),
        interval_text(result.capacity),
        number(guaranteed(result)),
        constructed_text(result),
        escaped(ratios_text(result)),
        number(result.bits_per_parameter),
        paired_text(row.compared, labels),
        seconds_text(result.timing.wall_seconds),
    )


def _removed(board: Board) -> str:
    if not board.removals:
        return ""
    lines = [f"- {escaped(r.record)} ({escaped(r.date)}): {escaped(r.reason)}" for r in board.removals]
    return "## Removed\n\n" + "\n".join(lines)


def _broken(board: Board) -> str:
    if not board.broken:
        return ""
    return "## Left out because they are broken\n\n" + "\n".join(f"- {escaped(line)}" for line in board.broken)
