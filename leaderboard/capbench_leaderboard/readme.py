"""The README of the board: pictures first, then short tables, with every name escaped for Markdown."""

from __future__ import annotations

import re
from collections.abc import Sequence
from urllib.parse import quote

from markupsafe import escape
from tabulate import tabulate

from capbench.documents.text import pluralize
from capbench_leaderboard.agreement import agreement_text
from capbench_leaderboard.charts import charted_text
from capbench_leaderboard.ranking.board import Board
from capbench_leaderboard.ranking.ranked_tables import RankedTable, RankingGroup
from capbench_leaderboard.record_text import (
    MAX_NAMES,
    conditions_text,
    group_text,
    missing_texts,
    plain_line,
)
from capbench_leaderboard.slugs import unique_slugs
from capbench_leaderboard.table_rows import README_COLUMNS, TableCell, readme_cells

MAX_ROWS = 25
SPECIAL = re.compile(r"([\\`*_{}\[\]()#+!|~$])")
CHART_LINK = re.compile(r"^!\[.*\]\((charts/[\w.-]+\.svg)\)$", re.MULTILINE)
WRITTEN_BY = "by `capbench leaderboard build`; do not edit it by hand."
INTRODUCTION = """\
# Leaderboard

How many facts each architecture holds, per parameter and with its uncertainty. Built from the files in
[`{records}`]({records}) by `capbench leaderboard build`; do not edit it by hand.
"""
OVERVIEW = "overview.svg"
CAPTION = """\
In the picture above, each cell has half the width of its 95 % interval, and a bar that shows it. In the charts below,
bands are 95 % intervals, and dashed lines are what theorems guarantee, what explicit weights reach (*constructed*),
what is impossible beyond, and laws; an arrow says that only one side is known. What is grey is not settled. An
architecture has one colour everywhere, a family one symbol: ● attention, ■ recurrence, ▲ mlp, ◆ memory.
"""
READING = """\
## How to read this

*Capacity* is the number of facts at which half of the trials hold all of them; *bits per parameter* what those facts
amount to. *Rank* is a range, and *best* the probability of having the largest capacity of the table. Both come from
draws of all capacities at once, each from a posterior with the record's estimate as its median and the shape of its
interval. With 95 % probability all ranges of a table hold at once. An *at least* may be anywhere above: where that
decides who is best, *best* is a range too. Records of one model (equal parameters, and equal results in every trial
that they share) take one place. Only records of the same suite, task, scorer and size are ranked against each other.
Records in italics are not settled: more steps raise their capacity, or it was not asked whether they do in a suite that
asks it; they are not ranked.

*Verified* records were checked by someone else with `capbench leaderboard verify`, which runs a sample of the trials
again; *self-reported* ones were not. The two are ranked apart.

The site has everything else: drift, shapes, learning rates, cost of training, bounds, trials, who is ahead on shared
seeds, and any architectures side by side. `capbench leaderboard build` writes it, and `capbench leaderboard serve`
shows it.
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
    if OVERVIEW in charts:
        parts += [f"![bits per parameter by architecture and task](charts/{OVERVIEW})", CAPTION]
    for task, name in unique_slugs(board.tasks).items():
        parts += [f"## {escape_markdown(task)}", *_chart(board, task, name, charts), *_tables(board, task, records)]
    parts += [READING, _removed(board), _broken(board)]
    return "\n\n".join(part.strip("\n") for part in parts if part) + "\n"


def charts_of(text: str) -> list[str] | None:
    """Paths of the charts that a page of ours shows; None if the text is not a page that `readme` wrote."""
    if WRITTEN_BY not in " ".join(text.split()):
        return None
    return CHART_LINK.findall(text)


def _counts(board: Board) -> str:
    if not board.entries:
        return "There are no records yet. `capbench suite standard` makes them."
    verified = sum(board.is_verified(entry) for entry in board.entries)
    counts = f"{pluralize(len(board.entries), 'record')}, {verified:,} of them verified."
    return f"{counts} {agreement_text(board.agreement)}" if board.agreement else counts


def _chart(board: Board, task: str, name: str, charts: Sequence[str]) -> list[str]:
    """The picture of a task; nothing where there is none."""
    file = f"{name}-bits.svg"
    if file not in charts:
        return []
    what = _escape_line(charted_text(board.charted_entries(task)))
    alt = f"{escape_markdown(task)}: bits per parameter against parameters, {what}"
    return [f"![{alt}](charts/{quote(file)})"]


def _tables(board: Board, task: str, records: str) -> list[str]:
    """The tables of a task: those of the largest tier of the charted suite are open, the others folded."""
    own = [table for table in board.tables if table.group.task == task]
    conditions = {conditions_text(table.group) for table in own if table.rows}
    shared = conditions.pop() if len(conditions) == 1 else ""
    main = _main_group(board, task)
    parts = [_escape_line(shared)]
    for table in sorted(own, key=lambda each: (each.group != main, -each.group.suite_version, -each.group.tier)):
        section = _section(table, records, is_shared=bool(shared))
        parts.append(_open(table, section) if table.group == main else _fold(table, section))
    return parts


def _open(table: RankedTable, section: str) -> str:
    return f"### {escape_markdown(group_text(table.group))}\n\n{section}"


def _main_group(board: Board, task: str) -> RankingGroup | None:
    """The group of the charted suite's largest tier, the verified one if there is."""
    charted = {entry.path for entry in board.charted_entries(task)}
    groups = [
        table.group
        for table in board.tables
        if table.group.task == task and any(row.entry.path in charted for row in table.rows)
    ]
    return max(groups, key=lambda group: (group.tier, not group.is_self_reported), default=None)


