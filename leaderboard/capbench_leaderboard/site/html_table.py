"""Tables of the site as HTML, and JSON that can be embedded in a page."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from markupsafe import Markup, escape

from capbench_leaderboard.table_rows import Column, TableCell

ROWS_IN_PAGE = 50
"""Rows that the HTML contains; the script draws the others."""


@dataclass(frozen=True)
class HtmlTable:
    """A table with an id that is unique in its page."""

    id: str
    label: str
    columns: tuple[Column, ...]
    rows: Sequence[Sequence[TableCell]]

    @property
    def is_slim(self) -> bool:
        """Whether all columns are numbers, so that the table need not be as wide as the page."""
        return all(column.kind == "n" for column in self.columns)

    @property
    def body(self) -> Markup:
        """The first rows as HTML; written here because a template takes three times as long."""
        lines = (
            "".join(
                f"<td{_class_attribute(column, cell)}{_sort_attribute(cell)}>{_cell_html(cell)}</td>"
                for column, cell in zip(self.columns, row, strict=True)
            )
            for row in self.rows[:ROWS_IN_PAGE]
        )
        return Markup("".join(f"<tr>{line}</tr>\n" for line in lines))

    @cached_property
    def data(self) -> Markup:
        """The remaining rows as JSON for the script; empty if there are none."""
        rest = self.rows[ROWS_IN_PAGE:]
        return embed_json([[_compact_cell(cell) for cell in row] for row in rest]) if rest else Markup("")


def _class_attribute(column: Column, cell: TableCell) -> str:
    names = [name for name in (column.kind, "greyed" if cell.is_greyed else "") if name]
    return f' class="{" ".join(names)}"' if names else ""


def _sort_attribute(cell: TableCell) -> str:
    return "" if _sorts_by_text(cell) else f' data-s="{_escape_text(str(cell.sort))}"'


def _cell_html(cell: TableCell) -> str:
    text = _escape_text(cell.text)
    return f'<a href="{_escape_text(cell.href)}">{text}</a>' if cell.href else text


def _compact_cell(cell: TableCell) -> str | list[str | float | None]:
    sort = None if _sorts_by_text(cell) else cell.sort
    if cell.is_greyed:
        return [cell.text, sort, cell.href, 1]
    if cell.href:
        return [cell.text, sort, cell.href]
    return cell.text if sort is None else [cell.text, sort]


def _sorts_by_text(cell: TableCell) -> bool:
    """Whether the text is also the sort key, so that the key can be omitted."""
    return cell.sort is None or cell.text == str(cell.sort)


def _escape_text(text: str) -> str:
    """Text escaped for HTML; most is alphanumeric, and testing for that is quicker than escaping."""
    return text if text.isalnum() else str(escape(text))


def embed_json(value: object) -> Markup:
    """A value as JSON for a script element: nothing in it can end the element or a line."""
    return escape_json(json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False))


def escape_json(text: str) -> Markup:
    """JSON text escaped for a script element."""
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)
