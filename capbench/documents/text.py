"""Plain text for terminals: tables, rounded numbers, and control characters made visible."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence

from pydantic import BaseModel
from tabulate import tabulate

from capbench.documents.result import Capacity

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")
"""Characters that a terminal may act on, or that XML forbids: an SVG with one crashes the renderer."""


def plain(text: str) -> str:
    """Text with control and direction characters replaced by visible escapes."""
    return CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", text)


def number(value: float | None) -> str:
    """A number with three significant digits, whole where it is whole or at least 1,000; a dash for None."""
    if value is None:
        return "–"
    if float(value).is_integer() or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def sign_text(capacity: Capacity) -> str:
    """What precedes an estimate of which only one side is known; empty where both are."""
    below = "at most " if capacity.kind == "least_budget" else "below "
    return {"estimated": "", "at_least": "at least ", "below": below}[capacity.status]


def table(rows: Iterable[Sequence[object]], headers: Sequence[str]) -> str:
    """Rows under headers as a text table."""
    cells = [[plain(str(cell)) for cell in row] for row in rows]
    return tabulate(cells, headers=[plain(name) for name in headers], tablefmt="simple", disable_numparse=True)


def as_json_text(found: BaseModel | Sequence[BaseModel]) -> str:
    """A record, or a list of them, as indented JSON."""
    value = (
        found.model_dump(mode="json")
        if isinstance(found, BaseModel)
        else [each.model_dump(mode="json") for each in found]
    )
    return json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