def _fold(table: RankedTable, section: str) -> str:
    """A table that opens on a click; its summary says who may be first."""
    names = dict.fromkeys(plain_line(r.entry.result.architecture.name) for r in table.rows if r.may_be_first)
    few = ", ".join(list(names)[:MAX_NAMES]) + (" and others" if len(names) > MAX_NAMES else "")
    title = group_text(table.group) + (f"; first: {few}" if few else "")
    return f"<details><summary>{_escape_html(title)}</summary>\n\n{section}\n\n</details>"


def _section(table: RankedTable, records: str, is_shared: bool) -> str:
    """A table and its notes; its conditions only where the tables of the task do not share them."""
    top = table.rows[:MAX_ROWS]
    rows = [[_cell(cell) for cell in readme_cells(row, quote(f"{records}/{row.entry.path}"))] for row in top]
    grid = tabulate(rows, headers=README_COLUMNS, tablefmt="pipe", disable_numparse=True)
    more = len(table.rows) - MAX_ROWS
    notes = [f"And {more:,} more on the site."] if more > 0 else []
    notes += [
        f"{escape_markdown(row.entry.result.architecture.name)}: {escape_markdown(row.entry.failures)}"
        for row in top
        if row.entry.failures
    ]
    notes += [_missing(table)] if table.missing else []
    conditions = "" if is_shared else _escape_line(conditions_text(table.group))
    return "\n\n".join(part for part in (conditions, grid if rows else "", *notes) if part)


def _missing(table: RankedTable) -> str:
    """The architectures without a record at this size in one line, which opens to the reasons."""
    texts = missing_texts((row.architecture, row.reason) for row in table.missing)
    summary = _escape_html(f"Missing: {', '.join(names for names, _ in texts)}")
    reasons = "\n".join(f"- {_escape_line(names)}: {_escape_line(reason)}" for names, reason in texts)
    return f"<details><summary>{summary}</summary>\n\n{reasons}\n\n</details>"


def _escape_html(line: str) -> str:
    """Text of an HTML element inside Markdown: no tag, no link, no mention."""
    return str(escape(line)).replace("://", "&#58;//").replace("www.", "www&#46;").replace("@", "&#64;")


def _cell(cell: TableCell) -> str:
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
