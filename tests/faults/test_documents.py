"""A stranger's document is accepted as valid or refused in one clear line; none crashes, none hangs."""

from __future__ import annotations

import random
import sqlite3
import time
from pathlib import Path

import pytest

from capbench.errors import BadDocument
from capbench.reading import MOST_BYTES, inside, read_result
from capbench.report.result_text import result_text
from capbench.report.stored import runs_text, trials_text
from capbench.selection import StoredRun, StoredTrial
from tests.faults.hostile import HOSTILE, terminal_faults
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


def test_refusals_name_the_field_and_what_stands_there(tmp_path: Path, document: str) -> None:
    changes = {
        '"n_parameters":514': ('"n_parameters":"514"', "n_parameters: Input should be a valid integer, got '514'"),
        '"schema_version":1': ('"schema_version":2', "schema_version: Input should be 1, got 2"),
        '"bits":': ('"bits":NaN,"x":', "numbers are finite, got NaN"),
        '"run_id":': ('"run_id":"a","run_id":', "each key stands once, got 'run_id' twice"),
        '"wall_seconds":': ('"wall_seconds":1e999,"x":', "numbers are finite, got 1e999"),
    }
    for old, (new, words) in changes.items():
        line = refusal(tmp_path / "result.json", document.replace(old, new, 1).encode())
        assert line is not None
        assert words in line


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b" " * (MOST_BYTES + 1), "at most 16 MiB"),
        (b"[" * 1_000_000, "at most 32 deep"),
        (b'"' + b'\\"' * 1_000_000, "Unterminated string"),
        (b"[" + b"0," * 20_000 + b"0]", "a list or object has at most 10,000 values"),
        (b'{"a": 1' + b"0" * 100 + b"}", "at most 63 bits"),
        (b"\xff\xfe{\x00}\x00", "UTF-8"),
        (b"", "Expecting value"),
    ],
)
def test_a_document_made_to_exhaust_its_reader_is_refused(tmp_path: Path, content: bytes, words: str) -> None:
    line = refusal(tmp_path / "result.json", content)
    assert line is not None
    assert words in line


def test_what_is_no_regular_file_is_not_read() -> None:
    for path in (Path("/dev/zero"), Path("/"), Path("/nowhere/at/all")):
        with pytest.raises(BadDocument, match="no such file"):
            read_result(path)


def test_names_in_documents_never_lead_out_of_their_folder(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/etc")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    assert inside(tmp_path, "weights/w.safetensors") == tmp_path / "weights" / "w.safetensors"
    outside = ("../x", "/etc/passwd", "a/../../x", "..\\x", "C:\\x", "\\\\host\\x", "link/passwd", "", ".", "a\0b")
    for name in outside:
        with pytest.raises(BadDocument, match="must lie in the document's folder"):
            inside(tmp_path, name)
    for name in HOSTILE:
        try:
            assert inside(tmp_path, name).resolve().is_relative_to(tmp_path.resolve())
        except BadDocument:
            continue
