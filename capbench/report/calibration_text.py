"""A calibration as text, and as the page of the documentation that the command writes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from capbench.documents.text import number, plain, table
from capbench.report.calibration_plot import save_calibration_plot
from capbench.studies.calibrate import System

Row = tuple[str, ...]
EXACT_HEADERS = ("system", "exact", "measured", "95 % interval", "measured / exact", "1.00 within")
LAW_HEADERS = ("system", "law", "measured", "95 % interval", "measured / law")
PAGE = "calibration.md"
FIGURE = "calibration.svg"
INTRODUCTION = """# Calibration

Is the ruler right? These systems have a capacity that is known, and `capbench calibrate` measures them like any other:
it searches for the load at which half of the trials hold, without being told the answer. It wrote this page.
"""
READING = """A system solved *exactly* has no optimisation gap: its weights are the best there are, so the known
capacity must lie within the interval, but for one interval in twenty. A *trained* system may hold less, and by how much
less is the optimisation gap of training.

The curve of a look-up table is a step, and has a tail of lucky agreements on one side only, which the fitted curve, a
logistic one, does not follow. The search refines the loads around such a step down to whole numbers, and the interval
has in it the gap between the last load that was held and the first that failed.
"""
LAWS = """## Laws

Here only a law of growth is known, so that the ratio is its constant at this size, not an error of the measurement.
"""


def calibration_text(systems: Sequence[System]) -> str:
    """The exact systems, then the laws, then what could not be measured."""
    parts = [_section(systems, is_exact, table) for is_exact in (True, False)]
    failed = [plain(f"{system.cell.name} failed: {system.reason}") for system in systems if system.result is None]
    return "\n\n".join(part for part in (*parts, _verdict(systems), "\n".join(failed)) if part)


def write_calibration_page(systems: Sequence[System], folder: Path) -> Path:
    """Writes the page and its figure into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    save_calibration_plot(systems, folder / FIGURE)
    path = folder / PAGE
    path.write_text(calibration_page(systems), encoding="utf-8")
    return path


def calibration_page(systems: Sequence[System]) -> str:
    """The page in Markdown: both tables, the figure, and the source of every known capacity."""
    laws = _section(systems, False, _markdown_table)
    parts = [
        INTRODUCTION,
        _section(systems, True, _markdown_table),
        f"{_verdict(systems)}\n\n{READING}" if _verdict(systems) else READING,
        f"![Measured shares of trials that hold, over the exact curves]({FIGURE})",
        "Points are measured shares of trials with their 95 % intervals; the line is the exact success curve.",
        f"{LAWS}\n{laws}" if laws else "",
        "## Sources",
        "\n".join(_sources(systems)),
    ]
    return "\n\n".join(part.strip() for part in parts if part) + "\n"


def _section(systems: Sequence[System], is_exact: bool, draw: Callable[[Sequence[Row], Row], str]) -> str:
    """The table of the exact systems or of the laws; empty where there are none."""
    rows = [_row(system) for system in systems if system.is_exact is is_exact and system.result is not None]
    return draw(rows, EXACT_HEADERS if is_exact else LAW_HEADERS) if rows else ""


def _row(system: System) -> Row:
    assert system.result is not None
    ratio = _ratio(system, system.result.capacity.estimate)
    low, high = system.interval
    common = (
        plain(system.cell.name),
        number(system.expected),
        number(system.result.capacity.estimate),
        f"{_end(low)} to {_end(high)}",
        f"{ratio} ({_ratio(system, low)} to {_ratio(system, high)})",
    )
    return (*common, "yes" if system.is_within else "no") if system.is_exact else common


def _end(value: float | None) -> str:
    return "open" if value is None else number(value)


def _ratio(system: System, value: float | None) -> str:
    return "open" if value is None else f"{value / system.expected:.3f}"


def _verdict(systems: Sequence[System]) -> str:
    """How many of the systems without an optimisation gap are right."""
    solved = [system for system in systems if system.is_exact and not system.is_trained]
    if not solved:
        return ""
    n_within = sum(system.is_within for system in solved)
    return f"{n_within} of {len(solved)} systems that are solved exactly have 1.00 within their interval."


def _markdown_table(rows: Sequence[Row], headers: Row) -> str:
    lines = [headers, tuple("---" for _ in headers), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _sources(systems: Sequence[System]) -> list[str]:
    """The statement and the source of each bound."""
    bounds = {system.bound.name: system.bound for system in systems}
    return [
        f"- `{bound.name}` [{bound.pedigree.value}]: {bound.statement}; `{bound.formula}` ({bound.citation})"
        for bound in bounds.values()
    ]
