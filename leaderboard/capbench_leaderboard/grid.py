"""Tables of the site: cells with what is shown, what they sort by and where they lead."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from markupsafe import Markup, escape

WITHOUT_SCRIPT = 50
"""Rows that stand in the page itself; the script draws the others."""


class Cell(NamedTuple):
    """What is shown, what it sorts by where that is another thing, and where it leads."""

    text: str
    sort: float | str | None = None
    href: str = ""


class Column(NamedTuple):
    """A heading, and how its cells are set: n numbers, to the right; s short, on one line; w sentences; else names."""

    label: str
    kind: str = ""


@dataclass(frozen=True)
class Grid:
    """A table with a name of its own in the page."""

    id: str
    label: str
    columns: tuple[Column, ...]
    rows: Sequence[Sequence[Cell]]

    @property
    def is_slim(self) -> bool:
        """Whether it has nothing but numbers, and need not be as wide as the page."""
        return all(column.kind == "n" for column in self.columns)

    @property
    def body(self) -> Markup:
        """The rows that stand in the page; written here because a template takes three times as long for it."""
        kinds = [f' class="{escape(column.kind)}"' if column.kind else "" for column in self.columns]
        lines = (
            "".join(f"<td{kind}{_sorts_by(cell)}>{_content(cell)}</td>" for kind, cell in zip(kinds, row, strict=True))
            for row in self.rows[:WITHOUT_SCRIPT]
        )
        return Markup("".join(f"<tr>{line}</tr>\n" for line in lines))

    @cached_property
    def data(self) -> Markup:
        """The rows that do not, for the script; nothing where there are none."""
        rest = self.rows[WITHOUT_SCRIPT:]
        return embedded([[_compact(cell) for cell in row] for row in rest]) if rest else Markup("")


def _sorts_by(cell: Cell) -> str:
    return "" if _sorts_as_shown(cell) else f' data-s="{_escaped(str(cell.sort))}"'


def _content(cell: Cell) -> str:
    text = _escaped(cell.text)
    return f'<a href="{_escaped(cell.href)}">{text}</a>' if cell.href else text


def _compact(cell: Cell) -> str | list[str | float | None]:
    sort = None if _sorts_as_shown(cell) else cell.sort
    if cell.href:
        return [cell.text, sort, cell.href]
    return cell.text if sort is None else [cell.text, sort]


def _sorts_as_shown(cell: Cell) -> bool:
    """Whether what is shown is also what it sorts by, so that it need not be said twice."""
    return cell.sort is None or cell.text == str(cell.sort)


def _escaped(text: str) -> str:
    """Text for a page; most of it is plain, and seeing that is quicker than escaping it."""
    return text if text.isalnum() else str(escape(text))


def embedded(value: object) -> Markup:
    """JSON that can stand in a script element: nothing in it can end the element or a line."""
    return escaped_json(json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False))


def escaped_json(text: str) -> Markup:
    """The same for text that is JSON already."""
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)
