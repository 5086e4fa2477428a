"""Theories on trial as text: one table of bounds, one of laws, and the cells against them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from capbench.documents.text import fold, number, plain, table
from capbench.studies.theories.cells import MeasuredCell
from capbench.studies.theories.frozen import ScoreRow
from capbench.studies.theories.judged import Contradiction, LawLimits, TheoryRow

WIDTH = 80
MAX_SHOWN = 6
"""Cells against a theory that are printed; --json has all."""
BOUND_HEADERS = ("bound", "kind", "cells", "measured / bound", "verdict")
LAW_HEADERS = ("law", "cells", "constant", "spread", "held-out", "verdict")
SCORE_HEADERS = ("bound", "kind", "new cells", "rms error", "verdict")


def theories_text(
    rows: Sequence[TheoryRow], cells: Sequence[MeasuredCell], left_out: Sequence[str], limits: LawLimits
) -> str:
    """The tables, what contradicts which theory, and why theories do not apply."""
    bounds = [_bound_row(row) for row in rows if row.kind != "law"]
    laws = [_law_row(row) for row in rows if row.kind == "law"]
    parts = [
        _cells_text(cells),
        table(bounds, BOUND_HEADERS) if bounds else "",
        table(laws, LAW_HEADERS) if laws else "",
        _criterion(limits) if laws else "",
        *(_against(row.bound, row.verdict, row.contradictions) for row in rows if row.contradictions),
        "\n".join(line for row in rows for line in _why_not(row)),
        "\n".join(fold(plain(f"left out: {reason}"), WIDTH) for reason in left_out),
    ]
    return "\n\n".join(part for part in parts if part)


def score_text(rows: Sequence[ScoreRow], n_new: int, frozen: str) -> str:
    """What became of frozen predictions."""
    shown = [
        (row.bound, row.kind, f"{row.judged} of {row.cells}", number(row.heldout_error), row.verdict) for row in rows
    ]
    parts = [
        f"predictions frozen {frozen}; {n_new} cells measured since",
        table(shown, SCORE_HEADERS),
        *(_against(row.bound, row.verdict, row.contradictions) for row in rows if row.contradictions),
        "\n".join(fold(plain(f"{row.bound}: {row.note}"), WIDTH) for row in rows if row.note),
    ]
    return "\n\n".join(part for part in parts if part)


def _cells_text(cells: Sequence[MeasuredCell]) -> str:
    """How many cells there are, by task."""
    by_task = Counter(cell.result.task.name for cell in cells)
    named = ", ".join(f"{count} of {task}" for task, count in sorted(by_task.items()))
    return fold(plain(f"{len(cells)} measured cells: {named}"), WIDTH) if cells else "no measured cell"


def _bound_row(row: TheoryRow) -> tuple[str, ...]:
    return row.bound, row.kind, number(row.judged), _range(row), _verdict(row)


def _law_row(row: TheoryRow) -> tuple[str, ...]:
    return (
        row.bound,
        number(row.judged),
        _range(row),
        "–" if row.spread is None else f"×{row.spread:.3g}",
        number(row.heldout_error),
        _verdict(row),
    )


def _range(row: TheoryRow) -> str:
    """The median ratio with its range."""
    if row.median_ratio is None:
        return "–"
    if row.lowest_ratio == row.highest_ratio:
        return number(row.median_ratio)
    return f"{number(row.median_ratio)} ({number(row.lowest_ratio)} to {number(row.highest_ratio)})"


def _verdict(row: TheoryRow) -> str:
    return f"{row.gaps} gap{'s' * (row.gaps != 1)}" if row.verdict == "gaps" else row.verdict


def _criterion(limits: LawLimits) -> str:
    text = (
        "spread: largest / smallest constant in the worst series of cells that differ in sizes only. held-out: rms of "
        "log(measured / predicted) of the larger sizes, by the constant of the smaller ones. A law is rejected above "
        f"a spread of {limits.spread:g} or a held-out error of {limits.error:g}."
    )
    return fold(text, WIDTH)


def _against(bound: str, verdict: str, found: Sequence[Contradiction]) -> str:
    """The cells against a theory, the first of them in full."""
    lines = [f"{bound}: {verdict}, {len(found)} cell{'s' * (len(found) != 1)} against it"]
    lines += [_contradiction_text(each) for each in found[:MAX_SHOWN]]
    more = len(found) - MAX_SHOWN
    return "\n".join([*lines, *([f"  and {more} more (--json)"] if more > 0 else [])])


def _contradiction_text(each: Contradiction) -> str:
    pair = f"{each.task} × {each.architecture}, {number(each.n_parameters)} parameters, run {each.run_id}"
    text = f"{pair}: measured {each.quantity} {number(each.measured)}, theory {number(each.value)}; {each.why}"
    first, *rest = fold(plain(text), WIDTH - 4).splitlines()
    return "\n".join([f"  {first}", *(f"    {line}" for line in rest)])


def _why_not(row: TheoryRow) -> Iterator[str]:
    """The most frequent reason why a theory was not compared, and how many other ones there are."""
    if not row.reasons:
        return
    reason, count = next(iter(row.reasons.items()))
    others = sum(row.reasons.values()) - count
    more = f"; {others} for other reasons (--json)" if others else ""
    yield fold(plain(f"{row.bound} not compared: {count} cells: {reason}{more}"), WIDTH)
