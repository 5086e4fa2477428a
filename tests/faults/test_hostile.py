"""Strings from strangers are shown, never executed: in a terminal, a spreadsheet, a page."""

from __future__ import annotations

import csv
import json
import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from capbench.documents.result import Result
from capbench.report.result_plot import save_plot
from capbench.report.result_text import result_text
from capbench.report.store_text import runs_text, trials_text
from capbench.store.export import run_rows, trial_rows, write_export
from capbench.store.queries import StoredRun, StoredTrial
from capbench_leaderboard.readme import escape_markdown
from tests.faults.hostile import HOSTILE, csv_faults, markdown_faults, page_faults, terminal_faults

ROOT = Path(__file__).parents[2]
FIXTURE = ROOT / "tests" / "fixtures" / "store-v1.sqlite"


@pytest.fixture(scope="module")
def documents() -> list[Result]:
    """A result for each hostile string, which stands wherever a document may have text of its own."""
    with sqlite3.connect(f"{FIXTURE.as_uri()}?mode=ro&immutable=1", uri=True) as db:
        text = db.execute("SELECT document FROM runs").fetchone()[0]
    return [Result.model_validate_json(json.dumps(_poisoned(json.loads(text), string))) for string in HOSTILE]


def _poisoned(document: dict, text: str) -> dict:
    for plugin in ("task", "architecture", "solver"):
        document[plugin].update(name=text, plugin=text, code_hash=text)
        document[plugin]["params"][text] = text
    document["protocol"].update(name=text, preset=text, dtype=text, varies=text, parameter=text)
    document["protocol"]["criterion"]["metric"] = text
    document["environment"].update(dict.fromkeys(("device", "device_name", "platform", "torch", "python"), text))
    document.update(run_id=text, command=text, data={text: 1.0}, metrics={text: 1.0})
    for bound in document["bounds"]:
        bound.update(id=text, quantity=text, citation=text, note=text)
    for n, trial in enumerate(document["trials"]):
        trial.update(key=text, error=text, status="failed" if n % 3 else trial["status"], data={text: 1.0})
        trial["metrics"][text] = 1.0
    return document


def _terminal(result: Result) -> Iterator[str]:
    yield result_text(result, "fact")
    yield runs_text([StoredRun(result.run_id, result)])
    yield trials_text([StoredTrial(result.task.name, result.task.name, "", trial) for trial in result.trials])


def test_a_terminal_obeys_nothing_that_a_document_says(documents: list[Result], tally) -> None:
    texts = [text for result in documents for text in _terminal(result)]
    faults = [fault for text in texts for fault in terminal_faults(text)]
    assert not faults
    tally.add("hostile strings shown in a terminal", f"{len(HOSTILE)} in {len(texts)} texts, {len(faults)} executed")


def test_an_error_that_quotes_a_hostile_name_is_one_harmless_line(capbench, tmp_path: Path) -> None:
    for text in HOSTILE:
        if "\0" in text or text.startswith("-"):
            continue  # no program can be given the first as a word; the second is read as an option
        done = capbench("describe", text)
        assert done.code == 2
        assert (done.err.count("\n"), terminal_faults(done.err)) == (1, [])


def test_a_spreadsheet_runs_nothing_that_a_document_says(documents: list[Result], tmp_path: Path, tally) -> None:
    runs = [StoredRun("2030-01-01", result) for result in documents]
    trials = [StoredTrial(r.task.name, r.architecture.name, "2030-01-01", t) for r in documents for t in r.trials]
    n_cells, faults = 0, []
    for rows in (run_rows(runs), trial_rows(trials, runs)):
        write_export(rows, tmp_path / "x.csv")
        with (tmp_path / "x.csv").open(newline="") as file:
            cells = [cell for line in csv.reader(file) for cell in line]
        n_cells, faults = n_cells + len(cells), faults + csv_faults(cells)
    assert not faults
    tally.add("hostile strings in exported CSV", f"{len(HOSTILE)} in {n_cells:,} cells, {len(faults)} would run")


def test_a_markdown_table_keeps_every_hostile_string_in_its_cell(tally) -> None:
    cells = [escape_markdown(text) for text in HOSTILE]
    assert not [fault for cell in cells for fault in markdown_faults(cell)]
    assert not [cell for cell in cells if re.search(r"\n|(?<!\\)\|", cell)]
    tally.add(
        "hostile strings in cells of the leaderboard's Markdown", f"{len(cells)}, none marks up or leaves its cell"
    )


@pytest.mark.slow
def test_a_page_runs_nothing_that_a_document_says(documents: list[Result], tmp_path: Path, tally, size) -> None:
    chosen = documents[: size(len(documents), 3)]
    faults = []
    for result in chosen:
        save_plot(result, result.task.name, tmp_path / "x.html")
        faults += page_faults((tmp_path / "x.html").read_text(encoding="utf-8"))
    assert not faults
    tally.add("hostile strings in pages of a plot", f"{len(chosen)} pages, {len(faults)} that run or fetch anything")


AMONG_OWN = {
    "capbench/executors/worker_pool.py",
    "capbench/executors/pool_worker.py",
    "capbench/executors/ray/cluster.py",
    "capbench/executors/ray/worker.py",
}
"""Driver and workers of one Ray cluster trust each other: Ray itself speaks in pickles and runs what it is sent. So do
a process and those that it has forked, over pipes that nobody else holds."""


def test_no_source_unpickles_or_runs_text() -> None:
    """Data stay data: nothing that reads a file or a document reads pickles, unsafe YAML, or evaluates strings."""
    words = re.compile(
        r"\bpickle\b|torch\.load\b|yaml\.load\b|(?<![.\w])eval\(|(?<![.\w])exec\(|\bmarshal\b|\bshelve\b"
    )
    folders = ("capbench", "plugins", "tasks", "leaderboard")
    paths = {str(path.relative_to(ROOT)): path for folder in folders for path in (ROOT / folder).rglob("*.py")}
    for path in [path for name, path in paths.items() if name not in AMONG_OWN]:
        found = words.findall(path.read_text(encoding="utf-8"))
        assert not found, f"{path.relative_to(ROOT)}: {found}"
