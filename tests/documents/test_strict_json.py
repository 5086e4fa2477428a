"""A JSON document is read whole and strictly, or refused in one line that says why."""

from __future__ import annotations

from pathlib import Path

import pytest

from capbench.documents.result import Result
from capbench.documents.strict_json import MAX_BYTES, read_result
from capbench.errors import BadDocument


def refusal(path: Path, content: bytes) -> str:
    path.write_bytes(content)
    with pytest.raises(BadDocument) as refused:
        read_result(path)
    return str(refused.value)


def test_a_document_is_read_as_it_was_written(tmp_path: Path, document: str) -> None:
    (tmp_path / "result.json").write_text(document)
    result = read_result(tmp_path / "result.json")
    assert Result.model_validate_json(result.model_dump_json(), strict=True) == result


def test_refusals_name_the_field_and_what_was_got(tmp_path: Path, document: str) -> None:
    changes = {
        '"n_parameters":514': ('"n_parameters":"514"', "n_parameters: Input should be a valid integer, got '514'"),
        '"schema_version":1': ('"schema_version":2', "schema_version: Input should be 1, got 2"),
        '"bits":': ('"bits":NaN,"x":', "numbers are finite, got NaN"),
        '"run_id":': ('"run_id":"a","run_id":', "each key may occur once, got 'run_id' twice"),
        '"wall_seconds":': ('"wall_seconds":1e999,"x":', "numbers are finite, got 1e999"),
    }
    for old, (new, message) in changes.items():
        line = refusal(tmp_path / "result.json", document.replace(old, new, 1).encode())
        assert message in line


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b" " * (MAX_BYTES + 1), "at most 16 MiB"),
        (b"[" * 1_000_000, "at most 32 deep"),
        (b'"' + b'\\"' * 1_000_000, "Unterminated string"),
        (b"[" + b"0," * 20_000 + b"0]", "a list or object has at most 10,000 values"),
        (b'{"a": 1' + b"0" * 100 + b"}", "at most 63 bits"),
        (b"\xff\xfe{\x00}\x00", "UTF-8"),
        (b"", "Expecting value"),
    ],
)
def test_a_document_made_to_exhaust_its_reader_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    line = refusal(tmp_path / "result.json", content)
    assert message in line


def test_what_is_no_regular_file_is_not_read() -> None:
    for path in (Path("/dev/zero"), Path("/"), Path("/nowhere/at/all")):
        with pytest.raises(BadDocument, match="no such file"):
            read_result(path)
