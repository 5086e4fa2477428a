"""A stranger's document is accepted as valid or refused in one clear line; none crashes, none hangs."""

from __future__ import annotations

import random
import sqlite3
import time
from pathlib import Path

import pytest

from capbench.documents.strict_json import read_result
from capbench.errors import BadDocument
from capbench.report.result_text import result_text
from capbench.report.store_text import runs_text, trials_text
from capbench.store.queries import StoredRun, StoredTrial
from tests.faults.hostile import terminal_faults
from tests.faults.mutations import mutated

FIXTURE = Path(__file__).parents[1] / "fixtures" / "store-v1.sqlite"


@pytest.fixture(scope="module")
def document() -> str:
    with sqlite3.connect(f"{FIXTURE.as_uri()}?mode=ro&immutable=1", uri=True) as db:
        return db.execute("SELECT document FROM runs").fetchone()[0]


def refusal(path: Path, content: bytes) -> str | None:
    """The line in which a document is refused, or None where it was accepted and could be shown."""
    path.write_bytes(content)
    try:
        result = read_result(path)
    except BadDocument as error:
        return str(error)
    shown = [
        result_text(result, "fact"),
        runs_text([StoredRun("2030-01-01", result)]),
        trials_text([StoredTrial(result.task.name, result.architecture.name, "2030-01-01", t) for t in result.trials]),
    ]
    assert not any(terminal_faults(text) for text in shown)
    return None


def test_a_thousand_mutated_documents_are_accepted_or_refused_in_one_line(
    tmp_path: Path, document: str, tally, size
) -> None:
    chance, path, n_documents = random.Random(6), tmp_path / "result.json", size(1000, 120)
    assert refusal(path, document.encode()) is None
    refused, slowest = [], 0.0
    for _ in range(n_documents):
        content, started = mutated(document, chance), time.monotonic()
        line = refusal(path, content)
        slowest = max(slowest, time.monotonic() - started)
        if line is not None:
            assert line.startswith(str(path))
            assert len(line) < 400 + len(str(path))
            refused.append(line)
    n_accepted = n_documents - len(refused)
    assert refused
    tally.add(
        "mutated result documents read",
        f"{n_documents}: {n_accepted} accepted as valid and shown, {len(refused)} refused in one line, 0 crashes; "
        f"the slowest took {slowest:.2f} s",
    )
