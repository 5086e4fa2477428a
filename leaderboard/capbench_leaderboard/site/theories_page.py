"""The page that holds every bound and law against every record, from the values that the records state."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from capbench.contract.bound import Kind
from capbench.documents.result import BoundRecord
from capbench.documents.text import number, pluralize
from capbench.studies.theories.cells import RecordedCell
from capbench.studies.theories.judge import judge_recorded
from capbench.studies.theories.judged import Contradiction, LawLimits, TheoryRow
from capbench_leaderboard.ranking.entry import BoardEntry
from capbench_leaderboard.record_text import plain_line
from capbench_leaderboard.site.html_table import HtmlTable
from capbench_leaderboard.site.pages import PageSection, SitePages
from capbench_leaderboard.table_rows import Column, TableCell

PAGE = "theories.html"
BOUND_COLUMNS = (
    Column("bound"),
    Column("kind", "s"),
    Column("compared", "n"),
    Column("measured / bound", "n"),
    Column("range", "n"),
    Column("verdict", "s"),
    Column("pedigree", "s"),
    Column("not compared, most often because", "w long"),
)
LAW_COLUMNS = (
    Column("law"),
    Column("compared", "n"),
    Column("series", "n"),
    Column("constant", "n"),
    Column("range", "n"),
    Column("spread", "n"),
    Column("held-out error", "n"),
    Column("verdict", "s"),
    Column("pedigree", "s"),
    Column("not compared, most often because", "w long"),
)
AGAINST_COLUMNS = (
    Column("theory"),
    Column("task"),
    Column("architecture"),
    Column("parameters", "n"),
    Column("quantity", "s"),
    Column("measured", "n"),
    Column("theory says", "n"),
    Column("why", "w long"),
)


def theory_sections(pages: SitePages) -> list[PageSection]:
    """Bounds, laws, and the records against them; empty where no record names a bound."""
    entries = [entry for task in pages.tasks for entry in pages.board.drawn_entries(task)]
    limits = LawLimits()
    rows = judge_recorded((RecordedCell(entry.result, entry.largest_held) for entry in entries), limits)
    sources = _sources(entries)
    bounds = [_bound_cells(row, sources[row.bound]) for row in rows if row.kind != Kind.LAW.value]
    laws = [_law_cells(row, sources[row.bound]) for row in rows if row.kind == Kind.LAW.value]
    addresses = {entry.result.run_id: pages.records[entry.path] for entry in entries}
    against = [_against_cells(row.bound, each, addresses) for row in rows for each in row.contradictions]
    sections = (
        PageSection(
            "Bounds",
            "An upper bound must hold for every record. Training below a guarantee is an optimisation gap, which no "
            "theorem excludes.",
            HtmlTable("bounds", "Bounds on all records", BOUND_COLUMNS, bounds),
        ),
        PageSection(
            "Laws",
            "A law says how capacity grows, up to a constant. Spread is the largest over the smallest constant in the "
            "worst series of records that differ in size only; the held-out error is the rms of log(measured / "
            "predicted) of the larger sizes, by the constant of the smaller ones. A law is rejected above a spread of "
            f"{limits.spread:g} or a held-out error of {limits.error:g}.",
            HtmlTable("laws", "Laws on all records", LAW_COLUMNS, laws),
        ),
        PageSection(
            "Records against a theory",
            "Below a guarantee, beyond a bound, or off a law that is rejected.",
            HtmlTable("against", "Records against a theory", AGAINST_COLUMNS, against),
        ),
    )
    return [section for section in sections if section.table.rows]


def _sources(entries: Iterable[BoardEntry]) -> dict[str, BoundRecord]:
    """One record of each bound, for its citation and pedigree."""
    return {bound.id: bound for entry in entries for bound in entry.result.bounds}


def _bound_cells(row: TheoryRow, source: BoundRecord) -> list[TableCell]:
    return [
        _name_cell(source),
        TableCell(row.kind),
        TableCell(number(row.judged), row.judged),
        *_ratio_cells(row),
        TableCell(pluralize(row.gaps, "gap") if row.verdict == "gaps" else row.verdict),
        TableCell(source.pedigree),
        _reason_cell(row),
    ]


def _law_cells(row: TheoryRow, source: BoundRecord) -> list[TableCell]:
    return [
        _name_cell(source),
        TableCell(number(row.judged), row.judged),
        TableCell(number(row.series), row.series),
        *_ratio_cells(row),
        TableCell("–" if row.spread is None else f"×{row.spread:.3g}", row.spread or -1.0),
        TableCell(number(row.heldout_error), -1.0 if row.heldout_error is None else row.heldout_error),
        TableCell(row.verdict),
        TableCell(source.pedigree),
        _reason_cell(row),
    ]


def _name_cell(source: BoundRecord) -> TableCell:
    return TableCell(plain_line(source.id))


def _ratio_cells(row: TheoryRow) -> Sequence[TableCell]:
    """The median of measured / bound, and its range."""
    if row.median_ratio is None or row.lowest_ratio is None or row.highest_ratio is None:
        return TableCell("–", -1.0), TableCell("–", -1.0)
    span = f"{number(row.lowest_ratio)} to {number(row.highest_ratio)}"
    return TableCell(number(row.median_ratio), row.median_ratio), TableCell(span, row.lowest_ratio)


def _reason_cell(row: TheoryRow) -> TableCell:
    if not row.reasons:
        return TableCell("")
    reason, count = next(iter(row.reasons.items()))
    return TableCell(plain_line(f"{count:,} records: {reason}"))


def _against_cells(bound: str, each: Contradiction, addresses: dict[str, str]) -> list[TableCell]:
    return [
        TableCell(plain_line(bound)),
        TableCell(plain_line(each.task)),
        TableCell(plain_line(each.architecture), None, addresses[each.run_id]),
        TableCell(number(each.n_parameters), each.n_parameters),
        TableCell(plain_line(each.quantity)),
        TableCell(number(each.measured), each.measured),
        TableCell(number(each.value), each.value),
        TableCell(plain_line(each.why)),
    ]
