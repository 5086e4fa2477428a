"""Plain text for terminals: tables, rounded numbers, and control characters made visible."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterable, Sequence
from itertools import zip_longest

from pydantic import BaseModel
from tabulate import tabulate

from capbench.documents.result import MAX_WHOLE, Capacity, RatioStatus

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")
"""Characters that a terminal may act on, or that XML forbids: an SVG with one crashes the renderer."""

LATEX_SIGNS = str.maketrans(
    {"≥": r"$\geq$", "≤": r"$\leq$", "±": r"$\pm$", "−": "$-$", "×": r"$\times$", "τ": r"$\tau$", "–": "--"}
)
"""Signs that pdflatex refuses as they are, in its own words."""

NARROWEST_COLUMN = 20
"""A column of sentences is not made narrower than this."""


def plain(text: str) -> str:
    """Text with control and direction characters replaced by visible escapes."""
    return CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", text)


def number(value: float | None) -> str:
    """A number with three significant digits, whole where it is whole or at least 1,000; a dash for None."""
    if value is None:
        return "–"
    if abs(value) >= MAX_WHOLE:
        return f"{value:.3g}"
    if float(value).is_integer() or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def sign_text(capacity: Capacity) -> str:
    """What precedes an estimate of which only one side is known; empty where both are."""
    below = "at most " if capacity.kind == "least_budget" else "below "
    return {"estimated": "", "at_least": "at least ", "below": below}[capacity.status]


def ratio_text(status: RatioStatus, shown: str) -> str:
    """A ratio with what is known of it: 2.5, at least 2.5, at most 2.5, unknown."""
    return {"estimated": shown, "at_least": f"at least {shown}", "at_most": f"at most {shown}", "unknown": "unknown"}[
        status
    ]


def pluralize(n: int, noun: str) -> str:
    """A number and its noun: 1 run, 2 runs, 1,000 runs."""
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


def table(rows: Iterable[Sequence[object]], headers: Sequence[str], width: int | None = None) -> str:
    """Rows under headers as a text table that fits a width, if one is given.

    Where the columns are too wide together, headers and cells are wrapped; where even that is not enough, each row
    becomes a block of lines, one per column.
    """
    cells = [[plain(str(cell)) for cell in row] for row in rows]
    names = [plain(name) for name in headers]
    text = tabulate(cells, headers=names, tablefmt="simple", disable_numparse=True)
    if width is None or not cells or all(len(line) <= width for line in text.split("\n")):
        return text
    columns = list(zip(names, *cells, strict=True))
    for gap in (2, 1):
        widths = _column_widths(columns, width - gap * (len(columns) - 1))
        if widths:
            return _aligned(columns, widths, " " * gap)
    return "\n\n".join(_block(names, row, width) for row in cells)


def _column_widths(columns: Sequence[Sequence[str]], room: int) -> list[int] | None:
    """Widths of columns whose sum fits, taken from the widest first; None where words would have to be broken."""
    widths = [max(len(line) for text in column for line in text.split("\n")) for column in columns]
    words = [max((len(word) for text in column for word in text.split()), default=0) for column in columns]
    least = [max(word, min(width // 2, NARROWEST_COLUMN)) for word, width in zip(words, widths, strict=True)]
    while sum(widths) > room:
        shrinkable = [i for i, width in enumerate(widths) if width > least[i]]
        if not shrinkable:
            return None
        widths[max(shrinkable, key=widths.__getitem__)] -= 1
    return widths


def _aligned(columns: Sequence[Sequence[str]], widths: Sequence[int], gap: str) -> str:
    """Columns of given widths with their headers underlined; cells are wrapped."""
    lines = []
    for i, row in enumerate(zip(*columns, strict=True)):
        wrapped = [fold(text, width).split("\n") for text, width in zip(row, widths, strict=True)]
        lines += [
            gap.join(f"{part:<{width}}" for part, width in zip(parts, widths, strict=True)).rstrip()
            for parts in zip_longest(*wrapped, fillvalue="")
        ]
        if i == 0:
            lines.append(gap.join("-" * width for width in widths))
    return "\n".join(lines).lstrip("\n")  # without headers the first line is empty


def _block(names: Sequence[str], row: Sequence[str], width: int) -> str:
    """A row as lines of a header and its cell; without empty cells."""
    indent = max(map(len, names)) + 2
    shown = [(name, cell) for name, cell in zip(names, row, strict=True) if cell not in ("", "–")]
    return "\n".join(
        f"{name:<{indent}}" + fold(cell, max(width - indent, NARROWEST_COLUMN)).replace("\n", "\n" + " " * indent)
        for name, cell in shown
    )


def table_as(rows: Iterable[Sequence[object]], headers: Sequence[str], layout: str) -> str:
    """Rows under headers as a table for a document: markdown or latex (with booktabs)."""
    cells = [[plain(str(cell)) for cell in row] for row in rows]
    if layout == "markdown":
        cells = [[cell.replace("|", "\\|") for cell in row] for row in cells]
    style = {"markdown": "github", "latex": "latex_booktabs"}[layout]
    text = tabulate(cells, headers=[plain(name) for name in headers], tablefmt=style, disable_numparse=True)
    return text.translate(LATEX_SIGNS) if layout == "latex" else text


def tables_as(tables: Iterable[Sequence[Sequence[object]]], layout: str) -> str:
    """Tables for a document, below one another; each is its headers and then its rows, those without rows left out."""
    shown = [(rows, headers) for headers, *rows in filter(None, tables) if rows]
    return "\n\n".join(table_as(rows, [str(name) for name in headers], layout) for rows, headers in shown)


def fold(text: str, width: int) -> str:
    """Text in lines of at most a width, unless a word is longer; its own line breaks stay."""
    return "\n".join(
        textwrap.fill(line, width, break_long_words=False, break_on_hyphens=False) for line in text.split("\n")
    )


def as_json_text(found: BaseModel | Sequence[BaseModel]) -> str:
    """A record, or a list of them, as indented JSON."""
    value = (
        found.model_dump(mode="json")
        if isinstance(found, BaseModel)
        else [each.model_dump(mode="json") for each in found]
    )
    return json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
