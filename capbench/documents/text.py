"""Plain text for terminals: tables, rounded numbers, and control characters made visible."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterable, Sequence

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
"""The last column of a table is not made narrower than this."""


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


def table(rows: Iterable[Sequence[object]], headers: Sequence[str], width: int | None = None) -> str:
    """Rows under headers as a text table; its last column is wrapped where the width ends."""
    cells = [[plain(str(cell)) for cell in row] for row in rows]
    names = [plain(name) for name in headers]
    if width and cells:
        *before, _ = (
            2 + max(len(line) for cell in column for line in cell.split("\n"))
            for column in zip(names, *cells, strict=True)
        )
        left = max(width - sum(before), NARROWEST_COLUMN)
        cells = [[*row[:-1], fold(row[-1], left)] for row in cells]
    return tabulate(cells, headers=names, tablefmt="simple", disable_numparse=True)


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
    """Text in lines of at most a width, unless a word is longer."""
    return textwrap.fill(text, width, break_long_words=False, break_on_hyphens=False)


def as_json_text(found: BaseModel | Sequence[BaseModel]) -> str:
    """A record, or a list of them, as indented JSON."""
    value = (
        found.model_dump(mode="json")
        if isinstance(found, BaseModel)
        else [each.model_dump(mode="json") for each in found]
    )
    return json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
