"""One result as a notebook shows it: HTML in which every word of the document is text, never markup."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from html import escape
from io import StringIO

from capbench.report.plot import success_chart
from capbench.report.result_text import answer_rows, bound_rows
from capbench.report.text import plain
from capbench.results import Result


def result_html(result: Result, fact: str) -> str:
    """The answer with its interval, the curve, the bounds, and the command that repeats it."""
    bounds = [bound for bound in result.bounds if bound.value is not None]
    parts = [
        f"<h4>{_text(f'{result.task.name} × {result.architecture.name}')}</h4>",
        _table(answer_rows(result, fact), ()),
        _curve(result, fact),
        _table(bound_rows(bounds)[1:], bound_rows(bounds)[0]) if bounds else "",
        f"<p><code>{_text(result.command)}</code></p>",
    ]
    return f'<div class="capbench-run">{"".join(parts)}</div>'


def _text(words: str) -> str:
    return escape(plain(words))


def _table(rows: Iterable[Sequence[str]], headers: Sequence[str]) -> str:
    head = "".join(f"<th>{_text(name)}</th>" for name in headers)
    body = "".join("<tr>" + "".join(f"<td>{_text(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table>{f'<thead><tr>{head}</tr></thead>' if headers else ''}<tbody>{body}</tbody></table>"


def _curve(result: Result, fact: str) -> str:
    """The curve as an embedded image: a picture cannot run what a hostile name might smuggle into it."""
    drawn = StringIO()
    success_chart(result, fact).save(drawn, format="svg")
    data = base64.b64encode(drawn.getvalue().encode()).decode()
    words = _text(f"share of trials that hold, against {result.protocol.parameter or f'{fact}s'}")
    return f'<img alt="{words}" style="max-width: 100%" src="data:image/svg+xml;base64,{data}">'
